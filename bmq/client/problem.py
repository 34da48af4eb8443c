# SPDX-License-Identifier: Apache-2.0
"""The failure of a request as a message: a problem of RFC 9457, and a property for services without JSON.

A reply with the property ``bmq_error`` is a failure. The payload is a JSON object with the members ``type``,
``title``, ``detail`` and ``retryable``, and ``bmq_content_type`` is ``application/problem+json``. A failure
with another payload, from a service in another language, has the members of ``bmq_error``: ``type: detail``.
"""

from __future__ import annotations

from typing import Any, Final, cast

from bmq._json import orjson
from bmq.client.dead_letters import bounded, error_text
from bmq.client.message import Message
from bmq.client.posts import PutMessage
from bmq.conventions import CONTENT_TYPE, ERROR, PREFIX
from bmq.errors import Error, ProtocolError, RequestFailed, request_failed

__all__ = ["PROBLEM", "failure_of", "problem_of"]

#: Content type of the payload of a failure.
PROBLEM: Final = "application/problem+json"


def problem_of(error: BaseException) -> PutMessage:
    """Return the reply for an exception of a responder."""
    if isinstance(error, RequestFailed):
        kind, title, detail = error.type, error.title, error.detail or error.title
    else:
        kind, _, detail = error_text(error).partition(": ")
        title = ""
    problem: dict[str, object] = {"type": bounded(str(kind))}
    if title:
        problem["title"] = bounded(str(title))
    problem["detail"] = bounded(str(detail))
    problem["retryable"] = isinstance(error, Error) and error.retryable
    own = error.properties if isinstance(error, RequestFailed) else {}
    text = bounded(f"{kind}: {detail}")
    return PutMessage(orjson.dumps(problem), {**own, CONTENT_TYPE: PROBLEM, ERROR: text})


def failure_of(reply: Message, guid: str, queue_uri: str) -> RequestFailed | None:
    """Return the failure in a reply; None if the reply is not a failure.

    Args:
        reply: the reply.
        guid: GUID of the request.
        queue_uri: URI of the queue of the request.

    Raises:
        ProtocolError: the properties cannot be parsed.
    """
    properties = reply.properties
    if (error := properties.get(ERROR)) is None:
        return None
    kind, _, detail = bounded(str(error)).partition(": ")
    found = _members(reply) if properties.get(CONTENT_TYPE) == PROBLEM else {}
    return request_failed(
        bounded(_text(found, "detail", detail)),
        problem=bounded(_text(found, "type", kind)),
        title=bounded(_text(found, "title", "")),
        retryable=found.get("retryable") is True,
        properties={name: value for name, value in properties.items() if not name.startswith(PREFIX)},
        guid=guid,
        queue_uri=queue_uri,
    )


def _members(reply: Message) -> dict[str, Any]:
    """Return the members of a problem; none if the payload is not a JSON object."""
    try:
        found: object = orjson.loads(reply.data)
    except (ValueError, ProtocolError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _text(members: dict[str, Any], name: str, otherwise: str) -> str:
    """Return a member; a member of another type than text counts as missing."""
    found = members.get(name)
    return found if isinstance(found, str) else otherwise
