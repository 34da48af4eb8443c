# SPDX-License-Identifier: Apache-2.0
"""A handler of an impossible shape is refused at registration, with its name and the remedy."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import bmq
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/orders"


@dataclass
class Ask:
    sku: str


@dataclass
class Urgent(Ask):
    """An ask of a kind."""


class Handler:
    """A class in place of an object."""

    def __init__(self, message: bmq.Message) -> None: ...


class Yielding:
    """An object with a generator as its call."""

    def __call__(self, message: bmq.Message) -> Iterator[None]:
        yield


def generator(message: bmq.Message) -> Iterator[None]:
    yield


async def async_generator(message: bmq.Message) -> AsyncIterator[None]:
    yield


async def yields(message: bmq.Message) -> AsyncIterator[Ask]:
    yield Ask("a")


async def yields_wrong(message: bmq.Message) -> Ask:
    yield Ask("a")


def in_a_thread(message: bmq.Message) -> Ask: ...
async def nothing() -> None: ...
async def right(message: bmq.Message) -> None: ...
async def asked(ask: Ask) -> bytes: ...
async def answers_text(message: bmq.Message) -> str: ...
async def answers_value(message: bmq.Message) -> Ask | None: ...
async def answers_complex(message: bmq.Message) -> complex: ...
async def answers_bytes(message: bmq.Message) -> bytes | None: ...
async def of_lists(messages: list[bmq.Message]) -> list[Ask | None]: ...
async def of_lists_wrong(messages: list[bmq.Message]) -> Ask: ...
async def unsaid(message: bmq.Message): ...
async def anything(message: bmq.Message) -> Any: ...
async def takes_ask(ask: Ask) -> None: ...
async def takes_urgent(urgent: Urgent, message: bmq.Message) -> None: ...
async def takes_number(number: int) -> None: ...
async def takes_typed(message: bmq.TypedMessage[int]) -> None: ...
def takes_numbers(numbers: list[int]) -> None: ...
async def later(event: object) -> None: ...


WRONG: list[tuple[Any, str]] = [
    (nothing, "nothing takes no parameter"),
    (generator, "generator is a generator"),
    (async_generator, "async_generator is a generator"),
    (Yielding(), "is a generator"),
    (functools.partial(generator), "is a generator"),
    (Handler, "Handler is a class"),
    (7, "must be a function"),
]


def names(value: object) -> str:
    return getattr(value, "__name__", type(value).__name__) if callable(value) else ""


@sweep("kind", ["consumer", "batch_consumer", "responder"])
@sweep("handler, message", WRONG, ids=names)
def test_a_handler_of_an_impossible_shape_is_refused(kind: str, handler: Any, message: str) -> None:
    app = bmq.App()
    with pytest.raises(bmq.UsageError, match=message):
        getattr(app, kind)(URI)(handler)
    assert app._registry.handlers == []


@sweep(
    "function, message",
    [
        (print, "make print 'async def'"),
        (answers_complex, "answers_complex returns complex: "),
        (answers_bytes, "answers_bytes takes messages and returns bytes, and codec is for values"),
        (functools.partial(asked, ask=Ask("a")), "takes no parameter"),
    ],
    ids=names,
)
def test_a_responder_without_possible_replies_is_refused(function: Any, message: str) -> None:
    app = bmq.App()
    with pytest.raises(bmq.UsageError, match=message):
        app.responder(URI, codec="application/json")(function)
    assert app._registry.handlers == []


Register = Callable[[bmq.App, Any], object]
CONSUMER: Register = lambda app, function: app.consumer(URI)(function)  # noqa: E731
BATCHES: Register = lambda app, function: app.batch_consumer(URI)(function)  # noqa: E731
RESPONDER: Register = lambda app, function: app.responder(URI)(function)  # noqa: E731
EARLY: Register = lambda app, function: app.consumer(URI, ack=bmq.AckPolicy.MANUAL)(function)  # noqa: E731
OUTPUT: Register = lambda app, function: app.publish_to(URI + ".out")(function)  # noqa: E731
PACKED: Register = lambda app, function: app.publish_to(URI + ".out", codec="application/msgpack")(function)  # noqa: E731

NO_RESULTS: list[tuple[Register, Register, Any, str]] = [
    (CONSUMER, OUTPUT, right, r"right: the result is None, and publish_to\('.*orders.out'\) posts results"),
    (CONSUMER, OUTPUT, yields_wrong, "yields_wrong must return an AsyncIterator of results, not Ask"),
    (CONSUMER, PACKED, answers_bytes, "answers_bytes returns no values to encode, .* '-> Order'"),
    (BATCHES, OUTPUT, of_lists_wrong, "of_lists_wrong must return a list with one result for each message"),
    (CONSUMER, OUTPUT, unsaid, "unsaid: the result has no annotation, .* '-> Order', '-> bytes' or"),
    (CONSUMER, OUTPUT, anything, "anything: the annotation of the result does not name a type"),
    (RESPONDER, OUTPUT, asked, "asked is a responder, and its result is the reply"),
    (EARLY, OUTPUT, answers_value, "answers_value has ack=AckPolicy.MANUAL, and publish_to posts results"),
]


@sweep("register, publish, function, message", NO_RESULTS, ids=names)
def test_publish_to_a_handler_without_results_is_refused(
    register: Register, publish: Register, function: Any, message: str
) -> None:
    app = bmq.App()
    publish(app, function)
    with pytest.raises(bmq.UsageError, match=message):
        register(app, function)
    assert app._registry.handlers == []


@sweep("function", [yields, in_a_thread, answers_value, answers_text], ids=names)
def test_publish_to_stands_below_consumer(function: Any) -> None:
    app = bmq.App()
    outer, inner = app.publish_to(URI + ".out"), app.publish_to(URI + ".log")
    assert app.consumer(URI)(outer(inner(function))) is function
    app._registry.check_published()
    app.batch_consumer(URI + ".b")(app.publish_to(URI + ".out")(of_lists))
    with pytest.raises(bmq.UsageError, match=r"already posts its results to .*orders\.out"):
        app.publish_to(URI + ".out")(function)
    with pytest.raises(bmq.UsageError, match=r"is registered already: write .* below the decorator"):
        app.publish_to(URI + ".late")(function)
    with pytest.raises(bmq.UsageError, match="async_generator is a generator"):
        app.consumer(URI)(async_generator)


async def test_a_publish_to_without_a_handler_is_refused_at_the_start() -> None:
    app = bmq.App()
    app.consumer(URI)(right)
    app.publish_to(URI + ".out")(answers_text)
    with pytest.raises(
        bmq.UsageError, match=r"publish_to\(.*\) decorates answers_text, which is not a handler"
    ):
        await app.run(signals=False)


def test_the_arguments_of_publish_to_are_checked() -> None:
    app = bmq.App()
    wrong: list[dict[str, Any]] = [{"key": 7}, {"properties": {"": 1}}, {"properties": 7}]
    for each in wrong:
        with pytest.raises(bmq.UsageError):
            app.publish_to(URI, **each)
    with pytest.raises(bmq.InvalidURI, match="posted to a queue, not to its application"):
        app.publish_to(URI + "?id=a")(answers_text)
    with pytest.raises(bmq.InvalidURI):
        app.publish_to("nothing")(answers_text)


def test_the_same_handler_with_the_same_subscription_is_refused() -> None:
    app = bmq.App()
    app.consumer(URI)(right)
    with pytest.raises(bmq.UsageError, match=r"right is registered for .*/orders already"):
        app.consumer(URI, expression="")(right)
    app.consumer(URI, expression="x == 1")(right)
    app.consumer(URI + "2")(right)


OTHERS = [("consumer", takes_number), ("consumer", takes_typed), ("batch_consumer", takes_numbers)]


@sweep("kind, handler", OTHERS, ids=names)
def test_handlers_of_two_types_do_not_share_messages(kind: str, handler: Any) -> None:
    app = bmq.App()
    app.consumer(URI, expression="x > 1")(takes_ask)
    match = rf"{handler.__name__} takes .*int.* and takes_ask takes Ask: .* its own subscription"
    with pytest.raises(bmq.UsageError, match=match):
        getattr(app, kind)(URI, expression="x > 1")(handler)
    getattr(app, kind)(URI, expression="x <= 1")(handler)
    getattr(app, kind)(URI + "2", expression="x > 1")(handler)
    app.consumer(URI, expression="x > 1")(takes_urgent)
    app.consumer(URI, expression="x > 1")(right)
    assert len(app._registry.handlers) == 5


@pytest.mark.parametrize("subscribe", [False, True])
async def test_a_handler_of_another_type_than_the_queue_is_refused(
    bmq_session: bmq.Session, subscribe: bool
) -> None:
    queue = await bmq_session.open_queue(URI, read=True)
    source: Any = queue.typed(Ask).subscribe() if subscribe else queue.typed(Ask)
    for handler, parameter in ((takes_number, "number"), (takes_urgent, "urgent"), (takes_typed, "message")):
        match = rf"takes \w+ in parameter {parameter}, and the queue has Ask: annotate parameter"
        with pytest.raises(bmq.UsageError, match=match):
            await bmq.consume(source, handler)
    with pytest.raises(
        bmq.UsageError, match=r"a queue of Ask already has a codec: give codec to queue.typed"
    ):
        await bmq.consume(source, takes_ask, codec="application/msgpack")
    assert not queue.consumers


def test_a_missing_attribute_of_the_state_is_named_with_the_nearest() -> None:
    with pytest.raises(bmq.UsageError, match=r"state is an object, not the class Ask: App\(state=Ask"):
        bmq.App(state=Ask)
    app = bmq.App()
    with pytest.raises(
        AttributeError, match=r"app.state has no 'shipped': it has nothing yet. Set .*app.on_startup"
    ):
        _ = app.state.shipped
    app.state.shipped = 1
    with pytest.raises(AttributeError, match=r"app.state has no 'shippd': it has shipped\. .*state="):
        _ = app.state.shippd
    assert not hasattr(app.state, "other")
    assert copy.copy(app.state) == app.state
    assert pickle.loads(pickle.dumps(app.state)).shipped == 1


@sweep("register", ["on_startup", "on_shutdown"])
@sweep("function", [right, generator, 7], ids=names)
def test_a_hook_that_cannot_be_called_is_refused(register: str, function: Any) -> None:
    with pytest.raises(bmq.UsageError):
        getattr(bmq.App(), register)(function)


@pytest.mark.parametrize("make", [lambda: bmq.connect(on_event=later), lambda: bmq.App(on_event=later)])
def test_unawaited_async_callback_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(bmq.UsageError, match="on_event is called and not awaited"):
        make()


def test_a_misspelt_argument_names_the_right_one() -> None:
    app, router = bmq.App(), bmq.Router()
    calls: list[tuple[Callable[..., Any], str, str, str]] = [
        (app.consumer, "App.consumer", "concurrenc", "concurrency"),
        (router.consumer, "Router.consumer", "concurrenc", "concurrency"),
        (app.batch_consumer, "App.batch_consumer", "max_mesages", "max_messages"),
        (app.responder, "App.responder", "allw", "allow"),
        (router.publish_to, "Router.publish_to", "propertees", "properties"),
        (app.mover, "App.mover", "look_ahead", "lookahead"),
        (app.sweeper, "App.sweeper", "putaside", "put_aside"),
        (bmq.Router, "Router", "middleware", "middlewares"),
        (bmq.App, "App", "helth", "health"),
    ]
    for function, name, wrong, right in calls:
        with pytest.raises(bmq.UsageError) as caught:
            function("bmq://bmq.test.mem.priority/orders", **{wrong: None})
        assert str(caught.value) == f"{name}() has no argument {wrong}: did you mean {right}?"
    with pytest.raises(
        bmq.UsageError, match=r"App.publish_to\(\) has no argument nonsense; the arguments are codec, key"
    ):
        app.publish_to("bmq://bmq.test.mem.priority/orders", nonsense=1)  # type: ignore[call-arg]
