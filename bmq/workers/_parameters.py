# SPDX-License-Identifier: Apache-2.0
"""The parameters of handlers and dependencies: reads a signature, and refuses an impossible signature.

A parameter names its source by its annotation. Only the first parameter of a handler has no marker: the
parameter takes the value. Every other source is a class of bmq (the message, the attempt), the class of the
app's state, or a marker in ``Annotated``. All problems are found at registration: an error names the
function, the parameter and the remedy.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from bmq import _checks
from bmq.client.attempt import Attempt
from bmq.client.message import Message
from bmq.client.typed import TypedMessage
from bmq.codecs import Property
from bmq.errors import UsageError
from bmq.workers._handlers import is_async, name_of
from bmq.workers._state import State

__all__ = [
    "ANY_STATE",
    "BATCH",
    "HANDLER",
    "Depends",
    "Kind",
    "Node",
    "Parameter",
    "Role",
    "Source",
    "graph_of",
    "hint_of",
    "needed_by",
    "parameters_of",
    "problem_of_result",
    "returned_by",
    "shown_type",
    "target_of",
]

EMPTY: Final[Any] = inspect.Parameter.empty

#: Type of the state of a router, whose app is not known yet: any class may be the class of the state.
ANY_STATE: Final[Any] = object()

_UNSAID = (EMPTY, Any, object)
_ITERATORS = (Iterator, Iterable, Generator, AsyncIterator, AsyncIterable, AsyncGenerator)


@dataclass(frozen=True, slots=True)
class Depends:
    """Marks a parameter of a handler as a dependency: the result of a function.

    ::

        async def get_session() -> AsyncIterator[AsyncSession]:
            async with AsyncSession(engine) as session:
                yield session
                await session.commit()

        @app.consumer(ORDERS)
        async def ship(order: Order, session: Annotated[AsyncSession, bmq.Depends(get_session)]) -> None:
            ...

    The function is a plain function, an ``async def``, a generator, an async generator, or a class. The
    result of a generator is the value of its only ``yield``. The code after the ``yield`` runs after the
    handler and sees the handler's exception, but cannot suppress the exception. An exception of this code
    fails the attempt.

    All dependencies run in the event loop, also for a handler in a thread, and must not block. The parameters
    of the function follow the rules for handlers, except that a dependency has no value. An attempt calls
    each function once, even if several parameters depend on the function.

    Attributes:
        function: makes the dependency. :attr:`bmq.App.overrides` replaces the function in a test.
        scope: ``"message"`` calls the function in each attempt; ``"app"`` once for each run of the app, or of
            :func:`bmq.consume`, before the first message.

    Raises:
        UsageError: the function is not a function, or the scope is unknown.
    """

    function: Callable[..., Any]
    scope: Literal["message", "app"] = "message"

    def __post_init__(self) -> None:
        given: object = self.function
        _checks.function("the function of bmq.Depends", given)
        if isinstance(given, Depends):
            raise UsageError("the function of bmq.Depends must be a function, not another bmq.Depends")
        try:
            hash(given)
        except TypeError:
            raise UsageError(
                f"the function of bmq.Depends must be hashable, and {_checks.shown(given)} is not"
            ) from None
        _checks.one_of("scope", self.scope, ("message", "app"))


class Source(Enum):
    """The source of an argument."""

    VALUE = "value"
    TYPED = "typed message"
    MESSAGE = "message"
    MESSAGES = "messages"
    ATTEMPT = "attempt"
    STATE = "state"
    PROPERTY = "property"
    DEPENDS = "dependency"


#: Sources for at most one parameter of a function.
_SINGLE = (Source.MESSAGE, Source.MESSAGES, Source.ATTEMPT, Source.STATE)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that receives an argument.

    Attributes:
        name: name of the parameter.
        source: source of the argument.
        of: annotation without markers; for values the type of a value.
        keyword: whether the argument is given by its name.
        mark: marker of a property or a dependency.
        default: default value; ``inspect.Parameter.empty`` if missing.
    """

    name: str
    source: Source
    of: Any
    keyword: bool
    mark: Any = None
    default: Any = EMPTY


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a function.

    Attributes:
        what: name of the role for errors, with an article.
        takes: noun for the arguments for errors.
        batch: whether the function takes the lists of a batch.
        dependency: whether the function makes a dependency, and takes no value.
        yields: whether the function may be an async generator.
    """

    what: str
    takes: str
    batch: bool = False
    dependency: bool = False
    yields: bool = False


HANDLER: Final = Role("a handler", "a message, a value, or a value and its bmq.Message")
BATCH: Final = Role(
    "a handler of batches", "a list of messages, or a list of values and one of messages", batch=True
)
_DEPENDENCY: Final = Role("a dependency", "only parameters with a source", dependency=True)
_BATCH_DEPENDENCY: Final = Role("a dependency", "only parameters with a source", batch=True, dependency=True)


class Kind(Enum):
    """The way to call a dependency."""

    FUNCTION = "function"
    COROUTINE = "coroutine"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async generator"


def needed_by(function: Callable[..., Any]) -> tuple[str, Callable[..., Any]] | None:
    """Return the middleware that a dependency needs, as text and as a function; None for none.

    The dependency is a method with the attribute ``bmq_needs``: the text, which ends with the name of the
    middleware, a method of the same object.
    """
    text, owner = getattr(function, "bmq_needs", None), getattr(function, "__self__", None)
    if not isinstance(text, str) or owner is None:
        return None
    return text, getattr(owner, text.rpartition(".")[2])


@dataclass(frozen=True, slots=True)
class Node:
    """A dependency.

    Attributes:
        function: makes the dependency.
        kind: way to call the function.
        scope: lifetime of the result.
        parameters: parameters of the function.
    """

    function: Callable[..., Any]
    kind: Kind
    scope: str
    parameters: Sequence[Parameter]


# ---- annotations


def target_of(function: Callable[..., Any]) -> Any:
    """Return the function that a call runs: without partials, and ``__call__`` of an object."""
    found: Any = function
    while isinstance(found, functools.partial):
        found = cast("Any", found).func
    if inspect.isclass(found):
        return found
    return found if inspect.isroutine(found) else type(found).__call__


def _bound_by_name(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments that partials give by name."""
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound |= function.keywords.keys()
        function = function.func
    return bound


def _namespace(function: Callable[..., Any]) -> dict[str, Any]:
    found = target_of(function)
    if inspect.isclass(found):
        return vars(sys.modules[found.__module__]) if found.__module__ in sys.modules else {}
    return getattr(inspect.unwrap(found), "__globals__", {})


def hint_of(function: Callable[..., Any], annotation: Any) -> Any:
    """Return an annotation as a type; text is evaluated in the module of the function.

    Raises:
        Exception: the text contains an unknown name, or is not an annotation.
    """
    if annotation is EMPTY:
        return EMPTY
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(cast("Any", holder), _namespace(function), include_extras=True)["it"]


def returned_by(function: Callable[..., Any]) -> Any:
    """Return the annotation of a function's result; ``empty`` if missing or not resolvable."""
    found = target_of(function)
    if inspect.isclass(found):
        return found
    try:
        return hint_of(function, inspect.signature(found).return_annotation)
    except Exception:  # names resolvable only by type checkers
        return EMPTY


def problem_of_result(function: Callable[..., Any]) -> str:
    """Return why the annotation of a function's result is unknown, for errors; "" for a known annotation."""
    found = target_of(function)
    try:
        annotation = inspect.signature(found).return_annotation
        if annotation is not EMPTY:
            hint_of(function, annotation)
            return ""
    except Exception as error:
        return f"the annotation of the result cannot be read ({error})"
    return "the result has no annotation"


def _is_generator(function: Callable[..., Any]) -> bool:
    target = target_of(function)
    return inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)


def _given_for_checkers(annotation: object) -> Any:
    """Return the class of bmq with the name of an annotation: a name may be imported for checkers only."""
    known: dict[str, Any] = {"Message": Message, "Attempt": Attempt}
    if not isinstance(annotation, str):
        return None
    before, _, name = annotation.strip().rpartition(".")
    return known.get(name) if before in ("", "bmq") else None


# ---- parameters


def parameters_of(
    function: Callable[..., Any], role: Role, state: Any = None, where: str = ""
) -> list[Parameter]:
    """Return the parameters that receive an argument.

    Args:
        function: a handler, or the function of a dependency.
        role: role of the function.
        state: class of the app's state; None without a state, or :data:`ANY_STATE`.
        where: name of the function for errors; by default from the function.

    Raises:
        UsageError: the function cannot be called in this role.
    """
    if not callable(function):
        raise UsageError(
            f"{role.what} must be a function that takes {role.takes}, not {_checks.shown(function)}"
        )
    return _Reading(function, role, state, where or name_of(function)).parameters()


class _Reading:
    """The state while the signature of a function is read."""

    def __init__(self, function: Callable[..., Any], role: Role, state: Any, name: str) -> None:
        self._function = function
        self._role = role
        self._state = state
        self._name = name

    def parameters(self) -> list[Parameter]:
        function, role, name = self._function, self._role, self._name
        self._check_kind()
        try:
            signature = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            # Some functions written in C have no signature.
            return [] if role.dependency else [self._of_message("message")]
        self._positional = [
            each for each in signature if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        if not role.dependency and not self._positional:
            if any(each.kind is each.VAR_POSITIONAL for each in signature):
                return [self._of_message("message")]
            for each in signature:
                if each.kind is each.KEYWORD_ONLY and each.default is EMPTY:
                    raise UsageError(self._never_given(each.name))
            raise UsageError(
                f"{name} takes no parameter: {role.what} takes {role.takes}, as in def {name}(message)"
            )
        found: list[Parameter] = []
        bound = _bound_by_name(function)
        keyword = False
        for each in signature:
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or each.name in bound:
                continue
            parameter = self._parameter(each, found, keyword or each.kind is each.KEYWORD_ONLY)
            if parameter is None:
                keyword = True  # the following arguments cannot be given by position
                continue
            if keyword and each.kind is each.POSITIONAL_ONLY:
                raise UsageError(
                    f"{self._name}: parameter {each.name} is positional-only behind a parameter that keeps "
                    f"its default: move {each.name} to the front, or remove the '/'"
                )
            self._check_single(parameter, found)
            found.append(parameter)
        return found

    def _check_single(self, new: Parameter, found: list[Parameter]) -> None:
        for each in found:
            if each.source is new.source and each.source in _SINGLE:
                raise UsageError(
                    f"{self._name} takes the {new.source.value} twice, in parameters {each.name} and "
                    f"{new.name}: remove a parameter"
                )

    def _check_kind(self) -> None:
        function, role, name = self._function, self._role, self._name
        if role.dependency:
            return
        if inspect.isclass(function):
            raise UsageError(
                f"{name} is a class, and a call of it only makes an object: give {role.what} as a function, "
                "or an object with an 'async def __call__'"
            )
        if _is_generator(function) and not (role.yields and inspect.isasyncgenfunction(target_of(function))):
            raise UsageError(
                f"{name} is a generator, and a call does not run its body: {role.what} has no 'yield', and "
                "returns when done"
            )

    def _of_message(self, name: str) -> Parameter:
        source = Source.MESSAGES if self._role.batch else Source.MESSAGE
        return Parameter(name, source, Message, keyword=False)

    def _never_given(self, keyword: str) -> str:
        name, role = self._name, self._role
        return (
            f"{name} needs the keyword {keyword}, which is never given: {role.what} takes {role.takes}. Give "
            f"{keyword} a default or a source, as in Annotated[..., bmq.Depends(...)], or use "
            f"functools.partial({name}, {keyword}=...)"
        )

    def _parameter(self, each: inspect.Parameter, found: list[Parameter], keyword: bool) -> Parameter | None:
        """Return a parameter, or None for a parameter that keeps its default."""
        role = self._role
        first = not role.dependency and each is self._positional[0]
        if _is_marker(each.default):
            depends = each.default is Depends or isinstance(each.default, Depends)
            marker = "bmq.Depends" if depends else "bmq.Property"
            raise UsageError(
                f"{self._name}: parameter {each.name} has {marker} as its default: write the marker into the "
                f"annotation, {each.name}: Annotated[..., {marker}(...)]"
            )
        hint = self._hint(each, first)
        of, marks = hint, []
        if get_origin(hint) is Annotated:
            of, *more = get_args(hint)
            marks = [mark for mark in more if _is_marker(mark)]
        if len(marks) > 1:
            raise UsageError(
                f"{self._name}: parameter {each.name} has {len(marks)} markers of bmq: keep a single marker "
                "in Annotated, because an argument has one source"
            )
        for mark in marks:
            return self._marked(each, of, mark, keyword)
        source = self._known(each, of, first)
        if source is not None:
            return Parameter(each.name, source, of, keyword, default=each.default)
        if first:
            return self._value(each, hint)
        second = len(found) == 1 and not keyword and len(self._positional) > 1 and each is self._positional[1]
        unsaid = each.default is EMPTY and (of in _UNSAID or (role.batch and of is list))
        if second and unsaid and found[0].source is Source.VALUE:
            return self._of_message(each.name)
        if each.default is not EMPTY:
            return None
        if self._state is ANY_STATE and inspect.isclass(of) and of not in _UNSAID:
            return Parameter(each.name, Source.STATE, of, keyword)
        raise UsageError(self._no_source(each, of))

    def _hint(self, each: inspect.Parameter, first: bool) -> Any:
        try:
            return hint_of(self._function, each.annotation)
        except Exception as error:
            known = _given_for_checkers(each.annotation)
            if known is not None:
                return known
            if each.default is not EMPTY and not first:
                return EMPTY
            raise UsageError(
                f"{self._name}: the annotation of parameter {each.name} cannot be read: {error}. Annotations "
                "must be names of the function's module, not of a function, nor of an import for type "
                "checkers only"
            ) from None

    def _marked(self, each: inspect.Parameter, of: Any, mark: Any, keyword: bool) -> Parameter:
        if mark is Depends:
            raise UsageError(
                f"{self._name}: parameter {each.name} has bmq.Depends without a function: "
                f"Annotated[..., bmq.Depends(get_{each.name})]"
            )
        if isinstance(mark, Depends):
            _check_dependency(mark.function)
            self._check_result(each, of, mark)
            return Parameter(each.name, Source.DEPENDS, of, keyword, mark)
        if self._role.batch:
            raise UsageError(
                f"{self._name}: parameter {each.name} is a property, and a batch has many messages: take "
                "messages: list[bmq.Message] and read message.properties"
            )
        made = Property(each.name) if mark is Property or mark.name is None else mark
        return Parameter(each.name, Source.PROPERTY, of, keyword, made, each.default)

    def _check_result(self, each: inspect.Parameter, of: Any, mark: Depends) -> None:
        """Check that a dependency's result has the type of the parameter, as far as both are classes."""
        result = returned_by(mark.function)
        if _is_generator(mark.function):
            result = (*get_args(result), EMPTY)[0] if get_origin(result) in _ITERATORS else EMPTY
        wanted, given = (get_origin(kind) or kind for kind in (of, result))
        if {wanted, given} & {Union, UnionType}:
            return
        if not (inspect.isclass(wanted) and inspect.isclass(given)) or {wanted, given} & {Any, EMPTY, object}:
            return
        if getattr(wanted, "_is_protocol", False) or {wanted, given} <= {int, float, complex}:
            return
        try:
            fits = issubclass(given, wanted)
        except TypeError:
            return
        if not fits:
            raise UsageError(
                f"{self._name}: parameter {each.name} is annotated with {shown_type(of)}, and "
                f"{name_of(mark.function)} returns {shown_type(result)}: use the same type in both places"
            )

    def _known(self, each: inspect.Parameter, of: Any, first: bool) -> Source | None:
        """Return the source named by a class."""
        role, state = self._role, self._state
        if of is Attempt:
            return Source.ATTEMPT
        if of is Message:
            if role.batch:
                raise UsageError(
                    f"{self._name} handles batches: annotate {each.name} with list[bmq.Message], because a "
                    "batch has many messages"
                )
            return Source.MESSAGE
        if role.batch and get_origin(of) in (list, Sequence) and get_args(of) == (Message,):
            return Source.MESSAGES
        if inspect.isclass(state) and inspect.isclass(of) and of not in _UNSAID:
            if of is state:
                return Source.STATE
            try:
                return Source.STATE if not first and issubclass(state, of) else None
            except TypeError:
                return None
        return None

    def _value(self, each: inspect.Parameter, hint: Any) -> Parameter:
        """Return the first parameter of a handler, without a marker."""
        if self._role.batch:
            if hint in _UNSAID or hint in (list, Sequence):
                return self._of_message(each.name)
            if get_origin(hint) not in (list, Sequence):
                raise UsageError(
                    f"{self._name} handles batches, and parameter {each.name} is annotated with "
                    f"{shown_type(hint)}: take a list of messages, or a list of values and optionally a list "
                    "of messages, as in (orders: list[Order], messages: list[bmq.Message])"
                )
            return Parameter(each.name, Source.VALUE, get_args(hint)[0], keyword=False)
        if hint in _UNSAID:
            return self._of_message(each.name)
        if get_origin(hint) is TypedMessage:
            return Parameter(each.name, Source.TYPED, get_args(hint)[0], keyword=False)
        return Parameter(each.name, Source.VALUE, hint, keyword=False)

    def _no_source(self, each: inspect.Parameter, of: Any) -> str:
        name, role = self._name, self._role
        if each.kind is each.KEYWORD_ONLY and of in _UNSAID and not role.dependency:
            return self._never_given(each.name)
        messages = "list[bmq.Message]" if role.batch else "bmq.Message"
        said = "has no annotation" if of is EMPTY else f"is annotated with {shown_type(of)}"
        sources = (
            f"{messages}, bmq.Attempt, the class of bmq.App(state=...), "
            + ("" if role.batch else "Annotated[..., bmq.Property(...)] ")
            + "or Annotated[..., bmq.Depends(...)]"
        )
        if role.dependency:
            return (
                f"{name}: parameter {each.name} {said}, which has no source: a parameter of a dependency is "
                f"annotated with {sources}, or has a default{self._other_state(of)}"
            )
        count = len([p for p in self._positional if p.default is EMPTY or p is self._positional[0]])
        names = ", ".join(p.name for p in self._positional)
        takes = f"{name} takes {count} arguments ({names}): " if count > 1 else f"{name}: "
        return (
            f"{takes}parameter {each.name} {said}, and {role.what} takes {role.takes}. Only the first "
            f"parameter takes the value; annotate the others with {sources}{self._other_state(of)}"
        )

    def _other_state(self, of: Any) -> str:
        """Return the end of an error for a class that may be meant as the class of the app's state."""
        state = self._state
        if not inspect.isclass(state) or not inspect.isclass(of) or of.__module__ == "builtins":
            return ""
        has = "no state" if state is State else f"a state of the class {shown_type(state)}"
        name = shown_type(of)
        return f". The app has {has}: to use an object of {name} as its state, bmq.App(state={name}(...))"


def _check_dependency(function: Callable[..., Any]) -> None:
    wrapped = inspect.unwrap(target_of(function))
    if _is_generator(wrapped) and not _is_generator(function):
        raise UsageError(
            f"the dependency {name_of(function)} is a context manager: remove @contextmanager or "
            "@asynccontextmanager, because a dependency is the generator itself"
        )


def _is_marker(given: object) -> bool:
    return given is Depends or given is Property or isinstance(given, Depends | Property)


def shown_type(of: Any) -> str:
    """Return the name of a type for errors."""
    if inspect.isclass(of) and not get_args(of):
        return of.__qualname__.rpartition("<locals>.")[2]
    return str(of).replace("typing.", "")


# ---- dependencies


def kind_of(function: Callable[..., Any]) -> Kind:
    """Return the way to call a dependency."""
    target = target_of(function)
    if inspect.isclass(target):
        return Kind.FUNCTION
    if inspect.isasyncgenfunction(target):
        return Kind.ASYNC_GENERATOR
    if inspect.isgeneratorfunction(target):
        return Kind.GENERATOR
    return Kind.COROUTINE if is_async(target) else Kind.FUNCTION


def graph_of(
    parameters: Sequence[Parameter],
    name: str,
    state: Any,
    overrides: Mapping[Callable[..., Any], Callable[..., Any]],
    *,
    batch: bool = False,
) -> list[Node]:
    """Return all dependencies of a handler, each one behind its own dependencies.

    Args:
        parameters: parameters of the handler.
        name: name of the handler for errors.
        state: class of the app's state, as for :func:`parameters_of`.
        overrides: replacements of functions.
        batch: whether the handler takes batches.

    Raises:
        UsageError: a dependency cannot be called, depends on itself, or lives longer than its arguments.
    """
    nodes: dict[Callable[..., Any], Node] = {}

    def visit(mark: Depends, path: list[Callable[..., Any]], user: str) -> None:
        function = overrides.get(mark.function, mark.function)
        label = name_of(function)
        if function in path:
            circle = " -> ".join(name_of(each) for each in [*path[path.index(function) :], function])
            raise UsageError(
                f"{name}: the dependency {label} depends on itself: {circle}. Move the shared part to a "
                "function that both use"
            )
        if (known := nodes.get(function)) is not None:
            if known.scope != mark.scope:
                raise UsageError(
                    f"{name}: {label} is a dependency with scope={known.scope!r} and with "
                    f"scope={mark.scope!r}: use the same scope for both parameters"
                )
            return
        role = _BATCH_DEPENDENCY if batch else _DEPENDENCY
        needed = parameters_of(function, role, state, f"{user}: dependency {label}")
        for each in needed:
            if each.source is Source.DEPENDS:
                visit(each.mark, [*path, function], f"{user}: dependency {label}")
            lasts = each.source is Source.STATE or (
                each.source is Source.DEPENDS and each.mark.scope == "app"
            )
            if mark.scope == "app" and not lasts:
                raise UsageError(
                    f"{name}: the dependency {label} has the scope 'app', and its parameter {each.name} "
                    f"({each.source.value}) belongs to a single message: give bmq.Depends({label}) the scope "
                    "'message', or remove the parameter"
                )
        nodes[function] = Node(function, kind_of(function), mark.scope, needed)

    for each in parameters:
        if each.source is Source.DEPENDS:
            visit(each.mark, [], name)
    return list(nodes.values())
