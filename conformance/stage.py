# SPDX-License-Identifier: Apache-2.0
"""The scripted broker for a client under test, and what a case does with both.

The broker does nothing by itself but answer heartbeats. A case receives each connection of the client, sends
the answers that it wants, and asks the client for something meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from bmq import _world
from bmq.errors import ProtocolError, StatusCategory
from bmq.wire.ack import encode_acks
from bmq.wire.confirm import ConfirmMessage, decode_confirms
from bmq.wire.constants import Compression, EventType, PushFlags
from bmq.wire.control import (
    BrokerResponse,
    ClientIdentity,
    ClientType,
    CloseQueue,
    CloseQueueResponse,
    Codec,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    ControlBody,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    MessageKind,
    OpenQueue,
    OpenQueueResponse,
    QueueFlags,
    QueueHandleParameters,
    RoutingConfiguration,
    Status,
)
from bmq.wire.control_event import encode_event
from bmq.wire.event import HEADER_SIZE, Event, pack_event_header
from bmq.wire.message import join_application_data
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.padding import padding
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.push import encode_push
from bmq.wire.put import CORRELATION_ID, DecodedPut, decode_puts
from conformance.case import Mismatch, check, fail
from conformance.connection import ANSWER, Connection, decoded
from conformance.peer import QUIET
from conformance.program import Program, Unsupported

__all__ = [
    "FEATURES",
    "NEWS",
    "ORDERS",
    "OTHER",
    "Line",
    "Opened",
    "Stage",
    "accepted",
    "codec_of",
    "guid",
    "pushed",
]

#: Features that the scripted broker names.
FEATURES = "PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX;SUBSCRIPTIONS:CONFIGURE_STREAM"
#: The queues of the cases: two in priority mode, and an application of one in fanout mode.
ORDERS = "bmq://bmq.test.mem.priority/conform-orders"
OTHER = "bmq://bmq.test.mem.priority/conform-other"
NEWS = "bmq://bmq.test.mem.fanout/conform-news?id=foo"
#: Seconds for the client to connect, or to connect again after a pause of its own.
_CONNECTION = 30.0
#: Payload of the message that shows that a client goes on.
_ALIVE = b"still alive"
#: Seconds between two attempts to post this message.
_AGAIN = 0.1
#: First GUID that the scripted broker creates for a client without GUIDs of its own.
_CREATED = 1_000_000
#: Longer than any case.
_FOREVER = 1e6
T = TypeVar("T")
R = TypeVar("R", bound=ControlBody)


def guid(number: int) -> bytes:
    """A GUID of the scripted broker."""
    return b"\x40" + bytes(7) + number.to_bytes(8, "big")


class Opened:
    """A queue that the client has open on a connection.

    Attributes:
        uri: the URI.
        q_id: the client's number of the queue.
        sub_id: the client's number of the application, 0 without one.
        s_ids: the numbers of the subscriptions.
        requests: the requests with which the client opened the queue.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.q_id = 0
        self.sub_id = 0
        self.s_ids: tuple[int, ...] = ()
        self.requests: list[ControlBody] = []

    @property
    def parameters(self) -> QueueHandleParameters:
        """The handle of the client's openQueue."""
        for body in self.requests:
            if isinstance(body, OpenQueue):
                return body.handle_parameters
        raise Mismatch(f"openQueue of {self.uri}", "no such request")

    @property
    def ready(self) -> bool:
        """Whether the queue is open, and configured if it is for reading."""
        if not self.requests:
            return False
        if not self.parameters.flags & QueueFlags.READ:
            return True
        return any(isinstance(body, (ConfigureStream, ConfigureQueueStream)) for body in self.requests)

    def _is_mine(self, parameters: QueueHandleParameters) -> bool:
        """Whether openQueue is about this queue: the application is in the URI, or in ``subIdInfo`` alone."""
        info = parameters.sub_id_info
        named = (
            parameters.uri if info is None or "?" in parameters.uri else f"{parameters.uri}?id={info.app_id}"
        )
        return self.uri in (parameters.uri, named)

    def note(self, body: ControlBody) -> None:
        """Take what a request says, if it is about this queue."""
        if isinstance(body, OpenQueue):
            if not self._is_mine(body.handle_parameters):
                return
            self.q_id = body.handle_parameters.q_id
            info = body.handle_parameters.sub_id_info
            self.sub_id = 0 if info is None else info.sub_id
        elif not self.requests or getattr(body, "q_id", self.q_id) != self.q_id:
            return
        elif isinstance(body, ConfigureStream):
            self.s_ids = tuple(each.s_id for each in body.stream_parameters.subscriptions)
        elif isinstance(body, ConfigureQueueStream):
            info = body.stream_parameters.sub_id_info
            self.s_ids = (0 if info is None else info.sub_id,)
        self.requests.append(body)


class Line(Connection):
    """A connection of the client, from the broker's side.

    A task reads all the time: heartbeats are answered whatever the case does meanwhile.

    Attributes:
        identified: the client's introduction.
        serving: whether requests are answered with success as they arrive.
        act: answers a request that arrives while ``serving``, and returns True; or returns False for success.
        requests: the requests that were answered as they arrived.
        queues: the queues that the client has opened on this connection.
        seen: all events of the client.
        posted: number of messages that the client has posted, and that a case has read.
    """

    identified: ClientIdentity

    def __init__(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience: float
    ) -> None:
        super().__init__(number, reader, writer)
        self.codec = Codec.JSON
        self._patience = patience
        self.serving = False
        self.act: Callable[[ControlMessage], bool] | None = None
        self.requests: list[ControlBody] = []
        self.queues: list[Opened] = []
        self.seen: list[Event] = []
        self.posted = 0
        self._created = 0
        self._news = asyncio.Event()
        self._wrong: Mismatch | Unsupported | None = None
        self._reading = asyncio.create_task(self._read_on())

    @property
    def over(self) -> bool:
        """Whether the connection has ended."""
        return self._over

    async def _read_on(self) -> None:
        try:
            while True:
                await self._read(_FOREVER)
                while self.serving and self._controls:
                    self._serve(decoded(self._controls.pop(0), MessageKind.CONTROL))
                self._news.set()
        except ConnectionError:
            self._over = True
        except Mismatch as error:
            self._wrong = error
        finally:
            self._news.set()

    def _take(self, event: Event) -> None:
        self.seen.append(event)
        super()._take(event)

    def _serve(self, request: ControlMessage) -> None:
        if request.body is not None:
            self.requests.append(request.body)
            for queue in self.queues:
                queue.note(request.body)
        if self.act is None or not self.act(request):
            self.reply(request)

    async def _until(self, found: Callable[[], T | None], expected: str, seconds: float | None = None) -> T:
        seconds = self._patience if seconds is None else min(seconds, self._patience)
        end = _world.monotonic() + seconds
        while (value := found()) is None:
            if self._wrong is not None:
                raise self._wrong
            if self._over:
                raise Mismatch(expected, "the end of the connection")
            self._news.clear()
            try:
                async with asyncio.timeout(max(0.001, end - _world.monotonic())):
                    await self._news.wait()
            except TimeoutError:
                raise Mismatch(expected, f"nothing within {seconds:g} s") from None
        return value

    def give_up(self, reason: Mismatch | Unsupported) -> None:
        """Let waits on this connection end with an exception."""
        self._wrong = reason
        self._news.set()

    async def until(self, condition: Callable[[], bool], expected: str) -> None:
        """Wait for a condition on what the client has sent."""
        await self._until(lambda: condition() or None, expected)

    async def outlived(self, asked: asyncio.Future[dict[str, Any]]) -> None:
        """Expect an answer of the program before the end of the connection."""
        asked.add_done_callback(lambda _: self._news.set())
        await self._until(lambda: asked.done() or None, "an answer of the program")

    async def closed(self, seconds: float | None = None) -> None:
        """Expect that the client closes the connection."""
        await self._until(lambda: self._over or None, "the end of the connection", seconds)

    def drop(self) -> None:
        """End the connection without a word."""
        super().drop()
        self._reading.cancel()

    async def flushed(self) -> None:
        """Wait until everything sent so far has left this process, or the connection has ended."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        await asyncio.sleep(0)

    # ---- the client's events

    async def introduction(self) -> ClientIdentity:
        """Return the client's introduction, its first message."""
        event = await self._next_control("a clientIdentity")
        message = decoded(event, MessageKind.NEGOTIATION)
        if not isinstance(message, ClientIdentity):
            raise fail("a clientIdentity", message)
        self.identified = message
        return message

    def serve(self, act: Callable[[ControlMessage], bool] | None = None) -> None:
        """Answer requests as they arrive, those that wait included."""
        self.serving, self.act = True, act
        while self._controls:
            self._serve(decoded(self._controls.pop(0), MessageKind.CONTROL))

    async def any_request(self, seconds: float | None = None) -> ControlMessage:
        """Return the next request."""
        message = decoded(await self._next_control("a request", seconds), MessageKind.CONTROL)
        if not isinstance(message, ControlMessage):
            raise fail("a control message", message)
        return message

    async def wanted(self, kind: type[R]) -> tuple[ControlMessage, R]:
        """Return the next request, which must be of a kind."""
        message = await self.any_request()
        if not isinstance(message.body, kind):
            raise fail(f"the request {kind.__name__}", message.body)
        return message, message.body

    async def puts(self, count: int = 1) -> list[DecodedPut]:
        """Return the next messages that the client posts."""
        found: list[DecodedPut] = []
        while len(found) < count:
            event = await self.event(EventType.PUT)
            try:
                messages = decode_puts(event.data, event.body)
            except ProtocolError as error:
                raise Mismatch("a PUT event of the protocol", str(error)) from error
            self.posted += len(messages)
            found += messages
        return found

    async def confirms(self, count: int = 1) -> list[ConfirmMessage]:
        """Return the next confirmations."""
        found: list[ConfirmMessage] = []
        while len(found) < count:
            event = await self.event(EventType.CONFIRM)
            try:
                found += decode_confirms(event.data, event.body)
            except ProtocolError as error:
                raise Mismatch("a CONFIRM event of the protocol", str(error)) from error
        return found

    async def nothing(self, event_type: EventType, seconds: float = QUIET) -> None:
        """Expect no event of a type."""
        try:
            await self.event(event_type, seconds)
        except Mismatch:
            return
        raise fail(f"no {event_type.name} event", f"a {event_type.name} event")

    # ---- the broker's events

    def welcome(
        self,
        *,
        category: StatusCategory = StatusCategory.E_SUCCESS,
        features: str = FEATURES,
        version: int = 999_999,
        codec: Codec = Codec.JSON,
    ) -> bytes:
        """The answer to an identity."""
        return encode_event(
            BrokerResponse(
                result=Status(category=category, code=0, message="the suite says no" if category else ""),
                protocol_version=1,
                broker_version=version,
                broker_identity=ClientIdentity(
                    protocol_version=1,
                    sdk_version=version,
                    client_type=ClientType.E_TCPBROKER,
                    process_name="bmq conformance",
                    features=features,
                ),
                is_deprecated_sdk=False,
            ),
            codec,
        )

    def reply(self, request: ControlMessage, body: ControlBody | None = None) -> None:
        """Answer a request, with success unless a body is given."""
        self.send(
            encode_event(ControlMessage(r_id=request.r_id, body=body or _success(request.body)), self.codec)
        )

    def refuse(
        self, request: ControlMessage, category: StatusCategory = StatusCategory.E_REFUSED, code: int = 1
    ) -> None:
        """Refuse a request."""
        self.reply(request, Status(category=category, code=code, message="the suite says no"))

    @property
    def legacy(self) -> bool:
        """Whether the client sends correlation ids, and the broker creates the GUIDs of its messages."""
        return not self.identified.guid_info.client_id

    def acknowledge(self, puts: Iterable[DecodedPut], status: int = 0) -> None:
        """Acknowledge messages in one event, with a status of the wire."""
        self.send(encode_acks([(status, *self._named(put), put.queue_id) for put in puts]))

    def _named(self, put: DecodedPut) -> tuple[int, bytes]:
        """The correlation id and the GUID of a message in its acknowledgement."""
        if not self.legacy:
            return 0, put.guid
        self._created += 1
        return int.from_bytes(put.guid[CORRELATION_ID], "big"), guid(_CREATED + self._created)

    def deliver(self, *messages: bytes) -> None:
        """Send messages, as :func:`pushed` encodes them, in one event."""
        body = b"".join(messages)
        self.send(pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body)


def pushed(
    queue: Opened,
    number: int,
    payload: bytes,
    *,
    properties: Mapping[str, PropertyInput] | None = None,
    new: bool = True,
    compression: Compression = Compression.NONE,
    options: bytes | None = None,
    flags: int = 0,
    q_id: int | None = None,
) -> bytes:
    """A message of a PUSH event, for the first subscription of a queue.

    Args:
        queue: the queue.
        number: number of the message's GUID.
        payload: the payload.
        properties: the properties.
        new: whether the properties have the new encoding.
        compression: of the application data.
        options: the options area instead of the subscription's number.
        flags: further flags.
        q_id: number of the queue instead of the right one.
    """
    area = encode_properties(properties or {}, new=new)
    data, used = join_application_data(payload, area, new=new, compression=compression)
    return encode_push(
        queue.q_id if q_id is None else q_id,
        guid(number),
        data + padding(len(data)),
        encode_sub_queue_ids(queue.s_ids[:1]) if options is None else options,
        flags=flags | (PushFlags.MESSAGE_PROPERTIES if area else 0),
        schema_id=1 if area and new else 0,
        compression=used,
    )


class Stage:
    """The scripted broker and the client of one case.

    Args:
        patience: seconds to wait for the client's next step.

    Attributes:
        uri: address of the broker.
        peers: the client's connections, in order.
    """

    def __init__(self, patience: float = ANSWER) -> None:
        self.uri = ""
        self.peers: list[Line] = []
        self._patience = patience
        self._arrived = asyncio.Queue[Line | None]()
        self._reason: Mismatch | Unsupported | None = None
        self._server: asyncio.Server | None = None
        self._program: Program | None = None

    # ---- life

    async def listen(self, port: int = 0) -> None:
        """Listen on a port of loopback, a free one by default."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.uri = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def use(self, program: Program) -> None:
        """Take the client under test."""
        self._program = program

    async def end(self) -> None:
        """End the client, and close everything."""
        if self._server is not None:
            self._server.close()
        if self._program is not None:
            await self._program.end()
        for line in self.peers:
            line.drop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(len(self.peers) + 1, reader, writer, self._patience)
        self.peers.append(line)
        self._arrived.put_nowait(line)

    # ---- the client

    def do(self, verb: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        """Ask the client for something, without waiting."""
        assert self._program is not None
        if verb == "open":
            arguments = {"read": False, "write": False, **arguments}
        asked = self._program.do(verb, **arguments)
        asked.add_done_callback(self._note)
        return asked

    def _note(self, asked: asyncio.Future[dict[str, Any]]) -> None:
        """End the waits of a case whose command the client cannot do, or whose client has ended."""
        if asked.cancelled():
            return
        if isinstance(error := asked.exception(), Mismatch):
            self._give_up(error)
        elif error is None and asked.result().get("unsupported"):
            self._give_up(Unsupported(asked.result().get("error", "")))

    def _give_up(self, reason: Mismatch | Unsupported) -> None:
        self._reason = reason
        self._arrived.put_nowait(None)
        for line in self.peers:
            line.give_up(reason)

    def post(
        self, queue: Opened, payload: bytes, properties: Mapping[str, Any] | None = None
    ) -> asyncio.Future[dict[str, Any]]:
        """Ask the client to post a message; the answer comes with the acknowledgement."""
        more = {} if properties is None else {"properties": dict(properties)}
        return self.do("post", queue=queue.uri, data=base64.b64encode(payload).decode(), **more)

    async def answer(
        self, asked: asyncio.Future[dict[str, Any]], seconds: float | None = None
    ) -> dict[str, Any]:
        """Return the client's answer, which may be an error.

        Raises:
            Mismatch: there is no answer.
            Unsupported: the client cannot do it.
        """
        seconds = self._patience if seconds is None else seconds
        try:
            answer = await asyncio.wait_for(asyncio.shield(asked), seconds)
        except TimeoutError:
            raise Mismatch("an answer of the program", f"nothing within {seconds:g} s") from None
        if answer.get("unsupported"):
            raise Unsupported(answer.get("error", ""))
        return answer

    async def done(
        self, asked: asyncio.Future[dict[str, Any]], seconds: float | None = None
    ) -> dict[str, Any]:
        """Return the client's answer, which must be a success."""
        answer = await self.answer(asked, seconds)
        if not answer.get("ok"):
            raise fail("success of the client", f"the error {answer.get('error', '')!r}")
        return answer

    async def failed(self, asked: asyncio.Future[dict[str, Any]], seconds: float | None = None) -> str:
        """Return the client's error; success is a mismatch."""
        answer = await self.answer(asked, seconds)
        if answer.get("ok"):
            raise fail("an error of the client", "success")
        return str(answer.get("error", ""))

    async def received(self, asked: asyncio.Future[dict[str, Any]]) -> bytes:
        """Return the payload of a message that the client received."""
        return base64.b64decode((await self.done(asked)).get("data", ""))

    # ---- conversations

    async def connection(self, seconds: float = _CONNECTION) -> Line:
        """Return the client's next connection."""
        try:
            async with asyncio.timeout(seconds):
                line = await self._arrived.get()
        except TimeoutError:
            raise Mismatch("a connection of the client", f"none within {seconds:g} s") from None
        if line is None:
            assert self._reason is not None
            raise self._reason
        return line

    async def negotiated(
        self, category: StatusCategory = StatusCategory.E_SUCCESS, features: str = FEATURES
    ) -> Line:
        """Return the client's next connection after a successful negotiation."""
        line = await self.connection()
        await line.introduction()
        line.codec = codec_of(line.identified)
        line.send(line.welcome(category=category, features=features, codec=line.codec))
        return line

    async def started(self, features: str = FEATURES) -> Line:
        """Start the client's session; return its connection."""
        asked = self.do("start")
        line = await self.negotiated(features=features)
        await self.done(asked)
        return line

    async def served(
        self,
        line: Line,
        asked: asyncio.Future[dict[str, Any]],
        act: Callable[[ControlMessage], bool] | None = None,
    ) -> list[ControlBody]:
        """Answer requests until the client has an answer, and from then on; return the requests so far.

        Args:
            line: the connection.
            asked: what the client is doing.
            act: answers a request itself and returns True, or returns False for success.
        """
        line.requests.clear()
        line.serve(act)
        await self.answer(asked)
        line.act = None
        return list(line.requests)

    async def opened(self, line: Line, uri: str, *, read: bool = False, write: bool = False) -> Opened:
        """Let the client open a queue; return what the client tells about it."""
        queue = Opened(uri)
        line.queues.append(queue)
        asked = self.do("open", queue=uri, read=read, write=write)
        await self.served(line, asked)
        await self.done(asked)
        return queue

    async def queue(
        self, uri: str = ORDERS, *, read: bool = False, write: bool = False, features: str = FEATURES
    ) -> tuple[Line, Opened]:
        """Start the client's session, and let the client open a queue."""
        line = await self.started(features)
        return line, await self.opened(line, uri, read=read, write=write)

    async def restored(self, *queues: Opened) -> Line:
        """Return the client's next connection, on which it has opened these queues again."""
        line = await self.negotiated()
        for queue in queues:
            queue.requests.clear()
        line.queues += queues
        line.serve()
        await line.until(lambda: all(queue.ready for queue in queues), f"{len(queues)} queues opened again")
        return line

    async def again_or_failed(
        self, line: Line, calls: list[asyncio.Future[dict[str, Any]]]
    ) -> list[DecodedPut]:
        """Return the messages that the client posts again; none if it reports all of them as not accepted."""
        again = asyncio.create_task(line.puts(len(calls)))
        try:
            events: list[asyncio.Future[Any]] = [again, *calls]
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                return again.result()
            for call in calls:
                check(accepted(await self.answer(call)), False, "accepted")
        finally:
            again.cancel()
        return []

    async def alive(self, line: Line, queue: Opened) -> None:
        """Expect that the client can still post, on this connection or on a new one."""
        asked = self.post(queue, _ALIVE)
        try:
            asked, puts = await self._posted(line, queue, asked)
            line.acknowledge(puts)
            await line.outlived(asked)
        except Mismatch:
            if not line.over:
                raise
            # The client gave the connection up: before its post, or after it and before the acknowledgement.
            line = await self.restored(queue)
            asked, puts = await self._posted(line, queue, asked)
            line.acknowledge(puts)
        answer = await self.done(asked)
        if answer.get("status") != "SUCCESS":
            raise fail("an accepted message", answer)

    async def _posted(
        self, line: Line, queue: Opened, asked: asyncio.Future[dict[str, Any]]
    ) -> tuple[asyncio.Future[dict[str, Any]], list[DecodedPut]]:
        """Return the message that the client posts, and the call.

        A client may refuse a message while it opens the queue again, or report the message as not accepted:
        the message is posted once more.
        """
        waiting = asyncio.create_task(self._put_of(line, _ALIVE))
        try:
            while True:
                await asyncio.wait((waiting, asked), return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    return asked, waiting.result()
                if accepted(await self.answer(asked)):
                    raise Mismatch("a PUT event", "success without a PUT event")
                await asyncio.sleep(_AGAIN)
                asked = self.post(queue, _ALIVE)
        finally:
            waiting.cancel()

    async def _put_of(self, line: Line, payload: bytes) -> list[DecodedPut]:
        while True:
            puts = await line.puts()
            if any(put.data.endswith(payload) for put in puts):
                return puts


def accepted(answer: Mapping[str, Any]) -> bool:
    """Whether the answer to a post says that the broker has accepted the message."""
    return bool(answer.get("ok")) and answer.get("status") == "SUCCESS"


def codec_of(identity: ClientIdentity) -> Codec:
    """The encoding that the client understands."""
    return Codec.JSON if "JSON" in identity.features else Codec.BER


def _success(body: ControlBody | None) -> ControlBody:
    match body:
        case OpenQueue():
            return OpenQueueResponse(
                original_request=body,
                routing_configuration=RoutingConfiguration(flags=2),
                deduplication_time_ms=300_000,
            )
        case ConfigureStream():
            return ConfigureStreamResponse(request=body)
        case ConfigureQueueStream():
            return ConfigureQueueStreamResponse(request=body)
        case CloseQueue():
            return CloseQueueResponse()
        case Disconnect():
            return DisconnectResponse()
        case _:
            raise fail("a request of a client", body)
