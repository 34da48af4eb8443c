# SPDX-License-Identifier: Apache-2.0
"""Handlers and their dependencies: from a signature to one function of the attempt."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from bmq import _checks
from bmq._logging import Log
from bmq.client.attempt import Attempt, HandlerInfo, attempt_of
from bmq.client.message import Message
from bmq.client.typed import TypedMessage, typed_message
from bmq.codecs import Codec, Property, Shape
from bmq.codecs.fields import Field, property_reader
from bmq.errors import UsageError
from bmq.workers._options import Handler, Middleware, OnUndecodable, is_async, name_of

__all__ = [
    "ANY_STATE",
    "BATCH",
    "HANDLER",
    "Depends",
    "GeneratedResults",
    "HandlerContext",
    "HandlerPlan",
    "Overrides",
    "Role",
    "S",
    "State",
    "app_dependencies",
    "caller",
    "checked_state",
    "closed",
    "closed_late",
    "made",
    "parameters_of",
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
        if isinstance(given, Depends):
            raise UsageError("the function of bmq.Depends must be a function, not another bmq.Depends")
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
_BATCH_DEPENDENCY: Final = Role("a dependency", "only parameters with a source", batch=True, dependency=True)


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
        role = _BATCH_DEPENDENCY if batch else _DEPENDENCY
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
        builtins: middlewares of the library, nearest to the handler.
        state: state of the app.
        overrides: replacements of the functions of dependencies.
        values: the app-scoped dependencies, by the function of the marker.
    """

    middlewares: tuple[Middleware, ...] = ()
    builtins: tuple[Middleware, ...] = ()
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


async def closed_late(name: str, opened: list[Any], error: BaseException) -> None:
    """Close dependencies after the end of a late thread; log an exception."""
    last = await closed(opened, error)
    if last is not None and last is not error:
        logger.error("a dependency of %s failed at its end", name, exc_info=last)


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
