# SPDX-License-Identifier: Apache-2.0
"""Nodes of a cluster that answer admin commands with the recorded answers of real nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bmq
from bmq.testing import BackgroundBroker

__all__ = ["DOMAIN", "ORDERS", "OTHER", "RecordedCluster", "RecordedNode"]

DOMAIN = "bmq.test.persistent.priority"
ORDERS = f"bmq://{DOMAIN}/orders"
OTHER = f"bmq://{DOMAIN}/other"

_ANSWERS = Path(__file__).parent.parent / "data" / "cluster" / "answers.json"


class RecordedNode:
    """A node.

    Attributes:
        name: name in the recording.
        answers: answers by command; tests may change them.
        asked: received commands.
    """

    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        self.name = name
        self.answers = answers
        self.asked: list[str] = []
        self._background = BackgroundBroker()

    @property
    def uri(self) -> str:
        return self._background.uri

    def _admin(self, command: str, _: float) -> str:
        command = command.removeprefix("ENCODING JSON_COMPACT ")
        self.asked.append(command)
        if " LIST " in command and command not in self.answers:
            command = command.partition(" LIST ")[0] + " LIST 0 20"
        answer = self.answers.get(command, {"error": {"message": f"not recorded: {command}"}})
        return answer if isinstance(answer, str) else json.dumps(answer)

    def start(self) -> None:
        def take_over(broker: bmq.broker.Broker) -> None:
            broker._node.admin = self._admin  # type: ignore[method-assign]

        self._background.start()
        self._background.call(take_over)

    def stop(self) -> None:
        self._background.stop()


class RecordedCluster:
    """Three nodes and a proxy; node0 is the primary of all partitions."""

    def __init__(self) -> None:
        recorded: dict[str, dict[str, Any]] = json.loads(_ANSWERS.read_text())
        self.nodes = {name: RecordedNode(name, answers) for name, answers in recorded.items()}

    def __getitem__(self, name: str) -> RecordedNode:
        return self.nodes[name]

    def uris(self, *names: str) -> str:
        return ",".join(self.nodes[name].uri for name in names)

    def __enter__(self) -> RecordedCluster:
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.stop()
