# SPDX-License-Identifier: Apache-2.0
"""The session of this process, for views."""

from __future__ import annotations

import atexit
import os
import threading

from django.conf import settings

import bmq.blocking

_lock = threading.Lock()
_sessions: dict[int, bmq.blocking.Session] = {}


def session() -> bmq.blocking.Session:
    """Return the session, connected by the first call in the process: a session does not survive a fork."""
    with _lock:
        if os.getpid() not in _sessions:
            _sessions[os.getpid()] = bmq.blocking.connect(settings.BMQ_BROKER)
            atexit.register(close)
        return _sessions[os.getpid()]


def close() -> None:
    """Close the session; the next call of ``session`` connects again."""
    with _lock:
        session = _sessions.pop(os.getpid(), None)
    if session is not None:
        session.close()
