# SPDX-License-Identifier: Apache-2.0
"""A broker's identity in the negotiation, and its rules for clients' credentials and actions."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from bmq import _checks
from bmq.errors import StatusCategory, UsageError
from bmq.wire.control import AuthenticationRequest, AuthenticationResponse, Status

__all__ = ["Action", "ActionKind", "Authentication", "BrokerSettings", "refused"]


@dataclass(frozen=True)
class Authentication:
    """The clients that may use the broker.

    Attributes:
        users: passwords by user name, for the mechanism BASIC; if None or empty, BASIC is not supported.
        anonymous: whether to admit clients without credentials, or with ANONYMOUS; by default only if
            ``users`` is None. Required if ``users`` is empty.
        lifetime_ms: lifetime of BASIC credentials in milliseconds.

    Raises:
        UsageError: ``users`` is empty, and ``anonymous`` is not given.
    """

    users: Mapping[str, str] | None = None
    anonymous: bool | None = None
    lifetime_ms: int = 600_000

    def __post_init__(self) -> None:
        if self.users is not None:
            for user, password in _checks.mapping("users", self.users, "user names to passwords").items():
                _checks.text("a user", user)
                if not isinstance(password, str):
                    # Do not repeat the value: it is a password.
                    raise UsageError(f"a password must be a str, not {type(password).__name__}")
        _checks.optional(_checks.boolean, "anonymous", self.anonymous)
        lifetime = _checks.integer("lifetime_ms", self.lifetime_ms, 1, _checks.INT32_MAX)
        object.__setattr__(self, "lifetime_ms", lifetime)
        if self.users is not None and not self.users and self.anonymous is None:
            raise UsageError(
                "users is empty, so no client could connect: "
                "name a user, or pass None (or anonymous=True) to admit every client"
            )

    @property
    def allows_anonymous(self) -> bool:
        """Whether clients without credentials are admitted."""
        return self.users is None if self.anonymous is None else self.anonymous

    def __repr__(self) -> str:
        return f"Authentication(users={sorted(self.users or ())}, anonymous={self.allows_anonymous})"

    def check(self, request: AuthenticationRequest) -> tuple[AuthenticationResponse, str]:
        """Return the answer to credentials, and the name of the user."""
        mechanism = request.mechanism.upper()
        if mechanism == "ANONYMOUS" and self.allows_anonymous:
            return AuthenticationResponse(), ""
        if mechanism == "BASIC" and self.users:
            user, _, password = (request.data or b"").partition(b":")
            name = user.decode("utf-8", "surrogateescape")
            # The time of this comparison does not reveal how much of a password was right.
            expected = self.users.get(name, "").encode("utf-8", "surrogateescape")
            if hmac.compare_digest(expected, password) and name in self.users:
                return AuthenticationResponse(lifetime_ms=self.lifetime_ms), name
            return refused(
                -11,
                "Failed to authenticate with mechanism 'BASIC'. (rc = -1). Detailed error: "
                f"Invalid username or password for user '{name}'",
            ), name
        return refused(-2, f"Authentication mechanism '{request.mechanism}' not supported."), ""


def refused(code: int, message: str) -> AuthenticationResponse:
    """Return the answer to credentials that are not accepted."""
    return AuthenticationResponse(
        status=Status(category=StatusCategory.E_REFUSED, code=code, message=message)
    )


class ActionKind(Enum):
    """The kinds of actions, with the names of a real broker's authorizer plugins.

    Attributes:
        CONNECT_CLIENT: a session connects.
        CONNECT_ADMIN: a client for admin commands connects.
        QUEUE_READ: a client opens a queue for reading.
        QUEUE_WRITE: a client opens a queue for writing.
        EXECUTE_ADMIN_COMMAND: an admin client sends a command.
    """

    CONNECT_CLIENT = "ConnectClient"
    CONNECT_ADMIN = "ConnectAdmin"
    QUEUE_READ = "QueueRead"
    QUEUE_WRITE = "QueueWrite"
    EXECUTE_ADMIN_COMMAND = "ExecuteAdminCommand"


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a client, for the function ``authorize`` of :class:`bmq.broker.Broker`.

    Attributes:
        kind: kind of the action.
        principal: name of the authenticated user; empty for an anonymous client.
        uri: URI of the queue, without appId; empty unless a queue is opened.
        app_id: appId of the reader of a fanout queue; empty otherwise.
        command: text of the admin command; empty for other kinds.
    """

    kind: ActionKind
    principal: str = ""
    uri: str = ""
    app_id: str = ""
    command: str = ""


@dataclass(frozen=True)
class BrokerSettings:
    """Settings shared by all connections of a broker.

    Attributes:
        process_name: name of the broker in its identity.
        pid: process id.
        host_name: name of the host.
        heartbeat_interval_ms: silence in milliseconds after which a heartbeat request is sent.
        max_missed_heartbeats: number of silent intervals after which the connection is closed; 0 disables
            heartbeats.
        handshake_timeout: seconds until a client must have negotiated.
        high_water: pending bytes of PUSH messages at which a client receives no more.
        authentication: the rules for credentials.
        authorize: called with each action that needs a permission; returns whether it is allowed; None
            to allow every action.
    """

    process_name: str = "bmqbrkr"
    pid: int = 0
    host_name: str = "localhost"
    heartbeat_interval_ms: int = 3000
    max_missed_heartbeats: int = 0
    handshake_timeout: float = 180.0
    high_water: int = 16 * 1024 * 1024
    authentication: Authentication = Authentication()
    authorize: Callable[[Action], bool] | None = None
