# SPDX-License-Identifier: Apache-2.0
"""Negotiation, authentication, heartbeats, and invalid requests."""

from __future__ import annotations

import pytest

from bmq.wire.constants import EventType
from bmq.wire.control import Codec, StatusCategory, encode_event
from bmq.wire.control.messages import (
    AdminCommand,
    AdminCommandResponse,
    ClientLanguage,
    ClientType,
    CloseQueue,
    ConfigureStream,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    OpenQueue,
    QueueHandleParameters,
    StreamParameters,
)
from bmq.wire.event import HEARTBEAT_REQ, pack_event_header, pack_schema_event
from tests.conformance.raw import Connect, NewUri, open_queue, subscription

FANOUT = "bmq.test.mem.fanout"


class TestNegotiation:
    @pytest.mark.statement("3.12")
    async def test_a_json_client_is_accepted(self, dialled: Connect) -> None:
        """Negotiation: features JSON and MESSAGE_PROPERTIES_EX, sdkLanguage E_UNKNOWN: accepted."""
        response = await (await dialled()).negotiate()
        assert response.result.category is StatusCategory.E_SUCCESS
        assert response.protocol_version == 1
        assert response.broker_identity.client_type is ClientType.E_TCPBROKER
        assert response.heartbeat_interval_ms == 3000

    async def test_the_broker_offers_both_encodings_properties_and_subscriptions(
        self, dialled: Connect
    ) -> None:
        """Negotiation: the features of a broker with subscriptions switched on."""
        response = await (await dialled()).negotiate()
        offered = {
            name: set(values.split(","))
            for name, _, values in (
                field.partition(":") for field in response.broker_identity.features.split(";")
            )
        }
        assert offered["PROTOCOL_ENCODING"] == {"BER", "JSON"}
        assert offered["MPS"] == {"MESSAGE_PROPERTIES_EX"}
        assert offered["SUBSCRIPTIONS"] == {"CONFIGURE_STREAM"}

    async def test_a_client_without_a_type_is_disconnected_silently(self, dialled: Connect) -> None:
        """Negotiation: clientType E_UNKNOWN: connection closed without a word."""
        client = await dialled()
        with pytest.raises(ConnectionError):
            await client.negotiate(client_type=ClientType.E_UNKNOWN)
        await client.ended()

    async def test_a_client_of_an_unknown_language_is_disconnected_silently(self, dialled: Connect) -> None:
        """Negotiation: sdkLanguage "E_PYTHON": connection closed without a word."""
        client = await dialled()
        client.send(
            pack_schema_event(
                EventType.CONTROL,
                Codec.JSON,
                b'{"clientIdentity":{"protocolVersion":1,"sdkVersion":1,"clientType":"E_TCPCLIENT",'
                b'"sdkLanguage":"E_PYTHON","features":"PROTOCOL_ENCODING:JSON"}}',
            )
        )
        await client.ended()

    @pytest.mark.statement("4.1")
    async def test_an_old_sdk_is_refused_with_a_reason(self, dialled: Connect) -> None:
        """Negotiation: sdkLanguage E_CPP with sdkVersion 1: E_NOT_SUPPORTED and a text."""
        client = await dialled()
        response = await client.negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
        assert response.result.category is StatusCategory.E_NOT_SUPPORTED
        assert response.result.message.startswith("Client is using an unsupported version of libbmq")

    async def test_an_impossible_length_closes_the_connection(self, client: Connect) -> None:
        """Framing: an event length of 2: connection closed."""
        raw = await client()
        raw.send(b"\x00\x00\x00\x02\x41\x02\x00\x00")
        await raw.ended()


class TestAuthentication:
    async def test_anonymous_clients_are_accepted(self, dialled: Connect) -> None:
        """Authentication: ANONYMOUS: success without lifetime."""
        client = await dialled()
        response = await client.authenticate("ANONYMOUS", b"")
        assert response.status.category is StatusCategory.E_SUCCESS
        assert response.lifetime_ms is None
        await client.negotiate()

    async def test_an_unknown_mechanism_is_refused(self, dialled: Connect) -> None:
        """Authentication: unknown mechanism: E_REFUSED -2 and closed."""
        client = await dialled()
        response = await client.authenticate("NO_SUCH", b"x")
        assert (response.status.category, response.status.code) == (StatusCategory.E_REFUSED, -2)
        await client.ended()


class TestHeartbeats:
    async def test_a_request_is_answered(self, client: Connect) -> None:
        """Heartbeats: HEARTBEAT_REQ is answered with HEARTBEAT_RSP, which is a header alone."""
        raw = await client()
        raw.send(HEARTBEAT_REQ)
        await raw.event(EventType.HEARTBEAT_RSP)


class TestRequests:
    @pytest.mark.parametrize(
        "body",
        [
            b"this is not JSON",
            b'{"rId":1}',
            b'{"openQueue":{"handleParameters":{}}}',
            b'{"rId":1,"noSuchRequest":{}}',
            b"",
        ],
        ids=["no JSON", "nothing asked", "no rId", "unknown request", "empty"],
    )
    async def test_unreadable_requests_are_ignored(
        self, client: Connect, bmq_queue_uri: str, body: bytes
    ) -> None:
        """Control events that do not decode, or lack rId: no answer, the connection stays."""
        raw = await client()
        raw.send(pack_schema_event(EventType.CONTROL, Codec.JSON, body))
        await raw.open(bmq_queue_uri)
        raw.post(b"x")
        assert await raw.statuses(1) == [0]

    async def test_reject_and_unknown_events_are_ignored(self, client: Connect, bmq_queue_uri: str) -> None:
        """Other input: REJECT, or any other event type: logged, ignored."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        raw.send(pack_event_header(8, EventType.ELECTOR))
        raw.post(b"x")
        assert await raw.statuses(1) == [0]

    @pytest.mark.statement("4.14")
    async def test_disconnect_is_answered_last(self, client: Connect, bmq_queue_uri: str) -> None:
        """A disconnect is answered, and nothing after it."""
        raw = await client()
        assert await raw.ask(Disconnect()) == DisconnectResponse()
        raw.send(encode_event(ControlMessage(r_id=99, body=open_queue(bmq_queue_uri)), Codec.JSON))
        with pytest.raises(TimeoutError):
            await raw.ask(open_queue(bmq_queue_uri), timeout=0.2)

    async def test_an_admin_client_is_answered(self, dialled: Connect) -> None:
        """Admin session: clientType E_TCPADMIN; adminCommand is answered with text."""
        raw = await dialled()
        await raw.negotiate(client_type=ClientType.E_TCPADMIN)
        reply = await raw.ask(AdminCommand(command="HELP"))
        assert isinstance(reply, AdminCommandResponse)
        for command in ("HELP", "DOMAINS DOMAIN <name> PURGE"):
            assert command in reply.text


def handle(uri: str, **changes: int) -> QueueHandleParameters:
    values: dict[str, int] = {"q_id": 0, "flags": 6, "read_count": 1, "write_count": 1, "admin_count": 0}
    return QueueHandleParameters(uri=uri, **values | changes)  # type: ignore[arg-type]


class TestOpen:
    @pytest.mark.parametrize(
        ("domain", "flags"),
        [("bmq.test.mem.priority", 2), (FANOUT, 10), ("bmq.test.mem.broadcast", 7)],
    )
    @pytest.mark.statement("4.3")
    async def test_the_answer_contains_the_mode(
        self, client: Connect, bmq_new_queue_uri: NewUri, domain: str, flags: int
    ) -> None:
        """Open: routingConfiguration flags 2, 10, 7; deduplicationTimeMs 300000."""
        raw = await client()
        reply = await raw.open(bmq_new_queue_uri(domain), read=False)
        assert reply.routing_configuration.flags == flags  # type: ignore[union-attr]
        assert reply.deduplication_time_ms == 300_000  # type: ignore[union-attr]

    async def test_an_unknown_domain_is_refused(self, client: Connect) -> None:
        """Open, no domain file: E_UNKNOWN -1 "Domain file '<path>' doesn't exist"."""
        category, code, text = await (await client()).refused(open_queue("bmq://no.such/q"))
        assert (category, code) == ("E_UNKNOWN", -1)
        assert text.startswith("Domain file '")
        assert text.endswith("no.such.json' doesn't exist")

    async def test_an_invalid_uri_is_refused(self, client: Connect) -> None:
        """Open, bad URI: E_REFUSED 0 and the parser's text."""
        assert await (await client()).refused(open_queue("tcp://bmq.test.mem.priority/q")) == (
            "E_REFUSED", 0, 'Invalid scheme: uri must start with "bmq://"',
        )  # fmt: skip

    @pytest.mark.statement("4.4")
    async def test_fanout_reader_without_app_id(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Open, fanout reader without appId: E_UNKNOWN -1."""
        raw = await client()
        assert await raw.refused(open_queue(bmq_new_queue_uri(FANOUT), write=False)) == (
            "E_UNKNOWN", -1, "Reader of a fanout queue requires an appId to be specified.",
        )  # fmt: skip

    @pytest.mark.parametrize("domain", ["bmq.test.mem.priority", "bmq.test.mem.broadcast"])
    async def test_app_id_outside_of_fanout_is_an_error(
        self, client: Connect, bmq_new_queue_uri: NewUri, domain: str
    ) -> None:
        """Open, appId on priority or broadcast: E_UNKNOWN -1."""
        uri = bmq_new_queue_uri(domain) + "?id=foo"
        assert await (await client()).refused(open_queue(uri, write=False, sub_id=1)) == (
            "E_UNKNOWN", -1, "AppId should not be specified when opening a non-fanout queue",
        )  # fmt: skip

    async def test_writer_with_app_id(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Open, writer with appId: E_INVALID_ARGUMENT 0."""
        uri = bmq_new_queue_uri(FANOUT) + "?id=foo"
        category, code, text = await (await client()).refused(open_queue(uri, read=False, sub_id=1))
        assert (category, code) == ("E_INVALID_ARGUMENT", 0)
        assert text.startswith("AppId should not be specified in the URI if queue is opened in write mode")

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"read_count": 0, "write_count": 0}, "At least one of ([read|write]) Count must be >0"),
            ({"admin_count": 1}, "adminCount must be 0"),
            ({"flags": 4}, "Read flag and readCount must both be set accordingly"),
            ({"flags": 2}, "Write flag and writeCount must both be set accordingly"),
            ({"q_id": 4_294_967_290}, "qId must not be set from the reserved queue ids range"),
        ],
    )
    async def test_parameters_that_do_not_fit(
        self, client: Connect, bmq_queue_uri: str, changes: dict[str, int], text: str
    ) -> None:
        """Open: counts, flags and reserved queue ids: E_INVALID_ARGUMENT 0, each with its text."""
        refused = await (await client()).refused(
            OpenQueue(handle_parameters=handle(bmq_queue_uri, **changes))
        )
        assert refused[:2] == ("E_INVALID_ARGUMENT", 0)
        assert text in refused[2]

    async def test_a_queue_id_of_another_queue(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Open, same qId, different URI: E_INVALID_ARGUMENT -1."""
        raw = await client()
        await raw.open(bmq_new_queue_uri())
        assert (await raw.refused(open_queue(bmq_new_queue_uri())))[:2] == ("E_INVALID_ARGUMENT", -1)

    async def test_an_unknown_app_opens(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Open, appId not configured in the domain: success, and no messages."""
        raw = await client()
        uri = bmq_new_queue_uri(FANOUT)
        await raw.open(uri, 0, read=False)
        await raw.open(uri + "?id=nobody", 0, write=False, sub_id=1)
        await raw.configure(0, subscription(1), app_id="nobody")
        raw.post(b"x")
        assert await raw.statuses(1) == [0]
        assert await raw.no_push()


class TestConfigureAndClose:
    async def test_configuring_an_unknown_queue_is_refused(self, client: Connect) -> None:
        """Configure, unknown qId: E_UNKNOWN 0 "No queue with specified Id"."""
        request = ConfigureStream(q_id=77, stream_parameters=StreamParameters(subscriptions=()))
        assert await (await client()).refused(request) == ("E_UNKNOWN", 0, "No queue with specified Id")

    async def test_closing_an_unknown_queue_is_refused(self, client: Connect, bmq_queue_uri: str) -> None:
        """Close, unknown qId: E_UNKNOWN 0 "No queue with specified Id"."""
        request = CloseQueue(handle_parameters=handle(bmq_queue_uri, q_id=77), is_final=True)
        assert await (await client()).refused(request) == ("E_UNKNOWN", 0, "No queue with specified Id")

    async def test_close_nothing(self, client: Connect, bmq_queue_uri: str) -> None:
        """Close, all counts 0: E_INVALID_ARGUMENT 0."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        parameters = handle(bmq_queue_uri, read_count=0, write_count=0)
        refused = await raw.refused(CloseQueue(handle_parameters=parameters, is_final=False))
        assert refused[:2] == ("E_INVALID_ARGUMENT", 0)

    @pytest.mark.parametrize(("priority", "count"), [(-(2**31), 1), (0, 0)])
    async def test_priority_and_count_that_do_not_fit(
        self, client: Connect, bmq_queue_uri: str, priority: int, count: int
    ) -> None:
        """Configure: "not configured" goes with count 0, any other priority with more: E_UNKNOWN -1."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        parameters = StreamParameters(subscriptions=(subscription(1, priority=priority, count=count),))
        assert await raw.refused(ConfigureStream(q_id=0, stream_parameters=parameters)) == (
            "E_UNKNOWN", -1, "Attempting to configure stream with invalid priority.",
        )  # fmt: skip

    @pytest.mark.statement("4.2")
    async def test_configure_of_a_writer_has_no_effect(self, client: Connect, bmq_queue_uri: str) -> None:
        """Configure of a handle without read count: success, ignored."""
        raw = await client()
        await raw.open(bmq_queue_uri, read=False)
        await raw.configure(0, subscription(1))
        raw.post(b"x")
        assert await raw.statuses(1) == [0]
        assert await raw.no_push()
