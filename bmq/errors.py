# SPDX-License-Identifier: Apache-2.0
"""Every error that bmq raises.

::

    Error
    ├── UsageError                  the caller did something that can never work; nothing was sent
    │   ├── InvalidURI
    │   ├── InvalidProperty
    │   ├── InvalidPayload
    │   ├── InvalidExpression
    │   ├── InvalidArgument         an argument of the wrong type, or an impossible value
    │   └── StateError              right call, wrong state: closed, closing, already open
    │       ├── SessionClosed
    │       └── QueueClosed
    ├── BufferFull                  the unacknowledged window is full (retryable)
    ├── ProtocolError               the peer sent something the protocol does not allow
    ├── Undecodable                 a payload is no value of the type that was expected
    ├── ConnectionFailed            no connection, or lost for good (retryable)
    │   ├── NegotiationError        the broker refused the session
    │   └── AuthenticationError     the broker refused the credentials
    ├── RequestError                the broker answered a request with a failure
    │   ├── OpenQueueError
    │   ├── ConfigureQueueError
    │   └── CloseQueueError
    ├── AdminError                  the broker did not carry out an admin command
    ├── TimedOut                    what was waited for did not come within the timeout (retryable)
    │   └── RequestTimeout          no answer of the broker within the deadline
    ├── ResponderError              whoever handled a request has failed
    └── PostError                   a message was not accepted: negatively acknowledged or given up

``retryable`` is data on the class (or, where a broker's code decides, on the instance): whether the
same call may succeed later without the caller changing anything.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "AckStatus",
    "AdminError",
    "AuthenticationError",
    "BufferFull",
    "CloseQueueError",
    "ConfigureQueueError",
    "ConnectionFailed",
    "Error",
    "ExpressionWarning",
    "InvalidArgument",
    "InvalidExpression",
    "InvalidPayload",
    "InvalidProperty",
    "InvalidURI",
    "NegotiationError",
    "OpenQueueError",
    "PostError",
    "ProtocolError",
    "QueueClosed",
    "RequestError",
    "RequestTimeout",
    "ResponderError",
    "SessionClosed",
    "StateError",
    "StatusCategory",
    "TimedOut",
    "Undecodable",
    "UsageError",
]


class StatusCategory(IntEnum):
    """The broker's generic result of a request (``StatusCategory`` of the control schema)."""

    E_SUCCESS = 0
    E_UNKNOWN = -1
    E_TIMEOUT = -2
    E_NOT_CONNECTED = -3
    E_CANCELED = -4
    E_NOT_SUPPORTED = -5
    E_REFUSED = -6
    E_INVALID_ARGUMENT = -7
    E_NOT_READY = -8


class AckStatus(IntEnum):
    """What became of a posted message.

    The names and numbers are those of the official SDKs. Only SUCCESS, LIMIT_MESSAGES, LIMIT_BYTES,
    STORAGE_FAILURE, NOT_READY and UNKNOWN travel on the wire; the others are made locally.
    """

    SUCCESS = 0
    UNKNOWN = -1
    TIMEOUT = -2
    NOT_CONNECTED = -3
    CANCELED = -4
    NOT_SUPPORTED = -5
    REFUSED = -6
    INVALID_ARGUMENT = -7
    NOT_READY = -8
    LIMIT_MESSAGES = -100
    LIMIT_BYTES = -101
    STORAGE_FAILURE = -104


#: Statuses after which posting the same message again later can succeed.
RETRYABLE_ACK_STATUSES = frozenset(
    {
        AckStatus.TIMEOUT,
        AckStatus.NOT_CONNECTED,
        AckStatus.NOT_READY,
        AckStatus.LIMIT_MESSAGES,
        AckStatus.LIMIT_BYTES,
        AckStatus.STORAGE_FAILURE,
    }
)

_RETRYABLE_CATEGORIES = frozenset(
    {StatusCategory.E_TIMEOUT, StatusCategory.E_NOT_CONNECTED, StatusCategory.E_NOT_READY}
)
# A node that is stopping in good order refuses or cancels requests with this code.
_STOPPING = -11
_CATEGORIES_WHILE_STOPPING = frozenset({StatusCategory.E_REFUSED, StatusCategory.E_CANCELED})


# Errors quote peers, and go into logs line by line.
_LONGEST = 4000


class Error(Exception):
    """The root of every error raised by bmq. Of a text of more than 4,000 characters the rest is cut off."""

    retryable: bool = False

    def __init__(self, *args: object) -> None:
        super().__init__(*map(_shortened, args))


def _shortened(text: object) -> object:
    return text[:_LONGEST] + "..." if isinstance(text, str) and len(text) > _LONGEST + 3 else text


class UsageError(Error):
    """The call can never succeed as it was made; nothing was sent."""


class InvalidURI(UsageError, ValueError):
    """A queue or broker URI does not follow its grammar."""


class InvalidProperty(UsageError, ValueError):
    """A message property has an illegal name, type or value."""


class InvalidPayload(UsageError, ValueError):
    """A payload is empty, too large or not bytes."""


class InvalidExpression(UsageError, ValueError):
    """A subscription expression that the broker would silently ignore (and then deliver everything).

    Attributes:
        expression: the text.
        offset: the zero-based column the problem was noticed at.
        code: the evaluator's error code: SYNTAX, TOO_LONG, TOO_COMPLEX or NO_PROPERTIES.
    """

    def __init__(self, message: str, *, expression: str = "", offset: int = 0, code: str = "SYNTAX") -> None:
        super().__init__(message)
        self.expression = expression
        self.offset = offset
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        state = {"expression": self.expression, "offset": self.offset, "code": self.code}
        return (type(self), self.args, state)


class InvalidArgument(UsageError, TypeError, ValueError):
    """An argument has a type the call does not take, or an impossible value."""


class StateError(UsageError):
    """The call is right, but not in this state: closed, closing or already open."""


class SessionClosed(StateError):
    """The session is closed or closing."""


class QueueClosed(StateError):
    """The queue is closed, closing, or could not be reopened after a reconnect."""


class BufferFull(Error):
    """The window of unacknowledged posts is full; wait with ``await queue.post(...)`` or retry later."""

    retryable = True


class ProtocolError(Error):
    """The peer sent bytes that the protocol does not allow.

    Where one message or one request is affected, this one raises it. Where the framing is lost, the
    connection is closed.

    Attributes:
        field: the field or structure that was wrong, as named in the protocol.
        offset: its offset in bytes, where known.
        within: what the offset is counted from: the event, or the part of a message that was looked at.
    """

    def __init__(
        self, message: str, *, field: str = "", offset: int | None = None, within: str = "event"
    ) -> None:
        where = f"{field}: " if field else ""
        at = f" (at byte {offset} of the {within})" if offset is not None else ""
        super().__init__(f"{where}{message}{at}")
        self.reason = message
        self.field = field
        self.offset = offset
        self.within = within

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_protocol_error, (type(self), self.reason, self.field, self.offset, self.within))


def _rebuild_protocol_error(
    cls: type[ProtocolError], message: str, field: str, offset: int | None, within: str
) -> ProtocolError:
    return cls(message, field=field, offset=offset, within=within)


class Undecodable(Error, ValueError):
    """A message's payload is no value of the type that was expected.

    Attributes:
        content_type: what the message says its payload is; "" when it says nothing.
    """

    def __init__(self, message: str, *, content_type: str = "") -> None:
        super().__init__(message)
        self.content_type = content_type

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, dict(self.__dict__))


class ConnectionFailed(Error, OSError):
    """There is no connection to the broker, or it was lost and not restored."""

    retryable = True


class NegotiationError(ConnectionFailed):
    """The broker refused the session during negotiation."""

    retryable = False


class AuthenticationError(ConnectionFailed):
    """The broker refused the credentials."""

    retryable = False


class RequestError(Error):
    """The broker answered a request with a failure status.

    Attributes:
        category: the generic result.
        code: the broker's second number, meaningful only together with the message.
        broker_message: the broker's own text.
    """

    def __init__(
        self,
        message: str,
        *,
        category: StatusCategory = StatusCategory.E_UNKNOWN,
        code: int = 0,
        broker_message: str = "",
    ) -> None:
        super().__init__(message)
        self.category = category
        self.code = code
        self.broker_message = broker_message
        self.retryable = category in _RETRYABLE_CATEGORIES or (
            category in _CATEGORIES_WHILE_STOPPING and code == _STOPPING
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, dict(self.__dict__))


class OpenQueueError(RequestError):
    """The broker refused to open a queue."""


class ConfigureQueueError(RequestError):
    """The broker refused to configure a queue's stream; the previous configuration still stands."""


class CloseQueueError(RequestError):
    """The broker refused to close a queue."""


class AdminError(Error):
    """The broker did not carry out an admin command.

    Attributes:
        command: the command.
        broker_message: the broker's own words.
    """

    def __init__(self, message: str, *, command: str = "", broker_message: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.broker_message = broker_message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, dict(self.__dict__))


class TimedOut(Error, TimeoutError):
    """What was waited for did not come within ``timeout``."""

    retryable = True


class RequestTimeout(TimedOut):
    """The broker did not answer a request within the deadline."""


class ResponderError(Error):
    """Whoever handled a request has failed, and says so in place of a reply.

    Attributes:
        kind: the type of its error, ``ValueError`` for instance; whatever the responder calls it.
        reason: the error's text.
        guid: the request's GUID.
    """

    def __init__(self, message: str, *, kind: str = "", reason: str = "", guid: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason
        self.guid = guid


class PostError(Error):
    """A posted message was not accepted.

    Attributes:
        status: why: the broker's negative acknowledgement, or the local reason for giving up.
        guid: the message's GUID as 32 upper-case hexadecimal digits.
        queue_uri: the queue it was posted to.
    """

    def __init__(
        self, message: str, *, status: AckStatus = AckStatus.UNKNOWN, guid: str = "", queue_uri: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.guid = guid
        self.queue_uri = queue_uri
        self.retryable = status in RETRYABLE_ACK_STATUSES

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, dict(self.__dict__))


class ExpressionWarning(UserWarning):
    """A legal expression surely does not mean what it says: it never matches, for instance.

    The expression is used as it is. The message says what the expression does, and where. Like all of
    Python's warnings it is shown once for each place, and can be turned into an error or switched off::

        warnings.simplefilter("error", bmq.ExpressionWarning)
    """
