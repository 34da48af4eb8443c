# SPDX-License-Identifier: Apache-2.0
"""One typed command: the words, the expected member of the answer, and refusals as errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from bmq import _checks
from bmq.errors import AdminError, InvalidURI, ProtocolError
from bmq.wire.printable import printable

if TYPE_CHECKING:
    from bmq.admin.client import Admin

__all__ = ["ask", "failure_of", "refused", "word"]

# Longer names in commands are mistakes without a use at the broker.
_LONGEST_NAME = 1000


async def ask(broker: Admin, text: str, kind: str) -> Any:
    """Return the member of an answer that the command schema names for the command.

    A broker that routes a command to other nodes answers with one result for each node. The parts of a purge
    are joined, and the answer of any node stands for a success of all.

    Raises:
        AdminError: a node did not carry out the command.
        ProtocolError: the answer has another kind.
    """
    answer = await broker.query(text)
    if "responses" in answer:
        answer = _join(text, answer["responses"], kind)
    if kind not in answer:
        found = printable(", ".join(answer))
        raise ProtocolError(f"{text!r} was answered with {found}", field=kind or "adminCommandResponse")
    return answer[kind]


def _join(text: str, responses: Any, kind: str) -> dict[str, Any]:
    try:
        results = [(str(each["sourceNodeDescription"]), dict(each["result"])) for each in responses]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"{text!r} was answered with malformed responses", field="responses") from error
    failures = [(node, failure_of(result)) for node, result in results]
    if refusals := [f"{node}: {failure}" for node, failure in failures if failure is not None]:
        raise refused(text, "; ".join(refusals))
    parts = [result[kind] for _, result in results if kind in result]
    if kind != "purgedQueues":
        return {kind: parts[0]} if parts else {}
    try:
        return {kind: {"queues": [each for part in parts for each in part.get("queues", ())]}}
    except (AttributeError, TypeError) as error:
        raise ProtocolError(f"{text!r} was answered with malformed queues", field=kind) from error


def failure_of(result: dict[str, Any]) -> str | None:
    """Return the broker's text if the result is a failure; None otherwise."""
    if "error" not in result:
        return None
    error = result["error"]
    return str(cast("dict[str, Any]", error).get("message", "") if isinstance(error, dict) else error)


def word(text: str, what: str) -> str:
    """Return a word of a command.

    Raises:
        InvalidURI: the text has several words, or none.
    """
    text = _checks.text(what, text, longest=_LONGEST_NAME)
    if not text or text.split() != [text]:
        raise InvalidURI(f"{text!r} cannot be the name of a {what}: it is empty or has spaces")
    return text


def refused(command: str, message: str) -> AdminError:
    """Return the error of a command that a broker did not carry out."""
    return AdminError(
        f"the broker did not execute {command!r}: {printable(message)}",
        command=command,
        broker_message=message,
    )
