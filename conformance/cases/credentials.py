# SPDX-License-Identifier: Apache-2.0
# The rows of a table take any arguments: pyright cannot know those of a lambda in a row.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""Credentials of the mechanism BASIC, the lifetime of credentials, and heartbeats without an answer.

The cases of credentials need a user of the broker, and are not tested without a user.
"""

from __future__ import annotations

from collections.abc import Callable

from bmq import _world
from bmq.errors import StatusCategory
from bmq.wire.constants import EventType
from bmq.wire.control import Codec
from bmq.wire.event import HEARTBEAT_REQ
from conformance.bench import Bench
from conformance.case import Cases, Level, Untested, check, fail
from conformance.peer import Peer

__all__ = ["GROUP"]

GROUP = Cases(10, "Credentials and heartbeats")

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED
_BASIC = "BASIC"
_OK = StatusCategory.E_SUCCESS


async def _admitted(bench: Bench) -> tuple[Peer, int]:
    """A connection with accepted credentials, and the lifetime of the credentials in milliseconds."""
    peer = await bench.dial()
    response = await peer.authenticate(_BASIC, bench.user)
    check(response.status.category, _OK, "category")
    return peer, response.lifetime_ms or 0


async def _works(bench: Bench, peer: Peer) -> None:
    """Expect that a session can open a queue and post."""
    await peer.open(bench.uri())
    peer.post(b"x")
    check((await peer.ack()).status, 0, "status")


def _user(bench: Bench) -> tuple[bytes, bytes]:
    user, _, password = bench.user.partition(b":")
    return user, password


# ---- 10.1 credentials


@GROUP.case("10.1.1", "5.2", domains=("priority",))
async def _right(bench: Bench) -> None:
    """A user with the right password has a session.

    Sends: authenticationRequest BASIC with USER:PASSWORD, then a clientIdentity, an openQueue and a PUT.
    Expects: E_SUCCESS, a brokerResponse with E_SUCCESS, an ACK with the status 0.
    """
    peer, _ = await _admitted(bench)
    check((await peer.negotiate()).result.category, _OK, "result")
    await _works(bench, peer)


async def _refusal(bench: Bench, data: Callable[[bytes, bytes], bytes | None]) -> None:
    sent = data(*_user(bench))
    peer = await bench.dial()
    response = await peer.authenticate(_BASIC, sent)
    if response.status.category is _OK:
        raise fail("a refusal", response.status)
    await peer.closed()


_REFUSED = "a category other than E_SUCCESS, and the end of the connection"
GROUP.rows(_refusal, [
    ("10.1.2", "5.4", _M, "A wrong password is refused", "with the right user and another password", _REFUSED, lambda user, password: user + b":" + password + b"x"),
    ("10.1.3", "5.4", _M, "An unknown user is refused", "with another user and the right password", _REFUSED, lambda user, password: user + b"x:" + password),
    ("10.1.4", "5.4", _M, "An empty password is refused", "with USER and a colon", _REFUSED, lambda user, _: user + b":"),
    ("10.1.5", "5.4", _M, "A user without a password is refused", "with USER, without a colon", _REFUSED, lambda user, _: user),
    ("10.1.6", "5.4", _M, "Missing credentials are refused", "without data", _REFUSED, lambda _, __: None),
    ("10.1.7", "5.4", _M, "The password is compared with its case and its end", "with the password and a zero byte", _REFUSED,
     lambda user, password: user + b":" + password + b"\0"),
], sends="authenticationRequest BASIC {}")  # fmt: skip


@GROUP.case("10.1.8", "5.2", _O)
async def _lower(bench: Bench) -> None:
    """The name of the mechanism has no case.

    Sends: authenticationRequest basic with USER:PASSWORD.
    Expects: E_SUCCESS.
    """
    peer = await bench.dial()
    check((await peer.authenticate("basic", bench.user)).status.category, _OK, "category")


@GROUP.case("10.1.9", "3.4", _S)
async def _ber(bench: Bench) -> None:
    """Credentials in BER are accepted.

    Sends: authenticationRequest BASIC with USER:PASSWORD in BER.
    Expects: E_SUCCESS in BER.
    """
    peer = await bench.dial()
    peer.codec = Codec.BER
    check((await peer.authenticate(_BASIC, bench.user)).status.category, _OK, "category")
    check(peer.codecs, [Codec.BER], "codecs")


@GROUP.case("10.1.10", "5.5", _O)
async def _text(bench: Bench) -> None:
    """The refusal has the category E_REFUSED and a text.

    Sends: authenticationRequest BASIC with another password.
    Expects: E_REFUSED with a text that does not contain the password.
    """
    user, password = _user(bench)
    peer = await bench.dial()
    status = (await peer.authenticate(_BASIC, user + b":" + password + b"x")).status
    check(status.category.name, "E_REFUSED", "category")
    if not status.message or password.decode("utf-8", "replace") in status.message:
        raise fail("a text without the password", f"{len(status.message)} characters")


@GROUP.case("10.1.11", "5.8", _O)
async def _lifetime(bench: Bench) -> None:
    """The answer to credentials has a lifetime.

    Sends: authenticationRequest BASIC with USER:PASSWORD.
    Expects: lifetimeMs above 0.
    """
    _, lifetime = await _admitted(bench)
    if lifetime <= 0:
        raise fail("a lifetimeMs above 0", lifetime)


# ---- 10.2 a session with credentials


@GROUP.case("10.2.1", "5.8", _O, domains=("priority",))
async def _again(bench: Bench) -> None:
    """A session authenticates again.

    Sends: authenticationRequest BASIC, a session, and the same authenticationRequest.
    Expects: E_SUCCESS; the session works.
    """
    peer, _ = await _admitted(bench)
    await peer.negotiate()
    check((await peer.authenticate(_BASIC, bench.user)).status.category, _OK, "category")
    await _works(bench, peer)


@GROUP.case("10.2.2", "5.7")
async def _again_wrong(bench: Bench) -> None:
    """A second request that is refused ends the session.

    Sends: authenticationRequest BASIC, a session, and an authenticationRequest with another password.
    Expects: a category other than E_SUCCESS, and the end of the connection.
    """
    peer, _ = await _admitted(bench)
    await peer.negotiate()
    response = await peer.authenticate(_BASIC, bench.user + b"x")
    if response.status.category is _OK:
        raise fail("a refusal", response.status)
    await peer.closed()


@GROUP.case("10.2.3", "5.7", seconds=720, slow=True)
async def _ends(bench: Bench) -> None:
    """A session ends with the lifetime of its credentials.

    Sends: authenticationRequest BASIC and a session; nothing before lifetimeMs is over but heartbeats.
    Expects: the end of the connection after lifetimeMs, not before.
    """
    began = _world.monotonic()
    peer, lifetime = await _admitted(bench)
    await peer.negotiate()
    if not 0 < lifetime <= 660_000:
        raise Untested(f"the credentials have a lifetime of {lifetime} ms: shorten it to 11 minutes at most")
    await peer.closed(lifetime / 1000 + 30)
    if (lasted := _world.monotonic() - began) < lifetime / 1000 * 0.95:
        raise fail(f"the end after {lifetime / 1000:g} s", f"the end after {lasted:.1f} s")


@GROUP.case("10.2.4", "5.7", seconds=720, slow=True)
async def _renewed(bench: Bench) -> None:
    """A session that authenticates in time outlives its first credentials.

    Sends: authenticationRequest BASIC and a session; the same request again after half of lifetimeMs.
    Expects: an answer to a request after the first lifetimeMs.
    """
    peer, lifetime = await _admitted(bench)
    await peer.negotiate()
    if not 0 < lifetime <= 660_000:
        raise Untested(f"the credentials have a lifetime of {lifetime} ms: shorten it to 11 minutes at most")
    await peer.wait(lifetime / 2000)
    check((await peer.authenticate(_BASIC, bench.user)).status.category, _OK, "category")
    await peer.wait(lifetime / 2000 * 1.1)
    await peer.barrier()


# ---- 10.3 heartbeats of the broker


async def _watched(bench: Bench) -> tuple[Peer, float, float]:
    """A session after a request, the seconds of an interval, and the seconds until a silent client is gone."""
    peer = await bench.dial()
    response = await peer.negotiate()
    interval, missed = response.heartbeat_interval_ms / 1000, response.max_missed_heartbeats
    if missed <= 0:
        raise Untested("the broker does not watch its clients: maxMissedHeartbeats is 0")
    if interval * missed > 15:
        raise Untested(f"{missed} intervals of {interval:g} s are too long: use 15 seconds at most")
    # Without input after the negotiation, a broker waits for three minutes.
    await peer.barrier()
    return peer, interval, interval * (missed + 3)


@GROUP.case("10.3.1", "6.4", _O, seconds=60)
async def _answers(bench: Bench) -> None:
    """A silent client that answers heartbeats stays connected.

    Sends: a request, then HEARTBEAT_RSP for each HEARTBEAT_REQ and nothing else.
    Expects: HEARTBEAT_REQ, and an answer to a request after more intervals than a client may miss.
    """
    peer, _, enough = await _watched(bench)
    await peer.wait(enough)
    await peer.event(EventType.HEARTBEAT_REQ)
    await peer.barrier()


@GROUP.case("10.3.2", "6.4", _O, seconds=60)
async def _misses(bench: Bench) -> None:
    """A client that misses heartbeats is disconnected.

    Sends: a request, then nothing, not even HEARTBEAT_RSP.
    Expects: HEARTBEAT_REQ, and the end of the connection.
    """
    peer, _, enough = await _watched(bench)
    peer.answers_heartbeats = False
    await peer.event(EventType.HEARTBEAT_REQ, enough)
    await peer.closed(enough + 5)


@GROUP.case("10.3.3", "6.4", _O, seconds=60)
async def _speaks(bench: Bench) -> None:
    """Any event counts as a sign of life.

    Sends: HEARTBEAT_REQ twice in each interval, and no HEARTBEAT_RSP.
    Expects: an answer to a request after more intervals than a client may miss.
    """
    peer, interval, enough = await _watched(bench)
    peer.answers_heartbeats = False
    for _ in range(int(2 * enough / interval)):
        peer.send(HEARTBEAT_REQ)
        await peer.wait(interval / 2)
    await peer.barrier()
