# SPDX-License-Identifier: Apache-2.0
"""Handlers: from a signature to the attempts, with dependencies, middlewares, deadlines and threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from types import CoroutineType, SimpleNamespace, coroutine
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    ParamSpec,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from bmq import _checks, _world
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._turn import turn_of
from bmq.client.attempt import UNSET, Attempt, HandlerInfo, attempt_of
from bmq.client.message import Message
from bmq.client.typed import TypedMessage, typed_message
from bmq.codecs import Codec, Property, Shape
from bmq.codecs.fields import Field, property_reader
from bmq.errors import Undecodable, UsageError
from bmq.workers._options import Call, Handler, Middleware, OnUndecodable, is_async, name_of

__all__ = [
    "ANY_STATE",
    "BATCH",
    "HANDLER",
    "LONG",
    "BlockingCalls",
    "Depends",
    "GeneratedResults",
    "HandlerContext",
    "HandlerPlan",
    "Invoker",
    "Overrides",
    "Role",
    "S",
    "accepts",
    "app_dependencies",
    "checked_state",
    "in_own_contexts",
    "own_context",
    "parameters_of",
    "refuse_awaitable",
    "returned_by",
    "shown_type",
    "target_of",
]

# ---- The objects shared by an app's handlers: a namespace, or an object of the application's own class


class State(SimpleNamespace):
    """Objects shared by the handlers of an app, by name. Created by :class:`bmq.App`.

    Every name can be set and read. Type checkers do not check the names; for checked names and types, give
    :class:`bmq.App` an object of a class of your own.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"app.state has no {name!r}: it has {', '.join(sorted(vars(self))) or 'nothing yet'}. Set the "
            "names in a function of app.on_startup; with bmq.App(state=...) and a class of your own, type "
            "checkers find such names",
            name=name,
            obj=self,
        )


# For type checkers, an App without a state is an App[State]. At run time such defaults need Python 3.13.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=State)
else:
    from typing import TypeVar

    S = TypeVar("S")


def checked_state(state: Any) -> Any:
    """Return the state of an app.

    Raises:
        UsageError: the state is a class.
    """
    if state is None:
        return State()
    if inspect.isclass(state):
        raise UsageError(
            f"state is an object, not the class {state.__name__}: App(state={state.__name__}(...))"
        )
    return state


# ---- Handlers and their dependencies: from a signature to one function of the attempt
#
# A parameter names its source by its annotation. Only the first parameter of a handler has no marker: the
# parameter takes the value. Every other source is a class of bmq (the message, the attempt), the class of the
# app's state, or a marker in ``Annotated``. All problems are found at registration: an error names the
# function, the parameter and the remedy.
#
# A handler of a message, a value, or both, keeps the form ``function(message)``, and costs nothing more.
# All other handlers become ``call(attempt)``: the value is decoded, the dependencies are made in the order
# of their own dependencies, the handler is called, and the generators among the dependencies are closed in
# reverse order. A handler in a thread has its dependencies made and closed in the event loop; after a
# deadline the dependencies stay open until the thread has ended.

logger = Log("bmq.workers")

EMPTY: Final[Any] = inspect.Parameter.empty

#: Type of the state of a router, whose app is not known yet: any class may be the class of the state.
ANY_STATE: Final[Any] = object()

#: Replacements of the functions of dependencies.
Overrides: TypeAlias = Mapping[Callable[..., Any], Callable[..., Any]]

_UNSAID = (EMPTY, Any, object)


@dataclass(frozen=True, slots=True)
class Depends:
    """Marks a parameter of a handler as a dependency: the result of a function.

    ::

        async def get_session() -> AsyncIterator[AsyncSession]:
            async with AsyncSession(engine) as session:
                yield session
                await session.commit()

        @app.consumer(ORDERS)
        async def ship(
            order: Order,
            session: Annotated[AsyncSession, bmq.Depends(get_session)],
        ) -> None:
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
        try:
            hash(given)
        except TypeError:
            raise UsageError(
                f"the function of bmq.Depends must be hashable, and {_checks.shown(given)} is not"
            ) from None
        _checks.one_of("scope", self.scope, ("message", "app"))


# The source of an argument: a function of the attempt, and of the dependencies made so far.
_Source: TypeAlias = Callable[[Attempt, Mapping[Callable[..., Any], Any]], Any]


def _value(attempt: Attempt, _made: Any) -> Any:
    return attempt.value


def _typed(attempt: Attempt, _made: Any) -> Any:
    assert attempt._info.shape is not None
    return typed_message(attempt.messages[0], attempt._info.shape, attempt.value)


def _message(attempt: Attempt, _made: Any) -> Any:
    return attempt.messages[0]


def _messages(attempt: Attempt, _made: Any) -> Any:
    # The list itself: the indexes of PartlyFailed count in the order in which the handler leaves it.
    return attempt.messages


def _attempt(attempt: Attempt, _made: Any) -> Any:
    return attempt


def _state(attempt: Attempt, _made: Any) -> Any:
    return attempt.state


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter that receives an argument.

    Attributes:
        name: name of the parameter.
        source: source of the argument.
        of: annotation without markers; for values the type of a value.
        keyword: whether the argument is given by its name.
        depends: the dependency; None for another source.
        field: the property; None for another source.
    """

    name: str
    source: _Source
    of: Any
    keyword: bool = False
    depends: Depends | None = None
    field: Field | None = None


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


@dataclass(frozen=True, slots=True)
class _Dependency:
    """A dependency.

    Attributes:
        replaced: the function of the marker.
        function: makes the dependency: the function of the marker, or its replacement.
        generates: whether the function is a generator.
        scope: lifetime of the result.
        parameters: parameters of the function.
    """

    replaced: Callable[..., Any]
    function: Callable[..., Any]
    generates: bool
    scope: str
    parameters: Sequence[_Parameter]


# ---- annotations


def target_of(function: Callable[..., Any]) -> Any:
    """Return the function that a call runs: without partials, and ``__call__`` of an object."""
    found: Any = function
    while isinstance(found, functools.partial):
        found = cast("Any", found).func
    if inspect.isclass(found):
        return found
    return found if inspect.isroutine(found) else type(found).__call__


# Classes that a module may import for type checkers only.
_ALWAYS_KNOWN: dict[str, Any] = {"Message": Message, "Attempt": Attempt, "bmq": sys.modules["bmq"]}


def _namespace(function: Callable[..., Any]) -> dict[str, Any]:
    found: Any = target_of(function)
    if inspect.isclass(found):
        known = vars(sys.modules[found.__module__]) if found.__module__ in sys.modules else {}
    else:
        known = getattr(inspect.unwrap(found), "__globals__", {})
    return _ALWAYS_KNOWN | known


def hint_of(function: Callable[..., Any], annotation: Any) -> Any:
    """Return an annotation as a type; text is evaluated in the module of the function.

    Raises:
        Exception: the text contains an unknown name, or is not an annotation.
    """
    if annotation is EMPTY:
        return EMPTY
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(cast("Any", holder), _namespace(function), include_extras=True)["it"]


def returned_by(function: Callable[..., Any]) -> tuple[Any, str]:
    """Return the annotation of a function's result; ``empty``, and the reason for errors, if unknown."""
    found = target_of(function)
    if inspect.isclass(found):
        return found, ""
    try:
        annotation = hint_of(function, inspect.signature(found).return_annotation)
    except Exception as error:  # names resolvable only by type checkers
        return EMPTY, f"the annotation of the result cannot be read ({error})"
    return annotation, "the result has no annotation" if annotation is EMPTY else ""


def _is_generator(function: Callable[..., Any]) -> bool:
    target = target_of(function)
    return inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)


# ---- parameters


def parameters_of(
    function: Callable[..., Any], role: Role, state: Any = None, where: str = ""
) -> list[_Parameter]:
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


@dataclass(slots=True)
class _Reading:
    """The state while the signature of a function is read."""

    function: Callable[..., Any]
    role: Role
    state: Any
    name: str
    positional: list[inspect.Parameter] = field(default_factory=list[inspect.Parameter])

    def parameters(self) -> list[_Parameter]:
        role, name = self.role, self.name
        function: Any = self.function
        self._check_kind()
        try:
            signature = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            # Some functions written in C have no signature.
            return [] if role.dependency else [self._of_message("message")]
        self.positional = [
            each for each in signature if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        if not role.dependency and not self.positional:
            if any(each.kind is each.VAR_POSITIONAL for each in signature):
                return [self._of_message("message")]
            raise UsageError(
                f"{name} takes no parameter: {role.what} takes {role.takes}, as in def {name}(message)"
            )
        found: list[_Parameter] = []
        # A parameter that a partial gives by name keeps this argument.
        bound: set[str] = set()
        while isinstance(function, functools.partial):
            bound |= function.keywords.keys()
            function = function.func
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
                    f"{self.name}: parameter {each.name} is positional-only behind a parameter that keeps "
                    f"its default: move {each.name} to the front, or remove the '/'"
                )
            found.append(parameter)
        return found

    def _check_kind(self) -> None:
        function, role, name = self.function, self.role, self.name
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

    def _of_message(self, name: str) -> _Parameter:
        return _Parameter(name, _messages if self.role.batch else _message, Message)

    def _parameter(
        self, each: inspect.Parameter, found: list[_Parameter], keyword: bool
    ) -> _Parameter | None:
        """Return a parameter, or None for a parameter that keeps its default."""
        role = self.role
        first = not role.dependency and each is self.positional[0]
        if _is_marker(each.default):
            depends = each.default is Depends or isinstance(each.default, Depends)
            marker = "bmq.Depends" if depends else "bmq.Property"
            raise UsageError(
                f"{self.name}: parameter {each.name} has {marker} as its default: write the marker into the "
                f"annotation, {each.name}: Annotated[..., {marker}(...)]"
            )
        hint = self._hint(each, first)
        of, marks = hint, []
        if get_origin(hint) is Annotated:
            of, *more = get_args(hint)
            marks = [mark for mark in more if _is_marker(mark)]
        if len(marks) > 1:
            raise UsageError(
                f"{self.name}: parameter {each.name} has {len(marks)} markers of bmq: keep a single marker "
                "in Annotated, because an argument has one source"
            )
        if marks:
            return self._marked(each, of, marks[0], keyword)
        source = self._known(each, of, first)
        if source is not None:
            return _Parameter(each.name, source, of, keyword)
        if first:
            return self._value(each, hint)
        second = len(found) == 1 and not keyword and len(self.positional) > 1 and each is self.positional[1]
        unsaid = each.default is EMPTY and (of in _UNSAID or (role.batch and of is list))
        if second and unsaid and found[0].source is _value:
            return self._of_message(each.name)
        if each.default is not EMPTY:
            return None
        if self.state is ANY_STATE and inspect.isclass(of) and of not in _UNSAID:
            return _Parameter(each.name, _state, of, keyword)
        raise UsageError(self._no_source(each, of))

    def _hint(self, each: inspect.Parameter, first: bool) -> Any:
        try:
            return hint_of(self.function, each.annotation)
        except Exception as error:
            if each.default is not EMPTY and not first:
                return EMPTY
            raise UsageError(
                f"{self.name}: the annotation of parameter {each.name} cannot be read: {error}. Annotations "
                "must be names of the function's module, not of a function, nor of an import for type "
                "checkers only"
            ) from None

    def _marked(self, each: inspect.Parameter, of: Any, mark: Any, keyword: bool) -> _Parameter:
        if mark is Depends:
            raise UsageError(
                f"{self.name}: parameter {each.name} has bmq.Depends without a function: "
                f"Annotated[..., bmq.Depends(get_{each.name})]"
            )
        if isinstance(mark, Depends):
            function = mark.function
            _check_dependency(function)
            return _Parameter(each.name, lambda _, made: made[function], of, keyword, depends=mark)
        if self.role.batch:
            raise UsageError(
                f"{self.name}: parameter {each.name} is a property, and a batch has many messages: take "
                "messages: list[bmq.Message] and read message.properties"
            )
        if mark is Property or mark.name is None:
            mark = Property(each.name)
        where = f"{self.name}: parameter {each.name}"
        kind, read = property_reader(of, mark, where, each.default)
        source: _Source = lambda attempt, _: read(attempt.messages[0])  # noqa: E731
        return _Parameter(each.name, source, of, keyword, field=kind)

    def _known(self, each: inspect.Parameter, of: Any, first: bool) -> _Source | None:
        """Return the source named by a class."""
        role, state = self.role, self.state
        if of is Attempt:
            return _attempt
        if of is Message:
            if role.batch:
                raise UsageError(
                    f"{self.name} handles batches: annotate {each.name} with list[bmq.Message], because a "
                    "batch has many messages"
                )
            return _message
        if role.batch and get_origin(of) in (list, Sequence) and get_args(of) == (Message,):
            return _messages
        if inspect.isclass(state) and inspect.isclass(of) and of not in _UNSAID:
            if of is state:
                return _state
            try:
                return _state if not first and issubclass(state, of) else None
            except TypeError:
                return None
        return None

    def _value(self, each: inspect.Parameter, hint: Any) -> _Parameter:
        """Return the first parameter of a handler, without a marker."""
        if self.role.batch:
            if hint in _UNSAID or hint in (list, Sequence):
                return self._of_message(each.name)
            if get_origin(hint) not in (list, Sequence):
                raise UsageError(
                    f"{self.name} handles batches, and parameter {each.name} is annotated with "
                    f"{shown_type(hint)}: take a list of messages, or a list of values and optionally a list "
                    "of messages, as in (orders: list[Order], messages: list[bmq.Message])"
                )
            return _Parameter(each.name, _value, get_args(hint)[0])
        if hint in _UNSAID:
            return self._of_message(each.name)
        if get_origin(hint) is TypedMessage:
            return _Parameter(each.name, _typed, get_args(hint)[0])
        return _Parameter(each.name, _value, hint)

    def _no_source(self, each: inspect.Parameter, of: Any) -> str:
        role = self.role
        said = "has no annotation" if of is EMPTY else f"is annotated with {shown_type(of)}"
        message = "list[bmq.Message]" if role.batch else "bmq.Message"
        return (
            f"{self.name}: parameter {each.name} {said}, which has no source: {role.what} takes {role.takes}."
            f" Give {each.name} a default, or the annotation {message}, bmq.Attempt, the class of "
            "bmq.App(state=...), Annotated[..., bmq.Property(...)] or Annotated[..., bmq.Depends(...)]"
        )


def accepts(one: Shape[Any], other: Shape[Any]) -> bool:
    """Whether a handler of one type takes the values of another type: it is the same, or a subclass."""
    if one.of == other.of:
        return True
    return inspect.isclass(one.of) and inspect.isclass(other.of) and issubclass(other.of, one.of)


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


def _graph_of(
    parameters: Sequence[_Parameter], name: str, state: Any, overrides: Overrides, *, batch: bool = False
) -> list[_Dependency]:
    """Return all dependencies of a handler, each one behind its own dependencies.

    Raises:
        UsageError: a dependency cannot be called, depends on itself, or lives longer than its arguments.
    """
    nodes: dict[Callable[..., Any], _Dependency] = {}

    def visit(mark: Depends, path: list[Callable[..., Any]], user: str) -> None:
        function = overrides.get(mark.function, mark.function)
        label = name_of(function)
        if function in path:
            circle = " -> ".join(name_of(each) for each in [*path[path.index(function) :], function])
            raise UsageError(
                f"{name}: the dependency {label} depends on itself: {circle}. Move the shared part to a "
                "function that both use"
            )
        if (known := nodes.get(mark.function)) is not None:
            if known.scope != mark.scope:
                raise UsageError(
                    f"{name}: {label} is a dependency with scope={known.scope!r} and with "
                    f"scope={mark.scope!r}: use the same scope for both parameters"
                )
            return
        role = replace(_DEPENDENCY, batch=batch)
        user = f"{user}: dependency {label}"
        needed = parameters_of(function, role, state, user)
        for each in needed:
            if each.depends is not None:
                visit(each.depends, [*path, function], user)
            lasts = each.source is _state if each.depends is None else each.depends.scope == "app"
            if mark.scope == "app" and not lasts:
                raise UsageError(
                    f"{name}: the dependency {label} has the scope 'app', and its parameter {each.name} "
                    f"({shown_type(each.of)}) belongs to a single message: give bmq.Depends({label}) the "
                    "scope 'message', or remove the parameter"
                )
        generates = _is_generator(function)
        nodes[mark.function] = _Dependency(mark.function, function, generates, mark.scope, needed)

    for each in parameters:
        if each.depends is not None:
            visit(each.depends, [], name)
    return list(nodes.values())


# ---- plans


class GeneratedResults(list[Any]):
    """The results that an async generator has yielded."""


@dataclass(slots=True)
class HandlerContext:
    """The parts of an app, or of a call of :func:`bmq.consume`, that surround the attempts of its handlers.

    Attributes:
        middlewares: middlewares of the app and of the handler, the first outermost.
        builtin: middleware of the library, nearest to the handler.
        state: state of the app.
        overrides: replacements of the functions of dependencies.
        values: the app-scoped dependencies, by the function of the marker.
    """

    middlewares: tuple[Middleware, ...] = ()
    builtin: Middleware | None = None
    state: Any = None
    overrides: Overrides = field(default_factory=dict[Callable[..., Any], Callable[..., Any]])
    values: dict[Callable[..., Any], Any] = field(default_factory=dict[Callable[..., Any], Any])


class HandlerPlan:
    """A checked handler.

    Args:
        handler: the handler.
        codec: decodes messages without a content type; None for JSON.
        undecodable: called instead of the handler with undecodable messages; None to raise the
            :class:`bmq.Undecodable`.
        role: role of the handler.
        state: class of the app's state; None without a state, or :data:`ANY_STATE` for a router.

    Raises:
        UsageError: the handler or a dependency cannot be called, or the values cannot be decoded.

    Attributes:
        handler: the handler.
        name: name of the handler.
        is_async: whether the handler runs in the event loop.
        parameters: parameters that receive an argument.
        shape: type of the values; None for a handler without a value.
        role: role of the handler.
        undecodable: called instead of the handler with undecodable messages, if given.
        properties: Python types of the properties among the parameters, by name.
        yields: whether the handler is an async generator, whose results are :class:`GeneratedResults`.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        codec: str | Codec[Any] | None = None,
        undecodable: OnUndecodable | None = None,
        *,
        role: Role = HANDLER,
        state: Any = None,
    ) -> None:
        self.handler, self.role = handler, role
        self.undecodable, self._state = undecodable, state
        self.parameters = parameters_of(handler, role, state)
        self.name = name = name_of(handler)
        if undecodable is not None:
            _checks.function("undecodable", undecodable, 2)
        value = next((each for each in self.parameters if each.source in (_value, _typed)), None)
        if value is None and (codec is not None or undecodable is not None):
            raise UsageError(
                f"{name} takes messages, not values: codec and undecodable require a handler whose first "
                "parameter is annotated with a type of values"
            )
        self.yields = inspect.isasyncgenfunction(target_of(handler))
        self.is_async = self.yields or is_async(handler)
        if undecodable is not None and is_async(undecodable) is not self.is_async:
            raise UsageError(
                f"{name} and {name_of(undecodable)} must both run in the event loop ('async def'), or both "
                "in threads"
            )
        self.shape: Shape[Any] | None = None
        if value is not None:
            self.shape = Shape(value.of, codec or "application/json")
        self.properties: dict[str, type] = {}
        for user, each in self._users({}):
            if each.field is not None:
                self.properties[each.field.name] = each.field.kind
            elif user != name or self.is_async or each.depends is None:
                continue
            elif getattr(each.depends.function, "bmq_in_loop", False):
                raise UsageError(
                    f"{name}: parameter {each.name} belongs to the event loop, and {name} runs in a thread: "
                    f"make {name} 'async def', with its blocking parts in asyncio.to_thread; or take the "
                    f"result of an async dependency that uses {name_of(each.depends.function)}"
                )

    def _users(self, overrides: Overrides) -> Iterator[tuple[str, _Parameter]]:
        """Return all parameters of the handler and its dependencies, each with a name for errors."""
        for each in self.parameters:
            yield self.name, each
        for dependency in self.dependencies(overrides):
            for each in dependency.parameters:
                yield f"{self.name}: dependency {name_of(dependency.function)}", each

    def dependencies(self, overrides: Overrides) -> list[_Dependency]:
        """Return all dependencies, each one behind its own dependencies."""
        return _graph_of(self.parameters, self.name, self._state, overrides, batch=self.role.batch)

    def check_middlewares(self, middlewares: Sequence[Middleware], overrides: Overrides) -> None:
        """Check that dependencies of a middleware have their middleware.

        Such a dependency is a method with the attribute ``bmq_needs``: a text that ends with the name of the
        middleware, a method of the same object.

        Args:
            middlewares: all middlewares of the handler.
            overrides: replacements of the functions of dependencies.

        Raises:
            UsageError: a middleware is missing, or the dependency would be made outside of attempts.
        """
        for user, each in self._users(overrides):
            if each.depends is None:
                continue
            function = overrides.get(each.depends.function, each.depends.function)
            text, owner = getattr(function, "bmq_needs", None), getattr(function, "__self__", None)
            if not isinstance(text, str) or owner is None:
                continue
            if each.depends.scope == "app":
                raise UsageError(
                    f"{user}: parameter {each.name} has the scope 'app', and {name_of(function)} belongs "
                    "to a single attempt: remove the scope"
                )
            middleware = getattr(owner, text.rpartition(".")[2])
            if not any(_runs(given, middleware) for given in middlewares):
                raise UsageError(
                    f"{user}: parameter {each.name} needs {text}, and {self.name} runs without it: add "
                    f"middlewares=[{text}] to the handler, its router or its app"
                )

    @property
    def plain(self) -> Handler | None:
        """The handler as a function of a message; None if it takes more than the message and its value."""
        sources = [each.source for each in self.parameters if not each.keyword]
        if self.undecodable is not None or self.yields or len(sources) < len(self.parameters):
            return None
        handler, shape = self.handler, self.shape
        if sources == [_message]:
            return handler
        if shape is None or self.role.batch:
            return None
        decode = shape.decode
        if sources == [_value]:
            return lambda message: handler(decode(message))
        if sources == [_value, _message]:
            return lambda message: handler(decode(message), message)
        return None


def _runs(given: Any, middleware: Callable[..., Any]) -> bool:
    """Whether a middleware is another one, or wraps it by ``functools.wraps`` or ``functools.partial``."""
    while given is not None and given != middleware:
        given = given.func if isinstance(given, partial) else getattr(given, "__wrapped__", None)
    return given is not None


# ---- arguments and calls


def caller(function: Callable[..., Any], parameters: Iterable[_Parameter]) -> _Source:
    """Return a function that calls another function with its arguments."""
    places = [each.source for each in parameters if not each.keyword]
    names = {each.name: each.source for each in parameters if each.keyword}
    if len(places) == 1 and not names:
        (one,) = places
        return lambda attempt, made: function(one(attempt, made))
    return lambda attempt, made: function(
        *[each(attempt, made) for each in places],
        **{name: each(attempt, made) for name, each in names.items()},
    )


async def made(generates: bool, result: Any, opened: list[Any]) -> Any:
    """Return the result of a dependency, after the call of its function."""
    if not generates:
        return await result if inspect.iscoroutine(result) else result
    try:
        value: Any = await anext(result) if inspect.isasyncgen(result) else next(result)
    except (StopIteration, StopAsyncIteration):
        raise UsageError(
            f"the dependency {result.__qualname__} did not yield: a generator yields its result once"
        ) from None
    opened.append(result)
    return value


async def closed(opened: list[Any], error: BaseException | None) -> BaseException | None:
    """Run the code behind each ``yield``, the latest dependency first; return the final exception.

    A dependency may replace the exception, and cannot suppress it.
    """
    for generator in reversed(opened):
        try:
            if inspect.isasyncgen(generator):
                await (anext(generator) if error is None else generator.athrow(error))
                await generator.aclose()
            else:
                next(generator) if error is None else generator.throw(error)
                generator.close()
        except (StopIteration, StopAsyncIteration):
            continue
        except BaseException as raised:
            error = raised
            continue
        failed = UsageError(
            f"the dependency {generator.__qualname__} yielded twice: a generator yields its result once"
        )
        error = failed if error is None else error
    return error


@asynccontextmanager
async def app_dependencies(plans: Iterable[HandlerPlan], context: HandlerContext) -> AsyncGenerator[None]:
    """Make the app-scoped dependencies of handlers, each once, in a context; close them at the end.

    The end does not pass its exception to the generators: an app that fails closes them as usual.

    Raises:
        UsageError: an override cannot be called, or a generator does not yield once.
        BaseException: any exception of a dependency, when made or closed.
    """
    opened: list[Any] = []
    no_attempt = attempt_of((), 0, HandlerInfo("", context.state))
    try:
        for plan in plans:
            for each in plan.dependencies(context.overrides):
                if each.scope == "app" and each.replaced not in context.values:
                    result = caller(each.function, each.parameters)(no_attempt, context.values)
                    context.values[each.replaced] = await made(each.generates, result, opened)
        yield
    finally:
        if (error := await closed(opened, None)) is not None:
            raise error


# ---- The steps of a worker: each message in a context of its own, and measured
#
# A step is the time between two suspensions. A task has one context, so handlers that the worker awaited in
# it would see the context variables of earlier messages. A task for each message costs more than the handling
# of a message: 4.3 us, against 0.05 us to find that a handler has left its context as it was.

#: Seconds that a handler may block the event loop before a log line is written.
LONG: Final = 0.1


class BlockingCalls:
    """Logs that a handler blocks the event loop: the first time at once, later once a minute with a count.

    Args:
        logger: receives the lines.
        name: the name of the handler.
    """

    def __init__(self, logger: Log, name: str) -> None:
        self._name = name
        self._log = LogLimit(logger)

    def found(self, seconds: float) -> None:
        """Log a step of the given seconds in which the event loop was blocked.

        A request to stop that arrived meanwhile takes effect before the next message.
        """
        loop = asyncio.get_running_loop()
        turn_of(loop).hold(loop)
        self._log.warning(
            self._name,
            "%s blocked the event loop for %d ms: confirmations, heartbeats and other handlers waited. "
            "Make it a plain 'def', which runs in a thread, or move the part that blocks to "
            "asyncio.to_thread()",
            self._name,
            seconds * 1000,
        )


@coroutine
def own_context(blocking: BlockingCalls) -> Generator[BlockingCalls, Context, Context]:
    """Continue in a new copy of the worker's context, and return it. For code in :func:`in_own_contexts`.

    Args:
        blocking: logs long steps from now on.
    """
    return (yield blocking)


@coroutine
def in_own_contexts(
    work: Coroutine[Any, Any, None] | Generator[Any, Any, None], clock: Callable[[], float]
) -> Generator[Any, Any, None]:
    """Run a worker: the worker begins a new context whenever it yields a :class:`BlockingCalls`.

    The calling task remains the current task, and its cancellation reaches the worker. No step changes the
    context of the calling task.

    Args:
        work: the worker.
        clock: measures the steps.
    """
    new_context, send = copy_context().copy, work.send
    context = new_context()
    blocking: BlockingCalls | None = None
    step: Callable[[Any], Any] = send
    argument: Any = None
    while True:
        began = clock()
        try:
            waits_for = context.run(step, argument)
        except StopIteration:
            return
        if blocking is not None and (spent := clock() - began) >= LONG:
            blocking.found(spent)
        if type(waits_for) is BlockingCalls:
            blocking, context = waits_for, new_context()
            step, argument = send, context
            continue
        try:
            argument = yield waits_for
            step = send
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as error:
            step, argument = work.throw, error


# ---- The deadline of calls, and middlewares around calls

P = ParamSpec("P")
T = TypeVar("T")


def too_late(seconds: float) -> TimeoutError:
    """Return the error of an attempt beyond the deadline."""
    return TimeoutError(f"the handler was not done within its deadline of {seconds:g} s")


def chained(middlewares: Sequence[Middleware], call: Call) -> Call:
    """Return a call surrounded by middlewares, the first middleware outermost."""
    for middleware in reversed(middlewares):
        call = _around(middleware, call)
    return call


def _around(middleware: Middleware, inner: Call) -> Call:
    """Return a call inside a middleware.

    A middleware that forgets ``await`` returns the coroutine of the rest, or drops it. Without a check, the
    message would be confirmed, and the handler would never have run.
    """

    async def around(attempt: Attempt) -> Any:
        latest: Awaitable[Any] | None = None

        def rest() -> Awaitable[Any]:
            nonlocal latest
            latest = call = inner(attempt)
            return call

        result = await middleware(attempt, rest)
        if getattr(latest, "cr_frame", None) is not None:
            raise _unfinished(middleware, latest)
        return result

    return around


def _unfinished(middleware: Middleware, call: Any) -> UsageError:
    """Return the error of a middleware that has not waited for the rest of an attempt."""
    if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
        call.close()  # otherwise a RuntimeWarning, which names no middleware
        what = "called call_next() without awaiting it, so the handler has not run"
    else:
        what = "returned while the handler was running"
    return UsageError(f"the middleware {name_of(middleware)} {what}: write 'result = await call_next()'")


def timed(call: Callable[P, Awaitable[T]], seconds: float) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a call with a deadline. A call that ignores its cancellation is too late, too."""
    deadlines = _Deadlines(seconds)

    async def within(*arguments: P.args, **names: P.kwargs) -> T:
        task, before = deadlines.begin()
        try:
            result = await call(*arguments, **names)
        except asyncio.CancelledError:
            if not deadlines.end(task) or task.uncancel() > before:
                raise  # cancelled from outside
        except BaseException:
            if deadlines.end(task):
                task.uncancel()
            raise
        else:
            if not deadlines.end(task):
                return result
            task.uncancel()
        raise too_late(seconds)

    return within


class _Deadlines:
    """Cancels the tasks whose calls take too long: one timer for all, as most calls end in time.

    With ``asyncio.timeout`` and its timer for each call, handling a message took 1.3 times the CPU time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # The tasks with a call, and the time at which it is too late, in this order; None if it is too late.
        self._due: dict[asyncio.Task[Any], float | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> tuple[asyncio.Task[Any], int]:
        """Note the begin of a call; return the task, and how often the task is cancelled already."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        self._due[task] = due = loop.time() + self._seconds
        if self._loop is not loop:
            self._loop = loop
            loop.call_at(due, self._look)
        return task, task.cancelling()

    def end(self, task: asyncio.Task[Any]) -> bool:
        """Note the end of a call; return whether it was too late, and the task was cancelled."""
        return self._due.pop(task) is None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = None
        for task, due in self._due.items():
            if due is None:
                continue
            if due > loop.time():
                self._loop = loop
                loop.call_at(due, self._look)
                return
            self._due[task] = None
            task.cancel()


# ---- Threads for plain functions as handlers
#
# Threads cannot be stopped: a call continues after the deadline. Three rules hold meanwhile.
#
# - The deadline starts with the call of the function. Each worker has its own thread: no call waits for a
#   free thread.
# - A worker whose thread is still running takes no message, and the lane stays closed. Two messages of a
#   key are never handled at once, and a message is never handled twice at once. After a while another
#   worker takes its place, but for one worker: the number of threads has a bound, and a single worker stays
#   the only one.
# - The threads do not keep the process alive. After the grace period the process may end in the middle of a
#   call. The message is unconfirmed, and the broker delivers the message again.


class _ThreadCall:
    """One call of a function in a thread.

    Attributes:
        began: when the function began, by the monotonic clock; None before.
        ended: done when the function has ended.
        error: the exception of the function, or None.
        result: the return value of the function.
        closing: closes the dependencies of the function after its end, if the call ended late.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        context = copy_context()
        self._run: Callable[[], Any] = lambda: context.run(run)
        self._now = _world.current().monotonic
        self.began: float | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: BaseException | None = None
        self.result: object = None
        self.closing: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Call the function, in a thread."""
        self.began = self._now()
        try:
            self.result = self._run()
        except BaseException as error:
            self.error = error
        with suppress(RuntimeError):  # the event loop is closed
            self.ended.get_loop().call_soon_threadsafe(self.ended.set_result, None)


class _Threads:
    """Threads that start on demand and are reused.

    Args:
        name: the beginning of each thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[_ThreadCall | None]] = []
        self._count = 0
        self._closed = False

    def start(self, run: Callable[[], Any]) -> _ThreadCall:
        """Begin to call a function in an idle or new thread."""
        call = _ThreadCall(run)
        if _world.current().simulated:
            asyncio.get_running_loop().run_in_executor(None, call.run)
            return call
        jobs: SimpleQueue[_ThreadCall | None]
        if self._idle:
            jobs = self._idle.pop()
        else:
            jobs = SimpleQueue()
            self._count += 1
            name = f"{self._name}_{self._count}"
            threading.Thread(target=_work, args=(jobs,), name=name, daemon=True).start()
        jobs.put(call)
        call.ended.add_done_callback(lambda _: jobs.put(None) if self._closed else self._idle.append(jobs))
        return call

    def close(self) -> None:
        """End each thread after its present call, without waiting."""
        self._closed = True
        for jobs in self._idle:
            jobs.put(None)


def _work(jobs: SimpleQueue[_ThreadCall | None]) -> None:
    while (call := jobs.get()) is not None:
        call.run()
        del call  # an idle thread keeps no message


# ---- Attempts of a handler: middlewares, a deadline, and a call in the event loop or in a thread
#
# From the outside to the inside, an attempt runs the interceptors of the session, the middlewares of the app,
# of the routers and of the handler, the deadline, the middlewares of the library, the dependencies, and the
# handler. A handler of a message or a value without middlewares is called directly.
#
# All this runs in a context of its own: a copy of the worker's context, which the caller makes.


class Invoker:
    """Calls a handler. Each task makes one call at a time.

    Args:
        plan: the handler.
        timeout: seconds for a call; None for no limit.
        context: middlewares and dependencies.
        observers: interceptors, as the outermost middlewares.
        key_of: returns the ordering key of a message; None without a key.

    Attributes:
        name: name of the handler.
        direct: makes the first attempt with a message, if the handler is async.
        shape: type of the values; None if the handler takes messages.
        timeout: seconds for a call; None for no limit.
        blocking: logs blocking of the event loop.
        threads: run a handler that is not async.
        cut_off: whether the running attempts were cancelled at the end of the workers, and have no outcome,
            even if a handler takes the cancellation back.
    """

    def __init__(
        self,
        plan: HandlerPlan,
        timeout: float | None,
        context: HandlerContext,
        observers: Sequence[Middleware] = (),
        key_of: Callable[[Message], Hashable] | None = None,
    ) -> None:
        self.name = plan.name
        self.shape = plan.shape
        self.timeout = timeout
        self.blocking = BlockingCalls(logger, self.name)
        self.cut_off = False
        # Separate threads: the loop's default threads are few, and shared with the rest of the program.
        self.threads = _Threads(self.name)
        # Calls in threads still running after the deadline, by calling task.
        self._late: dict[asyncio.Task[Any] | None, _ThreadCall] = {}
        middlewares = (*observers, *context.middlewares)
        self._info = info = HandlerInfo(self.name, context.state, key_of, plan.shape)
        call = self._call_of(plan, context)
        if context.builtin is not None:
            call = chained((context.builtin,), self._unless_cancelled(call))
        if timeout is not None and plan.is_async:
            call = timed(call, timeout)
        self._call = call = chained(middlewares, call)
        self.direct: Callable[[Message], Awaitable[object]] | None = None
        if plan.is_async:
            plain = plan.plain if timeout is None and not middlewares and context.builtin is None else None
            self.direct = cast("Any", plain) or (lambda message: call(attempt_of((message,), 1, info)))

    def _call_of(self, plan: HandlerPlan, context: HandlerContext) -> Call:
        """Return a function that makes the dependencies of an attempt, and calls the handler.

        Raises:
            UsageError: an override cannot be called.
        """
        making = [each for each in plan.dependencies(context.overrides) if each.scope == "message"]
        steps = [(each.replaced, each.generates, caller(each.function, each.parameters)) for each in making]
        lasting, undecodable, in_loop = context.values, plan.undecodable, plan.is_async
        if in_loop and not steps and undecodable is None and not plan.yields:
            handler = caller(plan.handler, plan.parameters)
            return lambda attempt: handler(attempt, lasting)
        prepared = caller(partial(partial, plan.handler), plan.parameters)
        decodes = not plan.role.batch and plan.shape is not None

        async def prepare(attempt: Attempt, opened: list[Any]) -> Callable[[], Any]:
            if decodes:
                _ = attempt.value
            found = lasting.copy() if steps else lasting
            for function, generates, make in steps:
                result = make(attempt, found)
                if generates or type(result) is CoroutineType:
                    result = await made(generates, result, opened)
                found[function] = result
            run: Callable[[], Any] = prepared(attempt, found)
            return run

        in_time: Callable[[Attempt, list[Any]], Awaitable[Callable[[], Any]]] = prepare
        if steps and self.timeout is not None and not in_loop:
            in_time = timed(prepare, self.timeout)

        async def call(attempt: Attempt) -> Any:
            opened: list[Any] = []
            instead = False
            try:
                try:
                    run = await in_time(attempt, opened)
                except Undecodable as error:
                    if undecodable is None:
                        raise
                    run, instead = partial(cast("Any", undecodable), attempt.messages[0], error), True
                if not in_loop:
                    result = await self.run(run)
                elif plan.yields and not instead:
                    result = GeneratedResults([each async for each in run()])
                else:
                    result = await run()
            except BaseException as error:
                if opened and not self._closed_late(opened, error):
                    last = await closed(opened, error)
                    if last is not error and last is not None:
                        raise last from last.__cause__
                raise
            if opened and (failed := await closed(opened, None)) is not None:
                raise failed
            return None if instead else result

        return call

    def _unless_cancelled(self, call: Call) -> Call:
        """Return a call that ends with a CancelledError if it was cancelled meanwhile.

        For calls whose outcome is posted: whatever a cancelled handler returns or raises is not an outcome.
        """

        async def kept(attempt: Attempt) -> Any:
            task = cast("asyncio.Task[Any]", asyncio.current_task())
            error: BaseException | None = None
            result: Any = None
            try:
                result = await call(attempt)
            except (Exception, BaseExceptionGroup) as raised:
                if not (task.cancelling() or self.cut_off):
                    raise
                error = raised
            if self.cut_off and not task.cancelling():
                task.cancel()  # the handler has taken the cancellation back
            if task.cancelling():
                raise asyncio.CancelledError from error
            return result

        return kept

    async def __call__(self, messages: Sequence[Message], number: int, value: Any = UNSET) -> None:
        """Make an attempt with a message or a batch.

        Args:
            messages: the message, or the messages of a batch.
            number: number of the attempt.
            value: list of values of a batch.

        Raises:
            TimeoutError: the deadline has passed.
            BaseException: any exception of the handler.

        Cancelling the call cancels an async handler. A thread continues, and its result is dropped.
        """
        refuse_awaitable(self.name, await self._call(attempt_of(messages, number, self._info, value)))

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in a thread, and return its result.

        Raises:
            TimeoutError: the deadline has passed.
            UsageError: the function returned an awaitable.
            BaseException: any exception of the function.
        """
        task = asyncio.current_task()
        if (earlier := self._late.get(task)) is not None and not earlier.ended.done():
            # A middleware repeats an attempt: a message is never handled twice at once.
            await asyncio.wait((earlier.ended,), timeout=self.timeout)
            if not earlier.ended.done():
                assert self.timeout is not None
                raise too_late(self.timeout)
        self._late[task] = call = self.threads.start(function)
        # The deadline starts with the function, whose start a busy process may delay.
        while not call.ended.done():
            left = self.timeout
            if self.timeout is not None and call.began is not None:
                left = call.began + self.timeout - _world.monotonic()
                if left <= 0:
                    raise too_late(self.timeout)
            # Not awaited itself: a cancellation of the task must not cancel the future.
            await asyncio.wait((call.ended,), timeout=left)
        del self._late[task]
        if call.error is not None:
            raise call.error
        refuse_awaitable(self.name, call.result)
        return call.result

    def _closed_late(self, opened: list[Any], error: BaseException) -> bool:
        """Close dependencies once the current task's thread has ended; return False if no thread runs."""
        call = self._late.get(asyncio.current_task())
        if call is None or call.ended.done():
            return False

        async def close(call: _ThreadCall = call) -> None:
            await asyncio.wait((call.ended,))  # not awaited itself, as in run()
            last = await closed(opened, error)
            if last is not None and last is not error:
                logger.error("a dependency of %s failed at its end", self.name, exc_info=last)

        call.closing = asyncio.create_task(close())
        return True

    def late(self) -> asyncio.Future[None] | None:
        """Return, and forget, the end of the current task's late call, if the thread still runs."""
        call = self._late.pop(asyncio.current_task(), None) if self._late else None
        if call is None or call.ended.done():
            return None
        return call.ended if call.closing is None else call.closing


def refuse_awaitable(name: str, result: object) -> None:
    """Refuse a result that the handler should have awaited: its work has not been done.

    Raises:
        UsageError: the result is a coroutine, or another awaitable.
    """
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(
            f"{name} returned an awaitable that nothing awaits: make it 'async def', with 'return await ...'"
        )
