# SPDX-License-Identifier: Apache-2.0
"""The errors of bmq.

::

    Error
    ├── UsageError                  the call can never succeed in this form; nothing was sent
    │   ├── InvalidURI
    │   ├── InvalidProperty
    │   ├── InvalidPayload
    │   └── InvalidExpression
    ├── StateError                  not allowed in this state: closed, closing, already open
    │   ├── SessionClosed
    │   └── QueueClosed
    ├── BufferFull                  the unacknowledged window is full (retryable)
    ├── ProtocolError               the peer sent bytes that the protocol does not allow
    ├── Undecodable                 a payload cannot be decoded to the expected type
    ├── ConnectionFailed            no connection, or permanently lost (retryable)
    │   ├── NegotiationError        the broker refused the session
    │   └── AuthenticationError     the broker refused the credentials
    ├── RequestError                the broker answered a request with a failure
    │   ├── OpenQueueError
    │   ├── ConfigureQueueError
    │   └── CloseQueueError
    ├── AdminError                  the broker did not carry out an admin command
    ├── TimedOut                    the result did not arrive in time (retryable)
    │   └── RequestTimeout          no answer from the broker within the deadline
    ├── RequestFailed               the responder of a request failed
    └── PostError                   a message was not accepted: negatively acknowledged or given up

``retryable`` is a class attribute (or, if a broker's code decides, an instance attribute): whether the same
call may succeed later without a change by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from bmq._version import page

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
    "RequestFailed",
    "RequestTimeout",
    "SessionClosed",
    "StateError",
    "StatusCategory",
    "TimedOut",
    "Undecodable",
    "UsageError",
]


class StatusCategory(IntEnum):
    """The broker's generic result of a request (``StatusCategory`` in the control schema)."""

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
    """The outcome of a posted message.

    Names and numbers are those of the official SDKs. Only SUCCESS, LIMIT_MESSAGES, LIMIT_BYTES,
    STORAGE_FAILURE, NOT_READY and UNKNOWN are transmitted; bmq itself creates the others. A message with the
    status UNKNOWN, TIMEOUT or CANCELED may be stored. After UNKNOWN, post it again with the GUID of the
    :exc:`PostError`: the broker stores it once.

    ::

        try:
            await queue.post(payload)
        except bmq.PostError as error:
            if error.status is bmq.AckStatus.LIMIT_MESSAGES:
                print("the queue is full")
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


#: Statuses after which posting the same message later may succeed.
RETRYABLE_ACK_STATUSES = frozenset(
    {
        AckStatus.UNKNOWN,
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
# Code by which a stopping node refuses or cancels requests.
_STOPPING = -11
_CATEGORIES_WHILE_STOPPING = frozenset({StatusCategory.E_REFUSED, StatusCategory.E_CANCELED})


# Maximum length of an error's text: errors quote peers, and are logged line by line.
_LONGEST = 4000


class Error(Exception):
    """Base class of all errors of bmq. The text is limited to 4,000 characters.

    Where the package knows the address of its documentation, a traceback ends with the page of the error.

    ::

        try:
            await queue.post(payload)
        except bmq.Error as error:
            if not error.retryable:
                raise
    """

    retryable: bool = False

    def __init__(self, *args: object) -> None:
        super().__init__(*map(_shortened, args))

    if not TYPE_CHECKING:
        # A traceback prints the notes below the text. The list is made when something asks for it: raising an
        # error costs nothing more, and str(error), which logs show, stays a line.

        @property
        def __notes__(self) -> list[str]:
            notes = self.__dict__.get("_notes")
            if notes is None:
                name = next(each.__name__ for each in type(self).__mro__ if each.__module__ == __name__)
                address = page(f"api/{name}")
                notes = self.__dict__["_notes"] = [f"cause and remedy: {address}"] if address else []
            return notes

        @__notes__.setter
        def __notes__(self, notes: list[str]) -> None:
            self.__dict__["_notes"] = notes


def _shortened(text: object) -> object:
    return text[:_LONGEST] + "..." if isinstance(text, str) and len(text) > _LONGEST + 3 else text


class UsageError(Error, TypeError, ValueError):
    """The call can never succeed in this form; nothing was sent.

    An argument has a wrong type or an impossible value, or the object does not support the call. The error is
    a ``TypeError`` and a ``ValueError`` too.

    ::

        try:
            queue.subscribe(text, priority=priority)
        except bmq.UsageError as error:
            print(f"wrong setting: {error}")
    """


class InvalidURI(UsageError):
    """A queue or broker URI does not follow its grammar.

    ::

        try:
            uri = bmq.QueueUri.parse(text)
        except bmq.InvalidURI as error:
            print(error)
    """


class InvalidProperty(UsageError):
    """A message property has an illegal name, type or value.

    ::

        try:
            await queue.post(payload, properties=properties)
        except bmq.InvalidProperty as error:
            print(error)  # names the property
    """


class InvalidPayload(UsageError):
    """A payload is empty, too large, or not bytes.

    ::

        try:
            await queue.post(payload)
        except bmq.InvalidPayload:
            print("empty, larger than 64 MiB, or not bytes")
    """


class InvalidExpression(UsageError):
    """A subscription expression that the broker would silently ignore, and then deliver all messages.

    ::

        try:
            queue.subscribe(text)
        except bmq.InvalidExpression as error:
            print(error)  # shows the position of the mistake

    Attributes:
        expression: text of the expression.
        offset: zero-based column of the problem.
        code: error code of the evaluator: SYNTAX, TOO_LONG, TOO_COMPLEX or NO_PROPERTIES.
    """

    def __init__(self, message: str, *, expression: str = "", offset: int = 0, code: str = "SYNTAX") -> None:
        super().__init__(message)
        self.expression = expression
        self.offset = offset
        self.code = code


class StateError(Error):
    """The call is not allowed in the present state: closed, closing or already open.

    ::

        try:
            queue = await session.open_queue(uri, read=True)
        except bmq.StateError:
            (queue,) = [each for each in session.queues if each.uri == uri]
    """


class SessionClosed(StateError):
    """The session is closed or closing.

    ::

        try:
            await queue.post(payload)
        except bmq.SessionClosed as error:
            print(error)  # has the reason
    """


class QueueClosed(StateError):
    """The queue is closed, closing, or could not be reopened after a reconnect.

    ::

        try:
            message = await queue.receive()
        except bmq.QueueClosed:
            print("the queue is closed")
    """


class BufferFull(Error):
    """The window of unacknowledged posts is full; wait with ``await queue.post(...)`` or retry later.

    ::

        try:
            queue.post_nowait(payload)
        except bmq.BufferFull:
            await queue.post(payload)  # waits for room
    """

    retryable = True


class ProtocolError(Error):
    """The peer sent bytes that the protocol does not allow.

    If only one message or one request is affected, the call for this message or request raises the error. If
    the framing is lost, the connection is closed.

    ::

        try:
            payload = message.data
        except bmq.ProtocolError as error:
            print(f"unreadable message {message.guid}: {error}")

    Attributes:
        field: malformed field or structure, as named in the protocol.
        offset: offset of the field in bytes, if known.
        within: origin of the offset: the event, or the examined part of a message.
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


class Undecodable(Error, ValueError):
    """A message's payload cannot be decoded to the expected type.

    ::

        try:
            order = message.value
        except bmq.Undecodable as error:
            print(error.content_type, error)

    Attributes:
        content_type: content type of the message; "" if not set.
    """

    def __init__(self, message: str, *, content_type: str = "") -> None:
        super().__init__(message)
        self.content_type = content_type


class ConnectionFailed(Error, OSError):
    """The connection to the broker failed, or was lost and not restored.

    ::

        try:
            session = await bmq.connect("tcp://localhost:30114", connect_timeout=5)
        except bmq.ConnectionFailed as error:
            sys.exit(str(error))
    """

    retryable = True


class NegotiationError(ConnectionFailed):
    """The broker refused the session during negotiation.

    ::

        try:
            session = await bmq.connect(broker)
        except bmq.NegotiationError as error:
            sys.exit(f"the broker refuses this client: {error}")
    """

    retryable = False


class AuthenticationError(ConnectionFailed):
    """The broker refused the credentials.

    ::

        try:
            credentials = bmq.Credentials.basic(user, password)
            session = await bmq.connect(broker, credentials=credentials)
        except bmq.AuthenticationError as error:
            sys.exit(f"wrong user or password: {error}")
    """

    retryable = False


class RequestError(Error):
    """The broker answered a request with a failure status.

    ::

        try:
            queue = await session.open_queue(uri, write=True)
        except bmq.RequestError as error:
            print(error.category, error.broker_message)

    Attributes:
        category: generic result.
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


class OpenQueueError(RequestError):
    """The broker refused to open a queue.

    ::

        try:
            queue = await session.open_queue(uri, read=True)
        except bmq.OpenQueueError as error:
            print(error.broker_message)
    """


class ConfigureQueueError(RequestError):
    """The broker refused to configure a queue's stream; the previous configuration remains in effect.

    ::

        try:
            await consumer.configure("CustomerId > 5")
        except bmq.ConfigureQueueError as error:
            print(error.broker_message)
    """


class CloseQueueError(RequestError):
    """The broker refused to close a queue."""


class AdminError(Error):
    """The broker did not carry out an admin command.

    Attributes:
        command: the command.
        broker_message: the broker's own text.
    """

    def __init__(self, message: str, *, command: str = "", broker_message: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.broker_message = broker_message


class TimedOut(Error, TimeoutError):
    """The result did not arrive within ``timeout``.

    ::

        try:
            message = await queue.receive(timeout=5)
        except bmq.TimedOut:
            print("no message within five seconds")

    After the timeout of a post, the broker may still store the message. Post it again with the same GUID: the
    broker stores it once. ::

        try:
            await queue.post(payload, timeout=5)
        except bmq.TimedOut as error:
            await queue.post(payload, guid=error.guid)

    Attributes:
        guid: GUID of a post that may still be stored; otherwise "".
    """

    retryable = True
    guid: str = ""


class RequestTimeout(TimedOut):
    """The broker did not answer a request within the deadline.

    ::

        try:
            queue = await session.open_queue(uri, write=True, timeout=5)
        except bmq.RequestTimeout:
            print("the broker has not answered within five seconds")
    """


class RequestFailed(Error):
    """The responder of a request failed; the error replaces the reply.

    ::

        try:
            reply = await queue.request(b"...", timeout=5)
        except bmq.RequestFailed as error:
            print(error.type, error.detail)

    The members of the problem are those of RFC 9457. A responder may raise the error to choose the members;
    any other exception of a responder travels with the name of its class as ``type``, and its text as
    ``detail``. A subclass with a type is raised instead of this class, if the requester has imported the
    subclass::

        class NoSuchArticle(bmq.RequestFailed, type="no-such-article", title="No such article"):
            ...

        @app.responder("bmq://bmq.test.mem.priority/prices")
        async def price(article: Article) -> Price:
            raise NoSuchArticle(f"no article {article.number}", properties={"Article": article.number})

    Args:
        detail: what went wrong this time; at most 1,000 characters are sent.
        type: URI reference of the type of problem, or a name without spaces; None for the type of the class.
        title: short text for all problems of this type; None for the title of the class.
        retryable: whether the same request may succeed later; None for the value of the class.
        properties: properties of the reply, by name.

    Raises:
        UsageError: ``type`` is empty or contains white space, or two subclasses have the same type.

    Attributes:
        type: type of the problem: for a responder's other exceptions, the name of the class, for example
            ``ValueError``.
        title: short text for all problems of this type; empty if the responder sent none.
        detail: text of the error.
        retryable: whether the same request may succeed later.
        properties: the responder's properties of the reply, by name.
        guid: GUID of the request; empty at the responder.
        queue_uri: URI of the queue of the request; empty at the responder.
    """

    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    guid: str = ""
    queue_uri: str = ""

    def __init_subclass__(
        cls, *, type: str | None = None, title: str | None = None, retryable: bool | None = None, **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        if title is not None:
            cls.title = title
        if retryable is not None:
            cls.retryable = retryable
        if type is not None:
            cls.type = _problem_type(type)
            known = _problems.setdefault(type, cls)
            if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise UsageError(
                    f"{cls.__qualname__} and {known.__module__}.{known.__qualname__} both have the type "
                    f"{type}: give each class a type of its own"
                )
            _problems[type] = cls

    def __init__(
        self,
        detail: str = "",
        *,
        type: str | None = None,
        title: str | None = None,
        retryable: bool | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = str(self.args[0])  # shortened
        if type is not None:
            self.type = _problem_type(type)
        if title is not None:
            self.title = title
        if retryable is not None:
            self.retryable = retryable
        self.properties: dict[str, Any] = dict(properties or {})

    def __str__(self) -> str:
        text = self.detail or self.title or self.type
        if not self.guid:
            return text
        return f"request {self.guid} to {self.queue_uri} has failed: {self.type}: {text}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_unpickled, (self.__class__, self.args), dict(self.__dict__))


#: The subclasses of :class:`RequestFailed` with a type.
_problems: dict[str, type[RequestFailed]] = {}


def request_failed(
    detail: str,
    *,
    problem: str,
    title: str,
    retryable: bool,
    properties: Mapping[str, Any],
    guid: str,
    queue_uri: str,
) -> RequestFailed:
    """Return the error for a problem in a reply, of the class with the problem's type.

    Args:
        detail: text of the error.
        problem: type of the problem.
        title: short text for all problems of the type.
        retryable: whether the same request may succeed later.
        properties: the responder's properties of the reply.
        guid: GUID of the request.
        queue_uri: URI of the queue of the request.
    """
    cls = _problems.get(problem, RequestFailed)
    error = cls.__new__(cls, detail)  # a subclass may have another constructor
    error.type, error.detail = problem, detail
    error.title = title or cls.title
    error.retryable = retryable
    error.properties = dict(properties)
    error.guid, error.queue_uri = guid, queue_uri
    return error


def _problem_type(text: str) -> str:
    """Return a type of problems.

    Raises:
        UsageError: the text is empty or contains white space.
    """
    if not text or text.split() != [text]:
        raise UsageError(f"type must be a URI reference, or a name without spaces, not {text!r}")
    return text


def _unpickled(cls: type[RequestFailed], args: tuple[object, ...]) -> RequestFailed:
    return cls.__new__(cls, *args)


class PostError(Error):
    """A posted message was not accepted.

    ::

        try:
            await queue.post(payload)
        except bmq.PostError as error:
            print(error.status, error.guid)

    Attributes:
        status: the broker's negative acknowledgement, or the local reason for giving up.
        guid: GUID of the message: 32 upper-case hexadecimal digits.
        queue_uri: URI of the queue.
    """

    def __init__(
        self, message: str, *, status: AckStatus = AckStatus.UNKNOWN, guid: str = "", queue_uri: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.guid = guid
        self.queue_uri = queue_uri
        self.retryable = status in RETRYABLE_ACK_STATUSES


class ExpressionWarning(UserWarning):
    """A legal expression almost certainly has an unintended meaning; for example, it never matches.

    The expression is used unchanged. The warning describes the effect of the expression, and its position.
    Like all Python warnings, it is shown once for each place, and can be turned into an error or disabled::

        warnings.simplefilter("error", bmq.ExpressionWarning)
    """
