# SPDX-License-Identifier: Apache-2.0
"""Correct calls of each public callable; a test replaces one argument at a time by an odd value."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Awaitable, Callable
from tempfile import mkdtemp
from typing import Any, cast

import pyarrow as pa
import sqlalchemy.event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import bmq
import bmq.admin
import bmq.arrow
import bmq.blocking
import bmq.broker
import bmq.codecs
import bmq.console
import bmq.delays
import bmq.groups
import bmq.inbox
import bmq.otel
import bmq.prometheus
import bmq.spark
import bmq.subscriptions
import bmq.taskiq
import bmq.testing
import bmq.workers
from bmq.broker import Mode
from bmq.testing import FaultProxy

__all__ = [
    "ARGUMENTS",
    "COMMON",
    "EXCLUDED",
    "EXCLUDED_PARAMETERS",
    "MAKERS",
    "OWN_MAKERS",
    "USES",
    "Order",
    "World",
]

DOMAIN = "bmq://bmq.test.mem.priority"
_number = itertools.count()


@dataclasses.dataclass
class Order:
    """A type of values."""

    number: int


class World:
    """A broker and a session, with a test's objects.

    Attributes:
        broker: embedded broker.
        session: session under test.
        other: second queue, which must keep working.
    """

    def __init__(self, broker: bmq.broker.Broker, session: bmq.Session, other: bmq.Queue) -> None:
        self.broker = broker
        self.session = session
        self.other = other
        self._kept: dict[Any, Any] = {}
        self._closing: list[Callable[[], Awaitable[object]]] = []

    @property
    def uri(self) -> str:
        """Return the URI of an unused queue."""
        return f"{DOMAIN}/odd-{next(_number)}"

    async def queue(self) -> bmq.Queue:
        """Return a queue with a message, open for both."""
        return await self._keep("queue", self._open)

    async def _open(self) -> bmq.Queue:
        queue = await self.session.open_queue(self.uri, read=True, write=True, max_unconfirmed_messages=2000)
        await queue.post_many([b"payload"] * 1000)
        return queue

    async def consumer(self) -> bmq.Consumer:
        """Return a consumer with messages."""

        async def make() -> bmq.Consumer:
            queue = await self._open()
            return await queue.subscribe()

        return await self._keep("consumer", make)

    async def message(self) -> bmq.Message:
        """Return a message."""
        return await (await self.consumer()).receive(timeout=20)

    async def typed(self) -> bmq.TypedQueue[Order]:
        """Return a typed queue."""
        return (await self.queue()).typed(Order)

    async def tables(self) -> bmq.arrow.Tables:
        """Return tables with rows."""

        async def make() -> bmq.arrow.Tables:
            return await (await self._open()).tables()

        return await self._keep("tables", make)

    async def group(self) -> bmq.groups.Group:
        """Return a member of a group."""

        async def make() -> bmq.groups.Group:
            queue = await self.session.open_queue(self.uri, read=True, write=True)
            await queue.post_many([bmq.PutMessage(b"x", key=str(each)) for each in range(100)])
            return await queue.group(buckets=2)

        return await self._keep("group", make)

    async def admin(self) -> bmq.admin.Admin:
        """Return an admin client."""

        async def make() -> bmq.admin.Admin:
            admin = await bmq.admin.connect(self.broker.uri)
            self._closing.append(admin.close)
            return admin

        return await self._keep("admin", make)

    async def proxy(self) -> FaultProxy:
        """Return a proxy in front of the broker."""

        async def make() -> FaultProxy:
            proxy = FaultProxy(self.broker.uri)
            await proxy.start()
            self._closing.append(proxy.close)
            return proxy

        return await self._keep("proxy", make)

    async def proxied(self) -> bmq.testing.ProxiedConnection:
        """Return a connection through a proxy."""

        async def make() -> bmq.testing.ProxiedConnection:
            proxy = await self.proxy()
            _, writer = await asyncio.open_connection(proxy.host, proxy.port)

            async def close() -> None:
                writer.close()

            self._closing.append(close)
            await proxy.wait_accepted(1)
            return proxy.connections[0]

        return await self._keep("proxied", make)

    async def due(self) -> bmq.delays.DueMessages:
        """Return the due messages of a queue."""

        async def make() -> bmq.delays.DueMessages:
            return bmq.delays.DueMessages(await self._open())

        return await self._keep("due", make)

    async def delay_queue_of(self) -> bmq.Queue:
        """Return a queue where messages wait."""

        async def make() -> bmq.Queue:
            return await self.session.open_queue(f"{self.uri}.delayed", read=True, default_subscription=False)

        return await self._keep("waiting", make)

    async def test_app(self) -> bmq.testing.TestApp:
        """Return a running app under test."""

        async def make() -> bmq.testing.TestApp:
            app = bmq.App()

            @app.consumer(self.uri)
            async def handle(message: bmq.Message) -> None:
                """Do nothing."""

            test = bmq.testing.TestApp(app, self.broker)
            await test.__aenter__()
            self._closing.append(lambda: test.__aexit__(None, None, None))
            return test

        return await self._keep("test_app", make)

    def new_app(self) -> bmq.App:
        """Return an app that does not run."""
        app = bmq.App(self.broker.uri)
        app.consumer(self.uri)(handler)
        return app

    async def app(self) -> bmq.App:
        """Return an app that runs."""
        return (await self.test_app()).app

    async def own_broker(self) -> bmq.broker.Broker:
        """Return another broker that runs."""

        async def make() -> bmq.broker.Broker:
            broker = bmq.broker.Broker()
            await broker.start()
            self._closing.append(broker.stop)
            return broker

        return await self._keep("broker", make)

    async def own_session(self) -> bmq.Session:
        """Return another session."""

        async def make() -> bmq.Session:
            session = await bmq.connect(self.broker.uri)
            self._closing.append(session.close)
            return session

        if (kept := self._kept.get("session")) is not None and kept.state is not bmq.SessionState.STARTED:
            del self._kept["session"]
        return await self._keep("session", make)

    async def slices(self) -> list[Any]:
        """Return encoded posts."""
        return list((await self.queue()).encode_table(pa.table({"value": [b"1"]})))

    async def inbox(self) -> bmq.inbox.Inbox[Any]:
        """Return a started inbox."""

        async def make() -> bmq.inbox.Inbox[Any]:
            engine = _engine()
            inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
            await inbox.start()
            self._closing += [engine.dispose, inbox.close]
            return inbox

        return cast("bmq.inbox.Inbox[Any]", await self._keep("inbox", make))

    async def _keep(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        kept = self._kept.get(name)
        if kept is None or getattr(kept, "closed", False) is True:
            kept = self._kept[name] = await make()
        return kept

    async def close(self) -> None:
        """Close what was made."""
        for close in reversed(self._closing):
            await close()
        # A cancelled attempt to connect leaves its thread behind, which calls the event loop once more.
        for thread in threading.enumerate():
            if thread.name.endswith("(_connection_worker_thread)"):  # of aiosqlite
                await asyncio.to_thread(thread.join, 30)


def _engine() -> AsyncEngine:
    engine = create_async_engine(f"sqlite+aiosqlite:///{mkdtemp(prefix='bmq-odd-')}/odd.db")

    # A call has five seconds, and a busy disk takes longer to synchronise a file.
    @sqlalchemy.event.listens_for(engine.sync_engine, "connect")
    def leave_to_the_system(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.execute("PRAGMA synchronous=OFF")

    return engine


Made = Callable[[World], Any]

#: Instances for methods.
MAKERS: dict[type, Made] = {
    bmq.App: lambda world: bmq.App(world.broker.uri),
    bmq.Router: lambda _: bmq.Router(),
    bmq.subscriptions.CmqTags: lambda _: bmq.subscriptions.CmqTags("x"),
    bmq.Consumer: World.consumer,
    bmq.Expression: lambda _: bmq.Expression("x == 1"),
    bmq.stats.Histogram: lambda _: bmq.stats.Histogram(),
    bmq.health.HostHealth: lambda _: bmq.health.HostHealth(),
    bmq.MessageBatch: lambda world: _batch(world),
    bmq.Queue: World.queue,
    bmq.subscriptions.RoutingTable: lambda _: bmq.subscriptions.RoutingTable([]),
    bmq.Session: lambda world: world.session,
    bmq.TagFilter: lambda _: bmq.TagFilter(any_of=["x"]),
    bmq.typed.TypedBatch: lambda world: _typed_batch(world),
    bmq.typed.TypedConsumer: lambda world: _typed_consumer(world),
    bmq.typed.TypedGroup: lambda world: _typed_group(world),
    bmq.TypedQueue: World.typed,
    bmq.admin.Admin: World.admin,
    bmq.admin.QueueAdmin: lambda world: _queue_admin(world),
    bmq.arrow.Tables: World.tables,
    bmq.broker.Broker: lambda world: world.broker,
    bmq.broker.ManualClock: lambda _: bmq.broker.ManualClock(),
    bmq.codecs.Shape: lambda _: bmq.codecs.Shape(Order),
    bmq.delays.DueMessages: World.due,
    bmq.groups.Group: World.group,
    bmq.inbox.AsyncpgInbox: lambda world: world.inbox(),  # all methods are those of Inbox
    bmq.inbox.Inbox: lambda world: world.inbox(),
    bmq.inbox.SqlAlchemyInbox: lambda world: world.inbox(),
    bmq.inbox.Transaction: lambda _: bmq.inbox.Transaction(None, {("odd", "A" * 32): cast("Any", None)}),
    bmq.prometheus.SessionCollector: lambda _: bmq.prometheus.SessionCollector(),
    bmq.subscriptions.Complement: lambda _: bmq.subscriptions.complement("x == 1"),
    bmq.subscriptions.Operand: lambda _: bmq.P("x"),
    bmq.subscriptions.PulsarTags: lambda _: bmq.subscriptions.PulsarTags(any_of=["x"], keys=["tag0"]),
    bmq.testing.Fault: lambda _: bmq.testing.Fault(0.0, "split", 0.001, amount=1),
    bmq.testing.FaultProxy: World.proxy,
    bmq.testing.History: lambda _: bmq.testing.History(),
    bmq.testing.ProxiedConnection: World.proxied,
    bmq.testing.Recorder: lambda _: bmq.testing.History().process("odd"),
    bmq.testing.SimulatedBroker: lambda _: _simulation().broker("here", "there"),
    bmq.testing.SimulatedNetwork: lambda _: _simulation().network,
    bmq.testing.SimulatedProcess: lambda _: _simulation().process("process", asyncio.sleep, 1),
    bmq.testing.Simulation: lambda _: _simulation(),
    bmq.testing.TestApp: World.test_app,
    bmq.workers.Sweeper: lambda world: bmq.workers.Sweeper(world.uri),
}


#: Instances for single methods, where these are others.
OWN_MAKERS: dict[str, Made] = {
    "bmq.App.pause": World.app,
    "bmq.App.resume": World.app,
    "bmq.App.queue": World.app,
    "bmq.App.run": World.new_app,
    "bmq.broker.Broker.restart": World.own_broker,
    "bmq.broker.Broker.stop": World.own_broker,
    "bmq.Session.close": World.own_session,
    "bmq.testing.SimulatedBroker.start": lambda _: _crashed(),
    "bmq.workers.Sweeper.run": lambda world: bmq.workers.Sweeper(world.uri),
}


def _simulation() -> bmq.testing.Simulation:
    simulation = bmq.testing.Simulation(1)
    simulation.broker()
    simulation.process("other", asyncio.sleep, 1)
    return simulation


def _crashed() -> bmq.testing.SimulatedBroker:
    broker = _simulation().broker("here", "there")
    broker.crash()
    return broker


async def _batch(world: World) -> Any:
    return await (await world.consumer()).receive_many(1, timeout=20)


async def _typed_consumer(world: World) -> Any:
    async def make() -> bmq.typed.TypedConsumer[Order]:
        queue = await world.session.open_queue(world.uri, read=True, write=True)
        typed = queue.typed(Order)
        await typed.post_many([Order(each) for each in range(500)])
        return await typed.subscribe()

    return await world._keep("typed", make)


async def _typed_batch(world: World) -> Any:
    return await (await _typed_consumer(world)).receive_many(1, timeout=20)


async def _typed_group(world: World) -> Any:
    return bmq.typed.TypedGroup(await world.group(), bmq.codecs.Shape(Order))


async def _queue_admin(world: World) -> Any:
    return (await world.admin()).queue((await world.queue()).uri)


async def handler(message: bmq.Message) -> None:
    """Handle a message."""


async def batch_handler(messages: list[bmq.Message]) -> None:
    """Handle messages."""


async def respond(message: bmq.Message) -> bytes:
    """Answer a request."""
    return b"reply"


def ignore(*_: object) -> None:
    """Take whatever comes."""


#: Right arguments by the name of the parameter.
COMMON: dict[str, Made] = {
    "admin": World.admin,
    "app": lambda _: bmq.App(),
    "attempt": lambda _: 1,
    "broker": lambda world: world.broker.uri,
    "bucket": lambda _: 1,
    "command": lambda _: "HELP",
    "config": lambda _: bmq.broker.DomainConfig("d.x", Mode.PRIORITY),
    "content_type": lambda _: "application/x-odd",
    "count": lambda _: 1,
    "direction": lambda _: bmq.testing.Direction.TO_BROKER,
    "domain": lambda _: "bmq.test.mem.priority",
    "elapsed": lambda _: 1.0,
    "error": lambda _: ValueError("x"),
    "every": lambda _: 1.0,
    "function": lambda _: lambda: None,
    "give_up_after": lambda _: 10.0,
    "handler": lambda _: handler,
    "items": lambda _: [b"x"],
    "key": lambda _: "x",
    "keys": lambda _: ["tag0"],
    "member": lambda _: "member",
    "members": lambda _: ["a", "b"],
    "message": World.message,
    "messages": lambda _: [],
    "metadata": lambda _: {"anytag0": "x"},
    "mode": lambda _: Mode.PRIORITY,
    "name": lambda _: "bmq.test.mem.priority",
    "of": lambda _: Order,
    "part": lambda _: bmq.Router(),
    "payload": lambda _: b"payload",
    "properties": lambda _: {"x": 1},
    "proxy": World.proxy,
    "router": lambda _: bmq.Router(),
    "queue": lambda world: world.uri,
    "seconds": lambda _: 0.0,
    "seed": lambda _: 1,
    "expression": lambda _: "x == 1",
    "session": lambda world: world.session,
    "tag": lambda _: "x",
    "tags": lambda _: ["x"],
    "target": lambda world: world.broker.uri,
    "text": lambda _: "x == 1",
    "uri": lambda world: world.uri,
    "value": lambda _: Order(1),
    "values": lambda _: [Order(1)],
}

#: Right arguments of single callables, where these are others.
ARGUMENTS: dict[str, dict[str, Made]] = {
    "bmq.CloudEvent": {
        "data": lambda _: {},
        "type": lambda _: "t",
        "source": lambda _: "s",
    },
    "bmq.Session.set_trace": {"trace": lambda _: bmq.Trace.OFF},
    "bmq.Credentials": {"mechanism": lambda _: "BASIC"},
    "bmq.Credentials.basic": {"user": lambda _: "user", "password": lambda _: "password"},
    "bmq.DeadLetter": {"queue": lambda world: world.uri},
    "bmq.stats.Histogram.quantile": {"q": lambda _: 0.5},
    "bmq.health.HostHealth.set": {"healthy": lambda _: True},
    "bmq.MessageBatch.column": {"name": lambda _: "x"},
    "bmq.PutMessage": {"data": lambda _: b"payload"},
    "bmq.Queue.post_encoded": {"slices": World.slices},
    "bmq.Queue.post_table": {"table": lambda _: pa.table({"value": [b"1"]})},
    "bmq.Queue.encode_table": {"table": lambda _: pa.table({"value": [b"1"]})},
    "bmq.spark.confirm": {"options": lambda world: {"broker": world.broker.uri, "queue": world.uri}},
    "bmq.Queue.request": {"timeout": lambda _: 0.001},
    "bmq.TypedQueue.request": {"timeout": lambda _: 0.001},
    "bmq.QueueUri": {"domain": lambda _: "d", "queue": lambda _: "q"},
    "bmq.QueueUri.parse": {"text": lambda world: world.uri},
    "bmq.subscriptions.RoutingTable": {"routes": lambda _: []},
    "bmq.Session.open_queue": {"read": lambda _: True},
    "bmq.inbox.SqlAlchemyInbox": {"database": lambda _: _engine(), "keep": lambda _: 10.0},
    "bmq.inbox.SqlAlchemyInbox.forget": {"guid": lambda _: "A" * 32, "consumer": lambda world: world.uri},
    "bmq.inbox.AsyncpgInbox.forget": {"guid": lambda _: "A" * 32, "consumer": lambda world: world.uri},
    "bmq.inbox.Inbox.forget": {"guid": lambda _: "A" * 32, "consumer": lambda world: world.uri},
    "bmq.inbox.Transaction.post": {"message": lambda _: b"x"},
    "bmq.PartlyFailed": {"failed": lambda _: {0: ValueError()}},
    "bmq.consume": {"source": World.queue, "grace": lambda _: 0.0},
    "bmq.console.Console": {"source": lambda world: bmq.console.Embedded(world.broker)},
    "bmq.console.Embedded": {"broker": lambda world: world.broker},
    "bmq.console.beside": {"broker": lambda world: world.broker, "address": lambda _: "0"},
    "bmq.connect": {"broker": lambda world: world.broker.uri},
    "bmq.admin.connect": {"broker": lambda world: world.broker.uri},
    "bmq.admin.Admin.command": {"text": lambda _: "HELP"},
    "bmq.admin.Admin.query": {"text": lambda _: "HELP"},
    "bmq.admin.Admin.topology": {"name": lambda _: "itCluster"},
    "bmq.arrow.Tables": {"queue": World.queue},
    "bmq.broker.AppSubscription": {"app_id": lambda _: "", "text": lambda _: "x == 1"},
    "bmq.broker.DomainConfig": {"name": lambda _: "d.x"},
    "bmq.broker.TagConsumerFilter": {"consumers": lambda _: {"": {}}},
    "bmq.broker.Broker.drained": {"timeout": lambda _: 0.0},
    "bmq.codecs.register": {"make": lambda _: ignore},
    "bmq.codecs.codec_for": {"content_type": lambda _: "application/json"},
    "bmq.codecs.Shape": {"codec": lambda _: "application/json"},
    "bmq.delays.DueMessages": {"queue": World.queue},
    "bmq.delays.DueMessages.put_off": {"until": lambda _: 1.0},
    "bmq.delays.Mover": {"queue": World.delay_queue_of},
    "bmq.Queue.group": {"buckets": lambda _: 2},
    "bmq.groups.Group": {"queue": World.queue, "buckets": lambda _: 2},
    "bmq.otel.BinaryCodec": {"read": lambda _: ignore},
    "bmq.prometheus.SessionCollector.add": {"session": lambda world: world.session},
    "bmq.subscriptions.Equalities": {"things": lambda _: [], "text_of": lambda _: lambda _: ""},
    "bmq.subscriptions.check_domain": {"domain": lambda _: {"name": "d", "mode": {"priority": {}}}},
    "bmq.subscriptions.check_property_types": {"kinds": lambda _: {"x": int}},
    "bmq.subscriptions.plan": {"filter": lambda _: "x == 1"},
    "bmq.subscriptions.point_at": {"offset": lambda _: 0},
    "bmq.subscriptions.Route": {"expression": lambda _: None},
    "bmq.testing.Fault": {"after": lambda _: 0.0, "kind": lambda _: "cut"},
    "bmq.testing.FaultProxy.split": {"size": lambda _: 1},
    "bmq.testing.FaultProxy.throttle": {"bytes_per_second": lambda _: 1000},
    "bmq.testing.FaultProxy.when": {"action": lambda _: ignore, "events": lambda _: 1000},
    "bmq.testing.FaultProxy.cut_after": {"events": lambda _: 1000},
    "bmq.testing.ProxiedConnection.throttle": {"bytes_per_second": lambda _: 1000},
    "bmq.testing.ProxiedConnection.when": {"action": lambda _: ignore, "events": lambda _: 1000},
    "bmq.testing.ProxiedConnection.cut_after": {"events": lambda _: 1000},
    "bmq.testing.History.fault": {"kind": lambda _: "cut"},
    "bmq.testing.History.record": {
        "op": lambda _: "charge",
        "process": lambda _: "desk",
        "type": lambda _: "ok",
    },
    "bmq.testing.check": {"history": lambda _: bmq.testing.History()},
    "bmq.testing.examine": {"history": lambda _: bmq.testing.History()},
    "bmq.testing.SimulatedNetwork.partition": {"one": lambda _: "broker", "other": lambda _: "other"},
    "bmq.testing.SimulatedNetwork.refuse": {"host": lambda _: "broker"},
    "bmq.testing.SimulatedProcess.jump": {"seconds": lambda _: 1.0},
    "bmq.testing.SimulatedNetwork.mend": {"one": lambda _: "broker", "other": lambda _: "other"},
    "bmq.testing.Simulation.faults": {"seconds": lambda _: 0.0},
    "bmq.testing.Simulation.draw": {"name": lambda _: "size", "usual": lambda _: 1},
    "bmq.testing.Simulation.note": {"what": lambda _: "a fault"},
    "bmq.testing.Simulation.play": {"main": lambda _: asyncio.sleep},
    "bmq.testing.Simulation.process": {"name": lambda _: "name", "main": lambda _: asyncio.sleep},
    "bmq.testing.Simulation.until": {"condition": lambda _: lambda: True},
    "bmq.testing.TestApp.of": {"part": lambda _: bmq.App()},
    "bmq.testing.TestApp.drained": {"timeout": lambda _: 0.0},
    "bmq.testing.TestApp.request": {"timeout": lambda _: 0.001, "reply": lambda _: bytes},
    "bmq.testing.replay_faults": {"faults": lambda _: []},
    "bmq.testing.random_faults": {
        "kinds": lambda _: ("split",),
        "pause": lambda _: (0.0, 0.0),
        "duration": lambda _: (0.001, 0.001),
    },
    "bmq.workers.Responder": {"function": lambda _: respond},
    "bmq.workers.original_of": {"letter": World.message, "queue": lambda world: world.uri},
}


async def _connect(world: World, made: Any) -> None:
    async with made:
        """Connecting and closing use every option."""


async def _post(world: World, made: Any) -> None:
    report = await world.other.post_many([made])
    assert report.acknowledged == 1
    if made.delay is None:  # others wait in the queue of delayed messages
        (await world.other.receive(timeout=20)).confirm()


def _retry(world: World, made: Any) -> None:
    if isinstance(made.no_retry, tuple | type):
        for attempt in (1, 2, 100):
            made.delay(attempt, 1.0, ValueError())


async def _open(world: World, made: Any) -> None:
    queue = await world.session.open_queue(world.uri, read=True, subscriptions=[made])
    await queue.close()


async def _start(world: World, made: Any) -> None:
    try:
        await made.start()
        async with bmq.connect(made.uri, connect_timeout=2) as session:
            await session.open_queue(world.uri, write=True)
    except OSError:
        """An address that is not of this machine."""
    finally:
        await made.stop()


async def _domain(world: World, made: Any) -> None:
    world.broker.add_domain(made)
    queue = await world.session.open_queue(f"bmq://{made.name}/odd-{next(_number)}", write=True)
    await queue.post(b"x")
    await queue.close()


#: What is done with a result, so that a value that was taken is used.
USES: dict[str, Callable[[World, Any], Any]] = {
    "bmq.App.consumer": lambda _, made: made(handler),
    "bmq.App.batch_consumer": lambda _, made: made(batch_handler),
    "bmq.App.responder": lambda _, made: made(respond),
    "bmq.Router.consumer": lambda _, made: made(handler),
    "bmq.Router.batch_consumer": lambda _, made: made(batch_handler),
    "bmq.Router.responder": lambda _, made: made(respond),
    "bmq.Backoff": _retry,
    "bmq.PutMessage": _post,
    "bmq.Subscription": _open,
    "bmq.admin.connect": _connect,
    "bmq.connect": _connect,
    "bmq.broker.Limits": lambda world, made: _domain(
        world, bmq.broker.DomainConfig(f"d.x{next(_number)}", Mode.PRIORITY, queue_limits=made)
    ),
}

_MADE = "the library makes it"
_RAISED = "the library raises it"
_CALLED = "the library calls it, users override it"
_SPARK = "Spark calls it"
_BLOCKING = "a call of bmq.blocking hands its arguments to the method of the same name, which is walked"

#: What is not walked, and why. ``*`` ends a prefix.
EXCLUDED: dict[str, str] = {
    **dict.fromkeys(
        [
            *("bmq.Ack", "bmq.CloseReport", "bmq.Consumer", "bmq.stats.ConsumerStats", "bmq.FailedPost"),
            *(
                "bmq.health.Health",
                "bmq.stats.Histogram",
                "bmq.Message",
                "bmq.MessageBatch",
                "bmq.interceptors.OutgoingMessage",
            ),
            *(
                "bmq.interceptors.PostOutcome",
                "bmq.PostReport",
                "bmq.Properties",
                "bmq.Queue",
                "bmq.stats.QueueStats",
            ),
            *(
                "bmq.Session",
                "bmq.stats.SessionStats",
                "bmq.health.Trouble",
                "bmq.typed.TypedConsumer",
                "bmq.TypedMessage",
            ),
            *(
                "bmq.typed.TypedBatch",
                "bmq.typed.TypedGroup",
                "bmq.TypedQueue",
                "bmq.admin.Admin",
            ),
            *(
                "bmq.admin.QueueAdmin",
                "bmq.admin.Standing",
            ),
            "bmq.broker.Action",
            *("bmq.broker.Authentication.check", "bmq.broker.FilteredConsumer", "bmq.broker.PostedMessage"),
            *("bmq.codecs.MsgspecJson", "bmq.codecs.Shape.decode", "bmq.broker.PostedMessage.has"),
            *(
                "bmq.groups.Full",
                "bmq.groups.GroupStats",
                "bmq.groups.Gained",
                "bmq.groups.GroupEvent",
                "bmq.groups.Lost",
            ),
            "bmq.inbox.Transaction",
            *("bmq.spark.PartitionReport", "bmq.spark.QueryStats", "bmq.spark.Summary"),
            *("bmq.subscriptions.Complement", "bmq.subscriptions.Decision"),
            *("bmq.subscriptions.Doubt", "bmq.subscriptions.Evaluation"),
            *("bmq.subscriptions.EvaluationFailure", "bmq.subscriptions.Filter"),
            *("bmq.subscriptions.Finding", "bmq.subscriptions.Operand", "bmq.subscriptions.Step"),
            *("bmq.testing.SimulatedBroker", "bmq.testing.SimulatedNetwork", "bmq.testing.SimulatedProcess"),
            *("bmq.testing.ProxiedConnection", "bmq.testing.Problem", "bmq.testing.Recorder"),
            *("bmq.testing.Verdict", "bmq.workers.Failure", "bmq.workers.SubscriberStatus"),
            *("bmq.workers.SweeperStats", "bmq.PropertyValue"),
        ],
        _MADE,
    ),
    **dict.fromkeys(
        [
            *(
                "bmq.errors.AdminError",
                "bmq.errors.CloseQueueError",
                "bmq.ConfigureQueueError",
                "bmq.InvalidExpression",
            ),
            *("bmq.OpenQueueError", "bmq.PostError", "bmq.ProtocolError", "bmq.RequestError"),
            *("bmq.RequestFailed", "bmq.Undecodable", "bmq.broker.InvalidDomain"),
            "bmq.testing.BrokenPromise",
        ],
        _RAISED,
    ),
    **dict.fromkeys(
        [
            *("bmq.Interceptor.handle", "bmq.Interceptor.on_ack", "bmq.Interceptor.on_confirm"),
            *("bmq.Interceptor.on_post", "bmq.Interceptor.on_receive"),
            *(
                "bmq.Interceptor.on_operation",
                "bmq.Interceptor.on_operation_end",
                "bmq.interceptors.Operation",
            ),
            *("bmq.otel.OpenTelemetry.on_operation", "bmq.otel.OpenTelemetry.on_operation_end"),
            *("bmq.DeadLetter.post", "bmq.otel.BinaryCodec.*"),
            *("bmq.otel.OpenTelemetry.handle", "bmq.otel.OpenTelemetry.on_ack"),
            *("bmq.otel.OpenTelemetry.on_confirm", "bmq.otel.OpenTelemetry.on_post"),
            *("bmq.otel.OpenTelemetry.on_receive", "bmq.otel.TextCodec.*"),
            *("bmq.testing.Recorder.handle", "bmq.testing.Recorder.on_ack"),
            *("bmq.testing.Recorder.on_confirm", "bmq.testing.Recorder.on_event"),
            *("bmq.testing.Recorder.on_post", "bmq.testing.Recorder.on_receive"),
            *("bmq.testing.Recorder.on_operation", "bmq.testing.Recorder.on_operation_end"),
            *("bmq.Backoff.delay", "bmq.NoRetry.delay"),
            *("bmq.console.Embedded.contents", "bmq.console.RemoteBroker.contents"),
            *("bmq.inbox.Inbox.middleware", "bmq.inbox.SqlAlchemyInbox.middleware"),
            "bmq.inbox.AsyncpgInbox.middleware",
            *("bmq.workers.LoopClock.sleep", "bmq.taskiq.BmqBroker.kick"),
        ],
        _CALLED,
    ),
    **dict.fromkeys(
        [
            *("bmq.spark.BmqDataSource.*", "bmq.spark.QueryMetrics.on*", "bmq.spark.QueryMetrics.observe"),
            *("bmq.spark.Summary.add", "bmq.spark.summary_accumulator", "bmq.spark.write"),
        ],
        _SPARK,
    ),
    "bmq.blocking.*": _BLOCKING,
    "bmq.inbox.Inbox": "it is abstract",
    "bmq.inbox.AsyncpgInbox": "it needs PostgreSQL; a test of its own has odd values for it",
    "bmq.run": "it starts an event loop; a test of its own has odd values for it",
    "bmq.arrow.reader": "it hands its arguments to bmq.arrow.Source",
    "bmq.arrow.Source": "it blocks the thread; its options are those of Tables and connect, which are walked",
    "bmq.subscriptions.Equalities.candidates": "what is looked up is a function of the library",
    "bmq.subscriptions.unparse": "it takes syntax trees, which parse() makes",
    "bmq.testing.Simulation.broker": "it hands its arguments to bmq.broker.Broker, but for names of hosts",
    "bmq.testing.Simulation.run": "it runs its own event loops",
    "bmq.testing.BackgroundBroker.call": "it starts a thread",
    "bmq.delays.watch": "it never returns; its arguments are those of check()",
}

#: Parameters that are not walked, and why.
EXCLUDED_PARAMETERS: dict[str, str] = {
    "bmq.testing.History(path)": "a file of every legal name is made",
    "bmq.testing.Simulation.until(condition)": "its result is asked whether it is true",
}
