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

DOMAIN = "bmq://bmq.test.mem.priority"
_number = itertools.count()


TABLE = pa.table({"value": [b"1"]})


@dataclasses.dataclass
class Order:
    """A type of values."""

    number: int


def kept(make: Callable[[World], Awaitable[Any]]) -> Callable[[World], Awaitable[Any]]:
    """Make an object once, and anew when it has been closed."""

    async def get(world: World) -> Any:
        found = world.kept.get(make)
        if found is None or getattr(found, "closed", False) is True:
            found = world.kept[make] = await make(world)
        return found

    return get


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
        self.kept: dict[Any, Any] = {}
        self.closing: list[Callable[[], Awaitable[object]]] = []

    @property
    def uri(self) -> str:
        """Return the URI of an unused queue."""
        return f"{DOMAIN}/odd-{next(_number)}"

    async def open(self) -> bmq.Queue:
        """Return a new queue with messages."""
        queue = await self.session.open_queue(self.uri, read=True, write=True, max_unconfirmed_messages=2000)
        await queue.post_many([b"payload"] * 1000)
        return queue

    @kept
    async def queue(self) -> bmq.Queue:
        return await self.open()

    @kept
    async def consumer(self) -> bmq.Consumer:
        return await (await self.open()).subscribe()

    async def message(self) -> bmq.Message:
        return await (await self.consumer()).receive(timeout=20)

    async def batch(self) -> bmq.MessageBatch:
        return await (await self.consumer()).receive_many(1, timeout=20)

    async def typed(self) -> bmq.TypedQueue[Order]:
        return (await self.queue()).typed(Order)

    @kept
    async def typed_consumer(self) -> bmq.typed.TypedConsumer[Order]:
        queue = await self.session.open_queue(self.uri, read=True, write=True)
        typed = queue.typed(Order)
        await typed.post_many([Order(each) for each in range(500)])
        return await typed.subscribe()

    async def typed_batch(self) -> Any:
        return await (await self.typed_consumer()).receive_many(1, timeout=20)

    @kept
    async def tables(self) -> bmq.arrow.Tables:
        return await (await self.open()).tables()

    @kept
    async def group(self) -> bmq.groups.Group:
        queue = await self.session.open_queue(self.uri, read=True, write=True)
        await queue.post_many([bmq.PutMessage(b"x", key=str(each)) for each in range(100)])
        return await queue.group(buckets=2)

    async def typed_group(self) -> Any:
        return bmq.typed.TypedGroup(await self.group(), bmq.codecs.Shape(Order))

    @kept
    async def admin(self) -> bmq.admin.Admin:
        admin = await bmq.admin.connect(self.broker.uri)
        self.closing.append(admin.close)
        return admin

    async def queue_admin(self) -> Any:
        return (await self.admin()).queue((await self.queue()).uri)

    @kept
    async def proxy(self) -> FaultProxy:
        proxy = FaultProxy(self.broker.uri)
        await proxy.start()
        self.closing.append(proxy.close)
        return proxy

    @kept
    async def proxied(self) -> bmq.testing.ProxiedConnection:
        proxy = await self.proxy()
        _, writer = await asyncio.open_connection(proxy.host, proxy.port)

        async def close() -> None:
            writer.close()

        self.closing.append(close)
        await proxy.wait_accepted(1)
        return proxy.connections[0]

    @kept
    async def due(self) -> bmq.delays.DueMessages:
        return bmq.delays.DueMessages(await self.open())

    @kept
    async def delay_queue(self) -> bmq.Queue:
        return await self.session.open_queue(f"{self.uri}.delayed", read=True, default_subscription=False)

    @kept
    async def test_app(self) -> bmq.testing.TestApp:
        test = bmq.testing.TestApp(self.new_app(), self.broker)
        await test.__aenter__()
        self.closing.append(lambda: test.__aexit__(None, None, None))
        return test

    def new_app(self) -> bmq.App:
        """Return an app that does not run."""
        app = bmq.App(self.broker.uri)
        app.consumer(self.uri)(handler)
        return app

    async def app(self) -> bmq.App:
        """Return an app that runs."""
        return (await self.test_app()).app

    @kept
    async def own_broker(self) -> bmq.broker.Broker:
        broker = bmq.broker.Broker()
        await broker.start()
        self.closing.append(broker.stop)
        return broker

    async def own_session(self) -> bmq.Session:
        session = await bmq.connect(self.broker.uri)
        self.closing.append(session.close)
        return session

    async def slices(self) -> list[Any]:
        """Return encoded posts."""
        return list((await self.queue()).encode_table(TABLE))

    @kept
    async def inbox(self) -> bmq.inbox.Inbox[Any]:
        engine = _engine()
        inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
        await inbox.start()
        self.closing += [engine.dispose, inbox.close]
        return cast("bmq.inbox.Inbox[Any]", inbox)

    async def close(self) -> None:
        """Close what was made."""
        for close in reversed(self.closing):
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
    bmq.MessageBatch: World.batch,
    bmq.Queue: World.queue,
    bmq.subscriptions.RoutingTable: lambda _: bmq.subscriptions.RoutingTable([]),
    bmq.Session: lambda world: world.session,
    bmq.TagFilter: lambda _: bmq.TagFilter(any_of=["x"]),
    bmq.typed.TypedBatch: World.typed_batch,
    bmq.typed.TypedConsumer: World.typed_consumer,
    bmq.typed.TypedGroup: World.typed_group,
    bmq.TypedQueue: World.typed,
    bmq.admin.Admin: World.admin,
    bmq.admin.QueueAdmin: World.queue_admin,
    bmq.arrow.Tables: World.tables,
    bmq.broker.Broker: lambda world: world.broker,
    bmq.broker.ManualClock: lambda _: bmq.broker.ManualClock(),
    bmq.codecs.Shape: lambda _: bmq.codecs.Shape(Order),
    bmq.delays.DueMessages: World.due,
    bmq.groups.Group: World.group,
    bmq.inbox.AsyncpgInbox: World.inbox,  # all methods are those of Inbox
    bmq.inbox.Inbox: World.inbox,
    bmq.inbox.SqlAlchemyInbox: World.inbox,
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
    "bmq.CloudEvent": {"data": lambda _: {}, "type": lambda _: "t", "source": lambda _: "s"},
    "bmq.Session.set_trace": {"trace": lambda _: bmq.Trace.OFF},
    "bmq.Credentials": {"mechanism": lambda _: "BASIC"},
    "bmq.Credentials.basic": {"user": lambda _: "user", "password": lambda _: "password"},
    "bmq.DeadLetter": {"queue": lambda world: world.uri},
    "bmq.stats.Histogram.quantile": {"q": lambda _: 0.5},
    "bmq.health.HostHealth.set": {"healthy": lambda _: True},
    "bmq.MessageBatch.column": {"name": lambda _: "x"},
    "bmq.PutMessage": {"data": lambda _: b"payload"},
    "bmq.Queue.post_encoded": {"slices": World.slices},
    "bmq.Queue.post_table": {"table": lambda _: TABLE},
    "bmq.Queue.encode_table": {"table": lambda _: TABLE},
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
    "bmq.delays.Mover": {"queue": World.delay_queue},
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

#: What is not walked, by the reason. ``*`` ends a prefix.
NOT_WALKED: dict[str, str] = {
    "the library makes it": """
        Ack CloseReport Consumer FailedPost Message MessageBatch PostReport Properties PropertyValue Queue
        Session TypedMessage TypedQueue admin.Admin admin.QueueAdmin admin.Standing broker.Action
        broker.Authentication.check broker.FilteredConsumer broker.PostedMessage broker.PostedMessage.has
        codecs.MsgspecJson codecs.Shape.decode groups.Full groups.Gained groups.GroupEvent groups.GroupStats
        groups.Lost health.Health health.Trouble inbox.Transaction interceptors.OutgoingMessage
        interceptors.PostOutcome spark.PartitionReport spark.QueryStats spark.Summary stats.ConsumerStats
        stats.Histogram stats.QueueStats stats.SessionStats subscriptions.Complement subscriptions.Decision
        subscriptions.Doubt subscriptions.Evaluation subscriptions.EvaluationFailure subscriptions.Filter
        subscriptions.Finding subscriptions.Operand subscriptions.Step testing.Problem
        testing.ProxiedConnection testing.Recorder testing.SimulatedBroker testing.SimulatedNetwork
        testing.SimulatedProcess testing.Verdict typed.TypedBatch typed.TypedConsumer typed.TypedGroup
        workers.Failure workers.SubscriberStatus workers.SweeperStats
    """,
    "the library raises it": """
        ConfigureQueueError InvalidExpression OpenQueueError PostError ProtocolError RequestError
        RequestFailed Undecodable broker.InvalidDomain errors.AdminError errors.CloseQueueError
        testing.BrokenPromise
    """,
    "the library calls it, users override it": """
        Backoff.delay DeadLetter.post Interceptor.handle Interceptor.on_ack Interceptor.on_confirm
        Interceptor.on_operation Interceptor.on_operation_end Interceptor.on_post Interceptor.on_receive
        NoRetry.delay console.Embedded.contents console.RemoteBroker.contents inbox.AsyncpgInbox.middleware
        inbox.Inbox.middleware inbox.SqlAlchemyInbox.middleware interceptors.Operation otel.BinaryCodec.*
        otel.OpenTelemetry.handle otel.OpenTelemetry.on_ack otel.OpenTelemetry.on_confirm
        otel.OpenTelemetry.on_operation otel.OpenTelemetry.on_operation_end otel.OpenTelemetry.on_post
        otel.OpenTelemetry.on_receive otel.TextCodec.* taskiq.BmqBroker.kick testing.Recorder.handle
        testing.Recorder.on_ack testing.Recorder.on_confirm testing.Recorder.on_event
        testing.Recorder.on_operation testing.Recorder.on_operation_end testing.Recorder.on_post
        testing.Recorder.on_receive workers.LoopClock.sleep
    """,
    "Spark calls it": """
        spark.BmqDataSource.* spark.QueryMetrics.observe spark.QueryMetrics.on* spark.Summary.add
        spark.summary_accumulator spark.write
    """,
    "a call hands its arguments to the method of the same name, which is walked": "blocking.*",
    "it is abstract": "inbox.Inbox",
    "it needs PostgreSQL; a test of its own has odd values for it": "inbox.AsyncpgInbox",
    "it starts an event loop; a test of its own has odd values for it": "run",
    "it hands its arguments to bmq.arrow.Source": "arrow.reader",
    "it blocks the thread; its options are those of Tables and connect, which are walked": "arrow.Source",
    "what is looked up is a function of the library": "subscriptions.Equalities.candidates",
    "it takes syntax trees, which parse() makes": "subscriptions.unparse",
    "it hands its arguments to bmq.broker.Broker, but for names of hosts": "testing.Simulation.broker",
    "it runs its own event loops": "testing.Simulation.run",
    "it starts a thread": "testing.BackgroundBroker.call",
    "it never returns; its arguments are those of check()": "delays.watch",
}
EXCLUDED = {f"bmq.{name}" for names in NOT_WALKED.values() for name in names.split()}

#: Parameters that are not walked, and why.
EXCLUDED_PARAMETERS: dict[str, str] = {
    "bmq.testing.History(path)": "a file of every legal name is made",
    "bmq.testing.Simulation.until(condition)": "its result is asked whether it is true",
}
