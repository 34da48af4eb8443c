# SPDX-License-Identifier: Apache-2.0
"""Calls of a handler with its arguments: a signature becomes one function of the attempt.

A handler of a message, a value, or both, keeps the form ``function(message)``, and costs nothing more. All
other handlers become ``call(attempt)``: the value is decoded, the dependencies are made in the order of their
own dependencies, the handler is called, and the generators among the dependencies are closed in reverse
order. A handler in a thread has its dependencies made and closed in the event loop; after a deadline the
dependencies stay open until the thread has ended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CoroutineType
from typing import Any, Protocol, TypeAlias, cast

from bmq import _checks
from bmq._logging import Log
from bmq.client.attempt import Attempt
from bmq.client.message import Message
from bmq.client.typed import TypedMessage, typed_message
from bmq.codecs import Codec, Shape
from bmq.codecs.fields import property_reader
from bmq.errors import Undecodable, UsageError
from bmq.workers._handlers import Handler, is_async, name_of, too_late
from bmq.workers._middleware import Call, Middleware
from bmq.workers._options import OnUndecodable
from bmq.workers._parameters import (
    HANDLER,
    Kind,
    Node,
    Parameter,
    Role,
    Source,
    graph_of,
    needed_by,
    parameters_of,
    target_of,
)

__all__ = [
    "InThread",
    "Overrides",
    "Plan",
    "Surroundings",
    "Yielded",
    "app_dependencies",
    "planned",
]

logger = Log("bmq.workers")

#: Replacements of the functions of dependencies.
Overrides: TypeAlias = Mapping[Callable[..., Any], Callable[..., Any]]

# Returns an argument, for an attempt and the message-scoped dependencies made so far.
_Get: TypeAlias = Callable[[Attempt, list[Any]], Any]


class _Instead(partial[Any]):
    """A call in place of the handler, whose result is not the handler's."""


class Yielded(list[Any]):
    """The results that an async generator has yielded."""


@dataclass(slots=True)
class Surroundings:
    """The parts of an app, or of a call of :func:`bmq.consume`, that surround the attempts of its handlers.

    Attributes:
        middlewares: middlewares of the app and of the handler, the first outermost.
        builtins: middlewares of the library, nearest to the handler.
        state: state of the app.
        overrides: replacements of the functions of dependencies.
        values: the app-scoped dependencies, by function.
    """

    middlewares: tuple[Middleware, ...] = ()
    builtins: tuple[Middleware, ...] = ()
    state: Any = None
    overrides: Overrides = field(default_factory=dict[Callable[..., Any], Callable[..., Any]])
    values: Mapping[Callable[..., Any], Any] = field(default_factory=dict[Callable[..., Any], Any])


class InThread(Protocol):
    """Runs functions in threads."""

    def run(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Run a function and return its result."""
        ...

    def afterwards(self, closing: Callable[[], Awaitable[None]]) -> bool:
        """Call a function once the current task's thread has ended; return False if no thread runs."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked handler.

    Attributes:
        handler: the handler.
        name: name of the handler.
        is_async: whether the handler runs in the event loop.
        parameters: parameters that receive an argument.
        shape: type of the values; None for a handler without a value.
        codec: the given codec.
        undecodable: called instead of the handler with undecodable messages.
        role: role of the handler.
        state: class of the app's state, or None.
        plain: the handler as a function of a message, if the handler takes only the message and its value.
        properties: Python types of the properties among the parameters, by name.
        yields: whether the handler is an async generator, whose results are a :class:`Yielded`.
    """

    handler: Callable[..., Any]
    name: str
    is_async: bool
    parameters: tuple[Parameter, ...]
    shape: Shape[Any] | None
    codec: str | Codec[Any] | None
    undecodable: OnUndecodable | None
    role: Role
    state: Any
    plain: Handler | None
    properties: dict[str, type]
    yields: bool

    def nodes(self, overrides: Overrides) -> list[Node]:
        """Return all dependencies; see :func:`graph_of`."""
        return graph_of(self.parameters, self.name, self.state, overrides, batch=self.role.batch)

    def check_middlewares(self, middlewares: Sequence[Middleware], overrides: Overrides) -> None:
        """Check that dependencies of a middleware have their middleware.

        Args:
            middlewares: all middlewares of the handler.
            overrides: replacements of the functions of dependencies.

        Raises:
            UsageError: a middleware is missing, or the dependency would be made outside of attempts.
        """
        nodes = self.nodes(overrides)
        users: list[tuple[str, Sequence[Parameter]]] = [(self.name, self.parameters)]
        users += [(f"{self.name}: dependency {name_of(each.function)}", each.parameters) for each in nodes]
        for user, parameters in users:
            for each in parameters:
                if each.source is not Source.DEPENDS:
                    continue
                function = overrides.get(each.mark.function, each.mark.function)
                needed = needed_by(function)
                if needed is None:
                    continue
                text, middleware = needed
                if each.mark.scope == "app":
                    raise UsageError(
                        f"{user}: parameter {each.name} has the scope 'app', and {name_of(function)} belongs "
                        "to a single attempt: remove the scope"
                    )
                if not any(_runs(given, middleware) for given in middlewares):
                    raise UsageError(
                        f"{user}: parameter {each.name} needs {text}, and {self.name} runs without it: add "
                        f"middlewares=[{text}] to the handler, its router or its app"
                    )

    def with_codec(self, codec: Codec[Any]) -> Plan:
        """Return the plan with the codec of a typed queue."""
        return planned(self.handler, codec, self.undecodable, role=self.role, state=self.state)

    def of_state(self, state: Any) -> Plan:
        """Return the plan of a handler of a router, for an app with a state.

        Raises:
            UsageError: the state is of another class than a parameter of the handler or of a dependency.
        """
        return planned(self.handler, self.codec, self.undecodable, role=self.role, state=state)

    def bind(self, around: Surroundings, threads: InThread | None, timeout: float | None) -> Call:
        """Return a function that calls the handler in an attempt.

        Args:
            around: overrides and app-scoped dependencies.
            threads: runs the handler, if the handler is not async.
            timeout: seconds for the dependencies of a handler in a thread; None for no limit.

        Raises:
            UsageError: an override cannot be called.
        """
        making = [node for node in self.nodes(around.overrides) if node.scope == "message"]
        places = {node.function: index for index, node in enumerate(making)}

        def get(parameter: Parameter) -> _Get:
            return _getter(parameter, self, around, places)

        steps = [(node.kind, _caller(node.function, node.parameters, get)) for node in making]
        if threads is None and self.undecodable is None and not self.yields:
            handler = _caller(self.handler, self.parameters, get)
            if not steps:
                return lambda attempt: handler(attempt, [])
            if not any(kind in _GENERATORS for kind, _ in steps):
                return _straight(steps, handler, decodes=self.decodes)
        prepared = _caller(partial(partial, self.handler), self.parameters, get)
        return _whole(self, steps, prepared, threads, timeout)

    @property
    def decodes(self) -> bool:
        """Whether a value is decoded before the dependencies are made."""
        return not self.role.batch and self.shape is not None


def planned(
    handler: Callable[..., Any],
    codec: str | Codec[Any] | None = None,
    undecodable: OnUndecodable | None = None,
    *,
    role: Role = HANDLER,
    state: Any = None,
) -> Plan:
    """Check a handler and return its plan.

    Args:
        handler: the handler.
        codec: decodes messages without a content type; None for JSON.
        undecodable: called instead of the handler with undecodable messages; None to raise the
            :class:`bmq.Undecodable`.
        role: role of the handler.
        state: class of the app's state; None without a state, or :data:`ANY_STATE` for a router.

    Raises:
        UsageError: the handler or a dependency cannot be called, or the values cannot be decoded.
    """
    parameters = parameters_of(handler, role, state)
    name = name_of(handler)
    if undecodable is not None:
        _checks.function("undecodable", undecodable, 2)
    value = next((each for each in parameters if each.source in (Source.VALUE, Source.TYPED)), None)
    if value is None and (codec is not None or undecodable is not None):
        raise UsageError(
            f"{name} takes messages, not values: codec and undecodable require a handler whose first "
            "parameter is annotated with a type of values"
        )
    yields = inspect.isasyncgenfunction(target_of(handler))
    if undecodable is not None and is_async(undecodable) is not (yields or is_async(handler)):
        raise UsageError(
            f"{name} and {name_of(undecodable)} must both run in the event loop ('async def'), or both in "
            "threads"
        )
    if not (yields or is_async(handler)):
        for each in parameters:
            if each.source is Source.DEPENDS and getattr(each.mark.function, "bmq_in_loop", False):
                raise UsageError(
                    f"{name}: parameter {each.name} belongs to the event loop, and {name} runs in a thread: "
                    f"make {name} 'async def', with its blocking parts in asyncio.to_thread; or take the "
                    f"result of an async dependency that uses {name_of(each.mark.function)}"
                )
    shape: Shape[Any] | None = None if value is None else Shape(value.of, codec or "application/json")
    graph = graph_of(parameters, name, state, {}, batch=role.batch)
    properties: dict[str, type] = {}
    for user, each in [
        *((name, each) for each in parameters),
        *(
            (f"{name}: dependency {name_of(node.function)}", each)
            for node in graph
            for each in node.parameters
        ),
    ]:
        if each.source is Source.PROPERTY:
            kind, _ = property_reader(each.of, each.mark, f"{user}: parameter {each.name}", each.default)
            properties[kind.name] = kind.kind
    sources = [each.source for each in parameters if not each.keyword]
    plain: Handler | None = None
    if not role.batch and not yields and len(sources) == len(parameters):
        if sources == [Source.MESSAGE]:
            plain = handler
        elif shape is not None and sources in _OF_A_VALUE:
            plain = _decoding(handler, shape, undecodable, sources)
    return Plan(
        handler,
        name,
        yields or is_async(handler),
        tuple(parameters),
        shape,
        codec,
        undecodable,
        role,
        state,
        plain,
        properties,
        yields,
    )


def _runs(given: Any, middleware: Callable[..., Any]) -> bool:
    """Whether a middleware is another one, or wraps it by ``functools.wraps`` or ``functools.partial``."""
    while given is not None and given != middleware:
        given = given.func if isinstance(given, partial) else getattr(given, "__wrapped__", None)
    return given is not None


#: Sources of handlers that need only a message and its value.
_OF_A_VALUE = ([Source.VALUE], [Source.TYPED], [Source.VALUE, Source.MESSAGE])


def _decoding(
    handler: Callable[..., Any],
    shape: Shape[Any],
    undecodable: Callable[[Message, Undecodable], Any] | None,
    sources: Sequence[Source],
) -> Handler:
    """Convert a function of a value to a function of a message."""
    whole, both = sources[0] is Source.TYPED, len(sources) == 2

    def call(message: Message) -> Any:
        try:
            if whole:
                value: Any = TypedMessage(message, shape)
                _ = value.value
            else:
                value = shape.decode(message)
        except Undecodable as error:
            if undecodable is None:
                raise
            return undecodable(message, error)
        return handler(value, message) if both else handler(value)

    async def awaited(message: Message) -> None:
        result: Awaitable[object] = call(message)
        await result

    result = awaited if is_async(handler) else call
    result.__qualname__ = name_of(handler)
    return result


# ---- arguments


def _getter(parameter: Parameter, plan: Plan, around: Surroundings, places: dict[Any, int]) -> _Get:
    """Return the function that returns an argument."""
    source = parameter.source
    if source is Source.DEPENDS:
        function = around.overrides.get(parameter.mark.function, parameter.mark.function)
        if parameter.mark.scope == "app":
            value = around.values[function]
            return lambda _attempt, _found: value
        place = places[function]
        return lambda _attempt, found: found[place]
    if source is Source.PROPERTY:
        _, read = property_reader(parameter.of, parameter.mark, parameter.name, parameter.default)
        return lambda attempt, _found: read(attempt.messages[0])
    if source is Source.STATE:
        state = around.state
        return lambda _attempt, _found: state
    if source is Source.TYPED:
        shape = plan.shape
        assert shape is not None
        return lambda attempt, _found: typed_message(attempt.messages[0], shape, attempt.value)
    return _GETTERS[source, plan.role.batch]


def _first(attempt: Attempt, _found: list[Any]) -> Any:
    return attempt.messages[0]


def _value(attempt: Attempt, _found: list[Any]) -> Any:
    return attempt.value


_GETTERS: dict[tuple[Source, bool], _Get] = {
    (Source.VALUE, False): _value,
    (Source.VALUE, True): _value,
    (Source.MESSAGE, False): _first,
    # The list itself: the indexes of PartlyFailed count in the order in which the handler leaves the list.
    (Source.MESSAGES, True): lambda attempt, _found: attempt.messages,
    (Source.ATTEMPT, False): lambda attempt, _found: attempt,
    (Source.ATTEMPT, True): lambda attempt, _found: attempt,
}


def _caller(
    function: Callable[..., Any], parameters: Iterable[Parameter], get: Callable[[Parameter], _Get]
) -> _Get:
    """Return a function that calls another function with its arguments."""
    places = [get(each) for each in parameters if not each.keyword]
    names = {each.name: get(each) for each in parameters if each.keyword}
    if names:
        return lambda attempt, found: function(
            *[each(attempt, found) for each in places],
            **{name: each(attempt, found) for name, each in names.items()},
        )
    if not places:
        return lambda _attempt, _found: function()
    if len(places) == 1:
        (one,) = places
        return lambda attempt, found: function(one(attempt, found))
    if len(places) == 2:
        one, two = places
        return lambda attempt, found: function(one(attempt, found), two(attempt, found))
    if len(places) == 3:
        one, two, three = places
        return lambda attempt, found: function(
            one(attempt, found), two(attempt, found), three(attempt, found)
        )
    return lambda attempt, found: function(*[each(attempt, found) for each in places])


# ---- calls

_GENERATORS = (Kind.GENERATOR, Kind.ASYNC_GENERATOR)
_Steps: TypeAlias = Sequence[tuple[Kind, _Get]]


def _straight(steps: _Steps, handler: _Get, *, decodes: bool) -> Call:
    """Return the call of an async handler with functions and coroutines as dependencies."""

    async def call(attempt: Attempt) -> Any:
        if decodes:
            _ = attempt.value
        found: list[Any] = []
        for kind, make in steps:
            made = make(attempt, found)
            if kind is Kind.COROUTINE:
                made = await made
            elif type(made) is CoroutineType:
                _refuse(cast("Any", made))
            found.append(made)
        return await handler(attempt, found)

    return call


def _whole(
    plan: Plan, steps: _Steps, prepared: _Get, threads: InThread | None, timeout: float | None
) -> Call:
    """Return the call of any handler; ``prepared`` returns a function without arguments."""
    decodes, undecodable = plan.decodes, plan.undecodable

    async def make(attempt: Attempt, opened: list[Any]) -> Callable[[], Any]:
        if decodes:
            _ = attempt.value
        found: list[Any] = []
        for kind, create in steps:
            made = create(attempt, found)
            if kind is Kind.COROUTINE:
                made = await made
            elif kind in _GENERATORS:
                made = await _entered(made, opened)
            elif type(made) is CoroutineType:
                _refuse(cast("Any", made))
            found.append(made)
        run: Callable[[], Any] = prepared(attempt, found)
        return run

    async def made_in_time(attempt: Attempt, opened: list[Any]) -> Callable[[], Any]:
        try:
            if timeout is None or threads is None or not steps:
                return await make(attempt, opened)
            deadline = asyncio.timeout(timeout)
            try:
                async with deadline:
                    return await make(attempt, opened)
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise too_late(timeout) from None
        except Undecodable as error:
            if undecodable is None:
                raise
            return _Instead(undecodable, attempt.messages[0], error)

    async def call(attempt: Attempt) -> Any:
        opened: list[Any] = []
        try:
            run = await made_in_time(attempt, opened)
            if threads is not None:
                result = await threads.run(run)
            elif plan.yields and not isinstance(run, _Instead):
                result = Yielded([each async for each in run()])
            else:
                result = await run()
        except BaseException as error:
            if not opened:
                raise
            if threads is not None and threads.afterwards(partial(_closed_late, plan.name, opened, error)):
                raise
            last = await _closed(opened, error)
            if last is not error and last is not None:
                raise last from last.__cause__
            raise
        if opened and (failed := await _closed(opened, None)) is not None:
            raise failed
        return None if isinstance(run, _Instead) else result

    return call


async def _entered(generator: Any, opened: list[Any]) -> Any:
    """Return the value that a generator yields first."""
    try:
        made = await anext(generator) if inspect.isasyncgen(generator) else next(generator)
    except (StopIteration, StopAsyncIteration):
        raise UsageError(
            f"the dependency {generator.__qualname__} did not yield: a generator yields its result once"
        ) from None
    opened.append(generator)
    return made


async def _closed(opened: list[Any], error: BaseException | None) -> BaseException | None:
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


async def _closed_late(name: str, opened: list[Any], error: BaseException) -> None:
    """Close dependencies after the end of a late thread; log an exception."""
    last = await _closed(opened, error)
    if last is not None and last is not error:
        logger.error("a dependency of %s failed at its end", name, exc_info=last)


def _refuse(made: CoroutineType[Any, Any, Any]) -> None:
    name = made.__qualname__.rpartition("<locals>.")[2]
    made.close()
    raise UsageError(
        f"a dependency returned the coroutine {name}: make the function of bmq.Depends 'async def'"
    )


# ---- app-scoped dependencies


@asynccontextmanager
async def app_dependencies(
    plans: Iterable[Plan], around: Surroundings
) -> AsyncGenerator[dict[Callable[..., Any], Any]]:
    """Make the app-scoped dependencies of handlers, each once; close the dependencies at the end.

    The end does not pass its exception to the generators: an app that fails closes them as usual.

    Raises:
        UsageError: an override cannot be called.
        BaseException: any exception of a dependency, when made or closed.
    """
    values: dict[Callable[..., Any], Any] = {}
    stack = AsyncExitStack()
    try:
        for plan in plans:
            for node in plan.nodes(around.overrides):
                if node.scope != "app" or node.function in values:
                    continue
                inside = Surroundings(state=around.state, overrides=around.overrides, values=values)
                get = partial(_getter, plan=plan, around=inside, places={})
                values[node.function] = await _made(node, get, stack)
        yield values
    finally:
        await stack.aclose()


async def _made(node: Node, get: Callable[[Parameter], _Get], stack: AsyncExitStack) -> Any:
    nothing: Any = None
    function: Callable[..., Any] = node.function
    if node.kind is Kind.GENERATOR:
        function = contextmanager(function)
    elif node.kind is Kind.ASYNC_GENERATOR:
        function = asynccontextmanager(function)
    made = _caller(function, node.parameters, get)(nothing, [])
    if node.kind is Kind.GENERATOR:
        return stack.enter_context(made)
    if node.kind is Kind.ASYNC_GENERATOR:
        return await stack.enter_async_context(made)
    if node.kind is Kind.COROUTINE:
        return await made
    if type(made) is CoroutineType:
        _refuse(cast("Any", made))
    return cast("Any", made)
