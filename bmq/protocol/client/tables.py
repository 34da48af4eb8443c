"""The state machines of a session and of a queue, as tables.

``(state, input) -> Transition(action, next state)``. The actions are method names of the class that runs the
table; a key that is not there is an error. The diagrams in the documentation are generated from these
tables, and a property test walks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from bmq.errors import StateError

__all__ = [
    "HANDSHAKE_TRANSITIONS",
    "QUEUE_TRANSITIONS",
    "SESSION_TRANSITIONS",
    "HandshakeInput",
    "HandshakeState",
    "QueueInput",
    "QueueState",
    "SessionInput",
    "SessionState",
    "Transition",
    "step",
]


class Transition(NamedTuple):
    """What an input does in a state: the action to run ("" for none) and the state that follows."""

    action: str
    next_state: Any


def step(table: Mapping[Any, Transition], state: Enum, event: Enum) -> Transition:
    """Look a transition up.

    Raises:
        StateError: the table has no such key.
    """
    transition = table.get((state, event))
    if transition is None:
        raise StateError(f"{event.name} is not possible in state {type(state).__name__}.{state.name}")
    return transition


class HandshakeState(Enum):
    """The beginning of one connection."""

    IDLE = "no connection"
    AUTHENTICATING = "authenticationRequest sent"
    NEGOTIATING = "clientIdentity sent"
    DONE = "negotiated"


class HandshakeInput(Enum):
    """What moves the handshake."""

    CONNECTED = "connected, no credentials"
    CONNECTED_WITH_CREDENTIALS = "connected, with credentials"
    AUTHENTICATED = "authenticationResponse: success"
    NEGOTIATED = "brokerResponse: success"
    REFUSED = "a response with a failure"
    TIMEOUT = "no response in time"
    CHANNEL_DOWN = "connection gone"


_H, _HI = HandshakeState, HandshakeInput
HANDSHAKE_TRANSITIONS: dict[tuple[HandshakeState, HandshakeInput], Transition] = {
    (_H.IDLE, _HI.CONNECTED): Transition("negotiate", _H.NEGOTIATING),
    (_H.IDLE, _HI.CONNECTED_WITH_CREDENTIALS): Transition("authenticate", _H.AUTHENTICATING),
    (_H.IDLE, _HI.CHANNEL_DOWN): Transition("", _H.IDLE),
    (_H.AUTHENTICATING, _HI.AUTHENTICATED): Transition("negotiate", _H.NEGOTIATING),
    (_H.AUTHENTICATING, _HI.REFUSED): Transition("fail", _H.IDLE),
    (_H.AUTHENTICATING, _HI.TIMEOUT): Transition("fail", _H.IDLE),
    (_H.AUTHENTICATING, _HI.CHANNEL_DOWN): Transition("", _H.IDLE),
    (_H.NEGOTIATING, _HI.NEGOTIATED): Transition("finish", _H.DONE),
    (_H.NEGOTIATING, _HI.REFUSED): Transition("fail", _H.IDLE),
    (_H.NEGOTIATING, _HI.TIMEOUT): Transition("fail", _H.IDLE),
    (_H.NEGOTIATING, _HI.CHANNEL_DOWN): Transition("", _H.IDLE),
    (_H.DONE, _HI.CHANNEL_DOWN): Transition("", _H.IDLE),
}


class SessionState(Enum):
    """Where a session is."""

    STOPPED = "not started"
    STARTING = "connecting for the first time"
    STARTED = "in use"
    RECONNECTING = "connection lost"
    CLOSING = "disconnect sent"
    CLOSED = "over"


class SessionInput(Enum):
    """What moves a session."""

    START = "start"
    CHANNEL_UP = "negotiated"
    CHANNEL_DOWN = "connection gone"
    STOP = "stop"
    GIVE_UP = "no more attempts, or no time left"
    DISCONNECTED = "disconnectResponse or timeout"


_S, _SI = SessionState, SessionInput
SESSION_TRANSITIONS: dict[tuple[SessionState, SessionInput], Transition] = {
    (_S.STOPPED, _SI.START): Transition("", _S.STARTING),
    (_S.STOPPED, _SI.STOP): Transition("stop", _S.CLOSED),
    (_S.STOPPED, _SI.GIVE_UP): Transition("stop", _S.CLOSED),
    (_S.STARTING, _SI.CHANNEL_UP): Transition("announce", _S.STARTED),
    (_S.STARTING, _SI.CHANNEL_DOWN): Transition("", _S.STARTING),
    (_S.STARTING, _SI.GIVE_UP): Transition("stop", _S.CLOSED),
    (_S.STARTING, _SI.STOP): Transition("stop", _S.CLOSED),
    (_S.STARTED, _SI.CHANNEL_DOWN): Transition("lose", _S.RECONNECTING),
    (_S.STARTED, _SI.STOP): Transition("disconnect", _S.CLOSING),
    (_S.STARTED, _SI.GIVE_UP): Transition("stop", _S.CLOSED),
    (_S.RECONNECTING, _SI.CHANNEL_UP): Transition("restore", _S.STARTED),
    (_S.RECONNECTING, _SI.CHANNEL_DOWN): Transition("", _S.RECONNECTING),
    (_S.RECONNECTING, _SI.GIVE_UP): Transition("stop", _S.CLOSED),
    (_S.RECONNECTING, _SI.STOP): Transition("stop", _S.CLOSED),
    (_S.CLOSING, _SI.DISCONNECTED): Transition("stop", _S.CLOSED),
    (_S.CLOSING, _SI.CHANNEL_DOWN): Transition("stop", _S.CLOSED),
    (_S.CLOSING, _SI.STOP): Transition("", _S.CLOSING),
    (_S.CLOSING, _SI.GIVE_UP): Transition("stop", _S.CLOSED),
    (_S.CLOSED, _SI.STOP): Transition("", _S.CLOSED),
    (_S.CLOSED, _SI.CHANNEL_DOWN): Transition("", _S.CLOSED),
    (_S.CLOSED, _SI.GIVE_UP): Transition("", _S.CLOSED),
}


class QueueState(Enum):
    """Where a queue is."""

    CLOSED = "closed"
    WAITING = "to be opened once connected"
    OPENING = "openQueue sent"
    CONFIGURING = "first configureStream sent"
    OPEN = "open"
    RECONFIGURING = "another configureStream sent"
    LOST = "connection lost"
    REOPENING = "openQueue sent again"
    RESTORING = "configureStream sent again"
    DECONFIGURING = "empty configureStream sent"
    CLOSING = "closeQueue sent"
    ABANDONED = "nobody waits for the openQueueResponse any more"


class QueueInput(Enum):
    """What moves a queue."""

    OPEN = "open, connected"
    OPEN_LATER = "open, not connected"
    ACCEPTED = "success, a stream to configure"
    ACCEPTED_PLAIN = "success, nothing to configure"
    REFUSED = "failure"
    TIMEOUT = "no response in time"
    ABANDON = "the caller was cancelled"
    CONFIGURE = "subscriptions changed"
    CLOSE = "close a reader"
    CLOSE_PLAIN = "close a writer"
    CHANNEL_UP = "negotiated"
    CHANNEL_DOWN = "connection gone"
    STOP = "the session ends"


_Q, _QI = QueueState, QueueInput
QUEUE_TRANSITIONS: dict[tuple[QueueState, QueueInput], Transition] = {
    (_Q.CLOSED, _QI.OPEN): Transition("send_open", _Q.OPENING),
    (_Q.CLOSED, _QI.OPEN_LATER): Transition("", _Q.WAITING),
    (_Q.WAITING, _QI.CHANNEL_UP): Transition("send_open", _Q.OPENING),
    (_Q.WAITING, _QI.CHANNEL_DOWN): Transition("", _Q.WAITING),
    (_Q.WAITING, _QI.TIMEOUT): Transition("fail_open", _Q.CLOSED),
    (_Q.WAITING, _QI.ABANDON): Transition("", _Q.CLOSED),
    (_Q.OPENING, _QI.ACCEPTED): Transition("send_configure", _Q.CONFIGURING),
    (_Q.OPENING, _QI.ACCEPTED_PLAIN): Transition("finish_open", _Q.OPEN),
    (_Q.OPENING, _QI.REFUSED): Transition("fail_open", _Q.CLOSED),
    (_Q.OPENING, _QI.TIMEOUT): Transition("fail_open", _Q.ABANDONED),
    (_Q.OPENING, _QI.ABANDON): Transition("", _Q.ABANDONED),
    (_Q.OPENING, _QI.CHANNEL_DOWN): Transition("", _Q.WAITING),
    (_Q.CONFIGURING, _QI.ACCEPTED): Transition("finish_open", _Q.OPEN),
    (_Q.CONFIGURING, _QI.REFUSED): Transition("fail_configuring", _Q.CLOSING),
    (_Q.CONFIGURING, _QI.TIMEOUT): Transition("fail_configuring", _Q.CLOSING),
    (_Q.CONFIGURING, _QI.ABANDON): Transition("send_close", _Q.CLOSING),
    (_Q.CONFIGURING, _QI.CHANNEL_DOWN): Transition("", _Q.WAITING),
    (_Q.OPEN, _QI.CONFIGURE): Transition("send_configure", _Q.RECONFIGURING),
    (_Q.OPEN, _QI.CLOSE): Transition("send_deconfigure", _Q.DECONFIGURING),
    (_Q.OPEN, _QI.CLOSE_PLAIN): Transition("send_close", _Q.CLOSING),
    (_Q.OPEN, _QI.CHANNEL_DOWN): Transition("", _Q.LOST),
    (_Q.RECONFIGURING, _QI.ACCEPTED): Transition("commit_configure", _Q.OPEN),
    (_Q.RECONFIGURING, _QI.REFUSED): Transition("roll_back", _Q.OPEN),
    (_Q.RECONFIGURING, _QI.TIMEOUT): Transition("roll_back", _Q.OPEN),
    (_Q.RECONFIGURING, _QI.CONFIGURE): Transition("", _Q.RECONFIGURING),
    (_Q.RECONFIGURING, _QI.CLOSE): Transition("send_deconfigure", _Q.DECONFIGURING),
    (_Q.RECONFIGURING, _QI.CHANNEL_DOWN): Transition("", _Q.LOST),
    (_Q.LOST, _QI.CHANNEL_UP): Transition("send_open", _Q.REOPENING),
    (_Q.LOST, _QI.CONFIGURE): Transition("", _Q.LOST),
    (_Q.LOST, _QI.CLOSE): Transition("finish_close", _Q.CLOSED),
    (_Q.LOST, _QI.CLOSE_PLAIN): Transition("finish_close", _Q.CLOSED),
    (_Q.REOPENING, _QI.ACCEPTED): Transition("send_configure", _Q.RESTORING),
    (_Q.REOPENING, _QI.ACCEPTED_PLAIN): Transition("finish_reopen", _Q.OPEN),
    (_Q.REOPENING, _QI.REFUSED): Transition("fail_reopen", _Q.CLOSED),
    (_Q.REOPENING, _QI.TIMEOUT): Transition("fail_reopen", _Q.ABANDONED),
    (_Q.REOPENING, _QI.CONFIGURE): Transition("", _Q.REOPENING),
    (_Q.REOPENING, _QI.CLOSE): Transition("give_up_reopen", _Q.ABANDONED),
    (_Q.REOPENING, _QI.CLOSE_PLAIN): Transition("give_up_reopen", _Q.ABANDONED),
    (_Q.REOPENING, _QI.CHANNEL_DOWN): Transition("", _Q.LOST),
    (_Q.RESTORING, _QI.ACCEPTED): Transition("finish_reopen", _Q.OPEN),
    (_Q.RESTORING, _QI.REFUSED): Transition("fail_restoring", _Q.CLOSING),
    (_Q.RESTORING, _QI.TIMEOUT): Transition("fail_restoring", _Q.CLOSING),
    (_Q.RESTORING, _QI.CONFIGURE): Transition("", _Q.RESTORING),
    (_Q.RESTORING, _QI.CLOSE): Transition("close_restoring", _Q.CLOSING),
    (_Q.RESTORING, _QI.CHANNEL_DOWN): Transition("", _Q.LOST),
    (_Q.DECONFIGURING, _QI.ACCEPTED): Transition("send_close", _Q.CLOSING),
    (_Q.DECONFIGURING, _QI.REFUSED): Transition("send_close", _Q.CLOSING),
    (_Q.DECONFIGURING, _QI.TIMEOUT): Transition("close_unanswered", _Q.CLOSED),
    (_Q.DECONFIGURING, _QI.CHANNEL_DOWN): Transition("finish_close", _Q.CLOSED),
    (_Q.CLOSING, _QI.ACCEPTED): Transition("finish_close", _Q.CLOSED),
    (_Q.CLOSING, _QI.REFUSED): Transition("fail_close", _Q.CLOSED),
    (_Q.CLOSING, _QI.TIMEOUT): Transition("fail_close", _Q.CLOSED),
    (_Q.CLOSING, _QI.CHANNEL_DOWN): Transition("finish_close", _Q.CLOSED),
    (_Q.ABANDONED, _QI.OPEN): Transition("wait_again", _Q.OPENING),
    (_Q.ABANDONED, _QI.OPEN_LATER): Transition("", _Q.WAITING),
    (_Q.ABANDONED, _QI.ACCEPTED): Transition("send_close", _Q.CLOSING),
    (_Q.ABANDONED, _QI.ACCEPTED_PLAIN): Transition("send_close", _Q.CLOSING),
    (_Q.ABANDONED, _QI.TIMEOUT): Transition("", _Q.ABANDONED),
    (_Q.ABANDONED, _QI.REFUSED): Transition("finish_close", _Q.CLOSED),
    (_Q.ABANDONED, _QI.CHANNEL_DOWN): Transition("finish_close", _Q.CLOSED),
    **{(state, _QI.STOP): Transition("stop", _Q.CLOSED) for state in _Q},
}
