# SPDX-License-Identifier: Apache-2.0
"""PUT, ACK, CONFIRM: acceptance, refusal, deduplication, quotas, expiry."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from bmq.wire.constants import PushFlags, PutFlags
from bmq.wire.control.messages import GuidInfo
from bmq.wire.push import PushMessage
from bmq.wire.put import encode_put
from tests.conformance.raw import Connect, NewUri, subscription

SMALL = "bmq.test.small.priority"


def flipped(put: bytes) -> bytes:
    """A PUT message with another CRC."""
    return put[:28] + bytes([put[28] ^ 0xFF]) + put[29:]


class TestPut:
    @pytest.mark.statement("4.10")
    async def test_a_post_is_acknowledged_by_its_guid(self, client: Connect, bmq_queue_uri: str) -> None:
        """ACK of a client that generates GUIDs: status 0, no correlation id, its GUID, its qId."""
        raw = await client()
        await raw.open(bmq_queue_uri, 5)
        guid = raw.post(b"x", 5)
        assert await raw.ack() == (0, 0, guid, 5)

    async def test_only_when_asked_for(self, client: Connect, bmq_queue_uri: str) -> None:
        """ACK 0 only if the PUT asked for one."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        raw.post(b"silent", ack=False)
        guid = raw.post(b"loud")
        assert (await raw.ack()).guid == guid

    @pytest.mark.parametrize("ack", [True, False])
    async def test_a_post_to_an_unknown_queue_id_is_refused(
        self, client: Connect, bmq_queue_uri: str, ack: bool
    ) -> None:
        """PUT to an unknown qId: NACK status 5, asked for or not."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        guid = raw.post(b"x", 99, ack=ack)
        answer = await raw.ack()
        assert (answer.status, answer.queue_id, answer.guid) == (5, 99, guid)

    async def test_a_post_with_a_zero_guid_is_refused(self, client: Connect, bmq_queue_uri: str) -> None:
        """PUT with a GUID of zeros: NACK status 5."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        raw.post(b"x", guid=bytes(16))
        assert await raw.statuses(1) == [5]

    async def test_queue_opened_for_reading(self, client: Connect, bmq_queue_uri: str) -> None:
        """PUT to a queue opened for reading: NACK status 5."""
        raw = await client()
        await raw.open(bmq_queue_uri, write=False)
        raw.post(b"x")
        assert await raw.statuses(1) == [5]

    @pytest.mark.statement("3.7")
    async def test_a_post_with_a_wrong_crc_is_accepted(self, client: Connect, bmq_queue_uri: str) -> None:
        """Wrong CRC: accepted and delivered."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        await raw.configure(0, subscription(1))
        raw.put_encoded(flipped(encode_put(0, secrets.token_bytes(16), b"payload")))
        assert await raw.statuses(1) == [0]
        assert await raw.payloads(1) == [b"payload"]

    @pytest.mark.statement("4.8")
    async def test_a_post_without_data_gets_no_answer(self, client: Connect, bmq_queue_uri: str) -> None:
        """PUT without application data: no answer; the connection and the next PUT are fine."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        raw.put_encoded(encode_put(0, secrets.token_bytes(16), b""))
        guid = raw.post(b"good")
        assert (await raw.ack()).guid == guid

    @pytest.mark.statement("3.3")
    async def test_an_event_of_several(self, client: Connect, bmq_queue_uri: str) -> None:
        """Several messages of one event: stored, acknowledged and delivered in order."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        await raw.configure(0, subscription(1))
        guids = [secrets.token_bytes(16) for _ in range(20)]
        raw.put_encoded(*(encode_put(0, guid, b"%d" % n) for n, guid in enumerate(guids)))
        assert [(await raw.ack()).guid for _ in guids] == guids
        assert await raw.payloads(20) == [b"%d" % n for n in range(20)]

    @pytest.mark.parametrize("version", [0x00, 0x40, 0x80, 0xC0])
    async def test_guids_of_any_version(self, client: Connect, bmq_queue_uri: str, version: int) -> None:
        """GUIDs with version bits 00, 01, 10, 11: all accepted."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        guid = bytes([version | 1]) + secrets.token_bytes(15)
        raw.post(b"x", guid=guid)
        assert (await raw.ack())[:3] == (0, 0, guid)


class TestDeduplication:
    async def test_a_guid_is_recognised_in_one_session(self, client: Connect, bmq_queue_uri: str) -> None:
        """Same GUID posted twice: two ACKs with status 0, delivered once."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        await raw.configure(0, subscription(1))
        guid = raw.post(b"one")
        assert await raw.statuses(1) == [0]
        raw.post(b"two", guid=guid)
        assert await raw.statuses(1) == [0]
        assert await raw.payloads(1) == [b"one"]
        assert await raw.no_push()

    @pytest.mark.statement("4.11")
    async def test_after_confirm_and_reconnect(self, client: Connect, bmq_queue_uri: str) -> None:
        """Same GUID after confirm, disconnect and reconnect: ACK 0, not delivered again."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        await raw.configure(0, subscription(1))
        guid = raw.post(b"one")
        await raw.push()
        raw.confirm(guid)
        await raw.close_queue(bmq_queue_uri)
        await raw.disconnect()
        again = await client()
        await again.open(bmq_queue_uri)
        await again.configure(0, subscription(1))
        again.post(b"one", guid=guid)
        assert await again.statuses(1) == [0]
        assert await again.no_push()

    async def test_on_a_full_queue(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """The duplicate check runs before the quota check: a duplicate succeeds on a full queue."""
        raw = await client()
        await raw.open(bmq_new_queue_uri(SMALL))
        guids = [raw.post(b"x") for _ in range(12)]
        assert await raw.statuses(12) == [0] * 11 + [1]
        raw.post(b"x", guid=guids[0])
        assert await raw.statuses(1) == [0]

    async def test_each_queue_recognises_its_own_guids(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """Deduplication: the key is the GUID, per queue."""
        raw = await client()
        for q_id in (0, 1):
            await raw.open(bmq_new_queue_uri(), q_id)
            await raw.configure(q_id, subscription(q_id + 1))
        guid = raw.post(b"in 0", 0)
        # One after the other: of two unanswered PUTs with one GUID in one session, one ACK may be dropped.
        assert await raw.statuses(1) == [0]
        raw.post(b"in 1", 1, guid=guid)
        assert await raw.statuses(1) == [0]
        assert sorted(await raw.payloads(2)) == [b"in 0", b"in 1"]


class TestQuota:
    async def test_a_limit_of_messages_admits_one_more(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """Quota 10: 11 accepted, then status 1."""
        raw = await client()
        await raw.open(bmq_new_queue_uri(SMALL))
        for _ in range(14):
            raw.post(b"x")
        assert await raw.statuses(14) == [0] * 11 + [1] * 3

    async def test_a_message_may_exceed_the_limit_of_bytes(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """Quota of bytes: the check comes before adding; status 2 after it was exceeded."""
        raw = await client()
        await raw.open(bmq_new_queue_uri(SMALL))
        raw.post(bytes(4000))
        raw.post(bytes(4000))
        raw.post(b"x")
        assert await raw.statuses(3) == [0, 0, 2]

    async def test_refused_without_having_asked(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Refused PUT: always a negative ACK, requested or not."""
        raw = await client()
        await raw.open(bmq_new_queue_uri(SMALL))
        for _ in range(12):
            raw.post(b"x", ack=False)
        assert await raw.statuses(1) == [1]

    async def test_each_queue_has_its_own(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Queue limits: of each queue."""
        raw = await client()
        for q_id in (0, 1):
            await raw.open(bmq_new_queue_uri(SMALL), q_id)
            for _ in range(11):
                raw.post(b"x", q_id)
        assert await raw.statuses(22) == [0] * 22

    async def test_confirming_makes_room(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Usage falls when the last app confirms; the next PUT is accepted."""
        raw = await client()
        await raw.open(bmq_new_queue_uri(SMALL))
        await raw.configure(0, subscription(1))
        for _ in range(11):
            raw.post(b"x")
        assert await raw.statuses(11) == [0] * 11
        for _ in range(11):
            raw.confirm((await raw.push()).push.guid)
        await raw.barrier()
        raw.post(b"x")
        assert await raw.statuses(1) == [0]


class TestProperties:
    async def test_the_new_encoding_arrives_as_the_new_one(self, client: Connect, bmq_queue_uri: str) -> None:
        """Properties and payload arrive as posted; the flag marks the presence of properties."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        await raw.configure(0, subscription(1))
        raw.post(b"payload", properties={"x": 1, "s": "text"})
        got = await raw.push()
        assert got.payload == b"payload"
        assert got.push.flags & PushFlags.MESSAGE_PROPERTIES
        assert got.push.schema_id != 0

    async def test_a_client_without_the_new_encoding_gets_the_old_one(
        self, client: Connect, bmq_queue_uri: str
    ) -> None:
        """A consumer without MESSAGE_PROPERTIES_EX gets rewritten properties: schema id 0."""
        producer = await client()
        await producer.open(bmq_queue_uri, read=False)
        old = await client(features="PROTOCOL_ENCODING:JSON")
        await old.open(bmq_queue_uri, write=False)
        await old.configure(0, subscription(1))
        producer.post(b"payload", properties={"x": 1, "s": "text"})
        got = await old.push()
        assert got.push.schema_id == 0
        assert got.push.flags & PushFlags.MESSAGE_PROPERTIES
        assert got.payload == b"payload"


class TestExpiry:
    @pytest.mark.statement("1.5")
    async def test_unconfirmed_messages_expire(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """messageTtl 2: gone some seconds later, delivered or not; a late CONFIRM does nothing."""
        uri = bmq_new_queue_uri("bmq.test.ttl.priority")
        raw = await client()
        await raw.open(uri)
        await raw.configure(0, subscription(1))
        guid = raw.post(b"old")
        await raw.push()
        await raw.configure(0)
        other = await client()
        await other.open(uri)
        await other.configure(0, subscription(1))
        async with asyncio.timeout(20):
            while not await other.no_push():  # it is offered to whoever comes, until it is gone
                await other.configure(0)
                await other.configure(0, subscription(1))
        raw.confirm(guid)
        await raw.barrier()
        other.post(b"new")
        assert await other.payloads(1) == [b"new"]


def shape(push: PushMessage) -> tuple[int, tuple[int, ...], int]:
    return push.queue_id, push.sub_ids, push.flags


class TestPush:
    async def test_push_to_a_client_has_its_queue_id_and_the_subscription_id(
        self, client: Connect, bmq_queue_uri: str
    ) -> None:
        """PUSH to a client: its qId, the sId of the subscription, no flags, the producer's GUID."""
        raw = await client()
        await raw.open(bmq_queue_uri, 3)
        await raw.configure(3, subscription(11))
        guid = raw.post(b"x", 3)
        got = await raw.push()
        assert (shape(got.push), got.push.guid) == ((3, (11,), 0), guid)

    async def test_a_message_of_16_mib(self, client: Connect, bmq_queue_uri: str) -> None:
        """16 MiB: delivered."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        await raw.configure(0, subscription(1))
        payload = bytes(16 * 1024 * 1024)
        raw.post(payload)
        assert await raw.payloads(1) == [payload]


class TestConfirm:
    async def test_a_message_is_confirmed_from_another_session(
        self, client: Connect, bmq_queue_uri: str
    ) -> None:
        """CONFIRM from another session of the same queue: accepted, not redelivered."""
        one, two = await client(), await client()
        await one.open(bmq_queue_uri)
        await one.configure(0, subscription(1, priority=2))
        await two.open(bmq_queue_uri)
        await two.configure(0, subscription(1, priority=1))
        guid = one.post(b"x")
        await one.push()
        two.confirm(guid)
        await two.barrier()
        await one.close_queue(bmq_queue_uri)
        assert await two.no_push()

    async def test_confirm_of_an_unknown_message_is_ignored(
        self, client: Connect, bmq_queue_uri: str
    ) -> None:
        """CONFIRM of an unknown GUID, qId or sub-queue, or twice: silently ignored."""
        raw = await client()
        await raw.open(bmq_queue_uri)
        await raw.configure(0, subscription(1))
        guid = raw.post(b"x")
        await raw.push()
        raw.confirm(secrets.token_bytes(16))
        raw.confirm(guid, q_id=77)
        raw.confirm(guid, sub_id=5)
        await raw.close_queue(bmq_queue_uri)
        await raw.open(bmq_queue_uri)
        await raw.configure(0, subscription(1))
        assert await raw.payloads(1) == [b"x"]
        raw.confirm(guid)
        raw.confirm(guid)
        raw.post(b"y")
        assert await raw.payloads(1) == [b"y"]


class TestLegacy:
    async def test_a_client_without_guids_is_answered_by_correlation_id(
        self, client: Connect, bmq_queue_uri: str
    ) -> None:
        """A client without guidInfo puts a 24-bit correlationId in the GUID; the ACK returns it."""
        raw = await client(guid_info=GuidInfo(client_id="", nano_seconds_from_epoch=0))
        await raw.open(bmq_queue_uri)
        raw.put_encoded(encode_put(0, b"\x00\x00\x00\x2a" + bytes(12), b"x", PutFlags.ACK_REQUESTED))
        ack = await raw.ack()
        assert (ack.status, ack.correlation_id) == (0, 42)
        assert ack.guid != bytes(16)
