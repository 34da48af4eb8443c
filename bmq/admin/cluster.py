# SPDX-License-Identifier: Apache-2.0
"""The commands about one cluster: storage, partitions, and settings that change while the cluster runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bmq import _checks
from bmq.admin import parsing
from bmq.admin.asking import ask, results_of, word
from bmq.admin.results import (
    ClusterStorage,
    StoredQueue,
    Tunable,
    TunableChange,
    TunableValue,
)
from bmq.errors import ProtocolError, UsageError

if TYPE_CHECKING:
    from bmq.admin.client import Admin

__all__ = ["ClusterAdmin", "TunableAdmin"]

# A broker reads the number of a partition as a 32-bit integer.
_MOST_PARTITIONS = _checks.INT32_MAX


class TunableAdmin:
    """Settings of a broker that can be changed while the broker runs. The names ignore case.

    Created by :attr:`Admin.stat_tunables`, :attr:`ClusterAdmin.elector` and :attr:`ClusterAdmin.replication`.
    The methods raise the errors of :class:`Admin`. A changed setting lasts until the broker ends.
    """

    def __init__(self, broker: Admin, prefix: str) -> None:
        self._broker = broker
        self._prefix = prefix

    async def list(self) -> tuple[Tunable, ...]:
        """Return all settings with their values and descriptions."""
        return parsing.tunables(await ask(self._broker, f"{self._prefix} LIST_TUNABLES", "tunables"))

    async def get(self, name: str) -> Tunable:
        """Return one setting of the answering broker."""
        answer = await ask(self._broker, f"{self._prefix} GET {word(name, 'tunable')}", "tunable")
        return parsing.tunable(answer)

    async def set(self, name: str, value: TunableValue) -> TunableChange:
        """Change one setting of the answering broker.

        Args:
            name: name of the setting.
            value: new value. Numbers and booleans are written as a broker reads them.
        """
        command = f"{self._prefix} SET {word(name, 'tunable')} {_printed(value)}"
        return parsing.tunable_change(await ask(self._broker, command, "tunableConfirmation"))

    async def get_all(self, name: str) -> tuple[Tunable, ...]:
        """Return one setting of all nodes of the cluster, as far as the broker asks the others.

        Brokers of 2025 and 2026 answer for themselves alone; the result is then a single value.
        """
        answers = await self._ask_all(f"GET_ALL {word(name, 'tunable')}", "tunable")
        return tuple(parsing.tunable(content, node) for node, content in answers)

    async def set_all(self, name: str, value: TunableValue) -> tuple[TunableChange, ...]:
        """Change one setting of all nodes of the cluster, as far as the broker asks the others.

        Brokers of 2025 and 2026 change only their own setting; the result is then a single change.

        Raises:
            AdminError: a node refused; the setting of other nodes may be changed.
        """
        command = f"SET_ALL {word(name, 'tunable')} {_printed(value)}"
        answers = await self._ask_all(command, "tunableConfirmation")
        return tuple(parsing.tunable_change(content, node) for node, content in answers)

    async def _ask_all(self, words: str, kind: str) -> Iterable[tuple[str, Any]]:
        command = f"{self._prefix} {words}"
        answer = await self._broker.query(command)
        if kind in answer:
            return [("", answer[kind])]
        results = results_of(command, answer.get("responses"))
        if any(kind not in each for _, each in results):
            raise ProtocolError(f"{command!r} has an answer of unknown form", field=kind)
        return [(node, each[kind]) for node, each in results]


def _printed(value: TunableValue) -> str:
    """Return a value as a word of a command; a text is sent unchanged.

    Raises:
        UsageError: a number is not finite, or the value has another type.
    """
    if value is None:
        return "null"
    if isinstance(value, str):
        return word(value, "value of a tunable")
    if type(value) is bool:
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"value must be a finite number, not {value}")
    if type(value) is int:
        return str(_checks.integer("value", value, -_checks.INT64_MAX - 1))
    if type(value) is float:
        return repr(value)
    raise UsageError(f"value must be a bool, an int, a float, a str or None, not {_checks.shown(value)}")


class ClusterAdmin:
    """The commands about one cluster. Created by :meth:`Admin.cluster`.

    Storage belongs to each node: the answers are about the broker of the client's connection. Commands for a
    partition go to the partition's primary, if the primary's address is known to the client. The methods
    raise the errors of :class:`Admin`.

    Attributes:
        name: name of the cluster.
        elector: settings of the election of the leader.
        replication: settings of the replication of messages.
    """

    def __init__(self, name: str, broker: Admin) -> None:
        self.name = word(name, "cluster")
        self._broker = broker
        self._prefix = f"CLUSTERS CLUSTER {self.name}"
        self.elector = TunableAdmin(broker, f"{self._prefix} STATE ELECTOR")
        self.replication = TunableAdmin(broker, f"{self._prefix} STORAGE REPLICATION")

    async def storage(self, partition: int | None = None) -> ClusterStorage:
        """Return the files, journals and queues of all partitions, or of one.

        Args:
            partition: number of the partition; None for all.
        """
        words = "SUMMARY" if partition is None else f"PARTITION {_partition(partition)} SUMMARY"
        answer = await ask(self._broker, f"{self._prefix} STORAGE {words}", "clusterStorageSummary")
        return parsing.cluster_storage(answer)

    async def stored_queues(self, domain: str) -> tuple[StoredQueue, ...]:
        """Return the queues of a domain in the storage, with their contents.

        The list has queues without clients too; a broker knows only domains that it has loaded.
        """
        command = f"{self._prefix} STORAGE DOMAIN {word(domain, 'domain')} QUEUE_STATUS"
        answer = await ask(self._broker, command, "storageContent")
        return parsing.listed(answer, "storages", StoredQueue)

    async def enable_partition(self, partition: int) -> None:
        """Have a partition accept posts again, at the partition's primary."""
        await self._change(_partition(partition), "ENABLE")

    async def disable_partition(self, partition: int) -> None:
        """Have a partition refuse posts, at the partition's primary.

        File-backed queues of the partition refuse all posts until :meth:`enable_partition`, and keep messages
        that are confirmed meanwhile. Queues in memory are not affected. The setting ends with the broker's
        process, and :meth:`storage` does not show it.
        """
        await self._change(_partition(partition), "DISABLE")

    async def roll_over(self, partition: int | None = None) -> None:
        """Have a partition continue with new files, at the partition's primary.

        The broker copies outstanding messages to the new files; the partition's queues wait meanwhile.

        Args:
            partition: number of the partition; None for all partitions, one after the other.
        """
        if partition is not None:
            await self._change(_partition(partition), "ROLLOVER")
            return
        status = await self._broker.cluster_status(self.name)
        for each in status.partitions:
            await self._change(each.id, "ROLLOVER")

    async def _change(self, partition: int, action: str) -> None:
        node = await self._broker._primary_of(self.name, partition)
        await ask(node, f"{self._prefix} STORAGE PARTITION {partition} {action}", "success")


def _partition(number: int) -> int:
    return _checks.integer("partition", number, 0, _MOST_PARTITIONS)
