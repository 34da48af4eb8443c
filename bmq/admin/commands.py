# SPDX-License-Identifier: Apache-2.0
"""The commands of brokers, with the danger of each.

A command is a line of words, and a broker matches the words without regard to case. A broker also accepts a
command as a JSON object; :func:`danger_of` judges both forms. Unknown commands are judged by their words: a
false alarm costs an operator only one question.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

from bmq import _checks
from bmq._json import orjson

__all__ = ["COMMANDS", "Command", "Danger", "danger_of", "find_command", "without_encoding"]


class Danger(IntEnum):
    """The effect of a command, from harmless to irreversible."""

    #: The command only reads.
    READS = 0
    #: The command changes settings or forgets cached state; messages and clients are not affected.
    CHANGES = 1
    #: The command can stop posts, delay deliveries, or endanger the agreement of a cluster.
    INTERRUPTS = 2
    #: The command deletes messages.
    DELETES = 3


@dataclass(frozen=True, slots=True)
class Command:
    """A command of brokers.

    Attributes:
        text: the words; a word in angle brackets is a name, such as ``<domain>``.
        danger: the effect.
        effect: the effect in words, for dangerous commands; empty for harmless commands.
    """

    text: str
    danger: Danger = Danger.READS
    effect: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command."""
        return tuple(self.text.split())

    def begins(self, words: list[str]) -> bool:
        """Whether the command begins with some words of a line."""
        pairs = zip(self.words, words, strict=False)
        return len(words) <= len(self.words) and all(
            mine.startswith("<") or mine == given.upper() for mine, given in pairs
        )


_CHANGES, _INTERRUPTS, _DELETES = Danger.CHANGES, Danger.INTERRUPTS, Danger.DELETES
_DOMAIN = "DOMAINS DOMAIN <domain>"
_QUEUE = f"{_DOMAIN} QUEUE <queue>"
_CLUSTER = "CLUSTERS CLUSTER <cluster>"
_PARTITION = f"{_CLUSTER} STORAGE PARTITION <partition>"
_QUORUM = "changes how many nodes must agree; a wrong quorum stops the cluster, or lets two leaders act"
_RECEIPTS = (
    "changes how many nodes must store a message of strong consistency before its acknowledgement; too "
    "many stop the acknowledgements"
)

#: All commands, with each alternative as a command of its own.
COMMANDS: tuple[Command, ...] = (
    Command("HELP"),
    Command("HELP PLUMBING"),
    Command("BROKERCONFIG DUMP"),
    Command(f"{_DOMAIN} INFOS"),
    Command(f"{_DOMAIN} PURGE", _DELETES, "deletes all messages of all queues of the domain"),
    Command(f"{_QUEUE} INTERNALS"),
    Command(f"{_QUEUE} LIST <offset> <count>"),
    Command(f"{_QUEUE} LIST <app> <offset> <count>"),
    Command(
        f"{_QUEUE} PURGE <app>",
        _DELETES,
        "deletes all messages of an application of the queue; * for the whole queue",
    ),
    Command("DOMAINS RECONFIGURE <domain>", _CHANGES),
    Command("DOMAINS RESOLVER CACHE_CLEAR ALL", _CHANGES),
    Command("DOMAINS RESOLVER CACHE_CLEAR <domain>", _CHANGES),
    Command(
        "DOMAINS REMOVE <domain>",
        _DELETES,
        "deletes all queues of the domain with their messages, and refuses clients of the domain from now on",
    ),
    Command(
        "DOMAINS REMOVE <domain> FINALIZE",
        _INTERRUPTS,
        "ends the removal: the broker forgets the domain, and accepts a new domain with the name",
    ),
    Command("CONFIGPROVIDER CACHE_CLEAR ALL", _CHANGES),
    Command("CONFIGPROVIDER CACHE_CLEAR <domain>", _CHANGES),
    Command("STAT SHOW"),
    Command("STAT LIST_TUNABLES"),
    Command("STAT GET <stat-tunable>"),
    Command("STAT SET <stat-tunable> <value>", _CHANGES),
    Command("CLUSTERS LIST"),
    Command(f"{_CLUSTER} STATUS"),
    Command(f"{_CLUSTER} QUEUEHELPER"),
    Command(f"{_CLUSTER} FORCE_GC_QUEUES", _CHANGES),
    Command(f"{_CLUSTER} STORAGE SUMMARY"),
    Command(f"{_PARTITION} SUMMARY"),
    Command(f"{_PARTITION} ENABLE", _CHANGES),
    Command(
        f"{_PARTITION} DISABLE",
        _INTERRUPTS,
        "refuses posts to the partition's file-backed queues until ENABLE; confirmed messages stay stored",
    ),
    Command(
        f"{_PARTITION} ROLLOVER",
        _INTERRUPTS,
        "copies the outstanding messages of the partition to new files; its queues wait meanwhile",
    ),
    Command(f"{_CLUSTER} STORAGE DOMAIN <domain> QUEUE_STATUS"),
    *(
        Command(f"{_CLUSTER} {scope} {words}")
        for scope in ("STORAGE REPLICATION", "STATE ELECTOR")
        for words in ("LIST_TUNABLES", "GET <tunable>", "GET_ALL <tunable>")
    ),
    *(
        Command(f"{_CLUSTER} {scope} {words} <tunable> <value>", _INTERRUPTS, effect)
        for scope, effect in (("STORAGE REPLICATION", _RECEIPTS), ("STATE ELECTOR", _QUORUM))
        for words in ("SET", "SET_ALL")
    ),
)

# Words that mark commands of newer brokers as dangerous, in the text form and as members of the JSON form.
_DELETING = ("PURGE", "PURGEAPPID", "REMOVE", "DELETE", "WIPE")
_INTERRUPTING = (
    *("FINALIZE", "DISABLE", "ROLLOVER", "SHUTDOWN", "STOP", "EXIT", "KILL"),
    *("SET", "SET_ALL", "SETTUNABLE"),
)
_DANGEROUS = dict.fromkeys(_DELETING, _DELETES) | dict.fromkeys(_INTERRUPTING, _INTERRUPTS)


def without_encoding(text: str) -> list[str]:
    """Return the words of a command without ``ENCODING <format>`` in front."""
    words = text.split()
    while len(words) >= 2 and words[0].upper() == "ENCODING":
        words = words[2:]
    return words


def find_command(text: str) -> Command | None:
    """Return the command of a line; None for an unknown command, and for a command as JSON."""
    words = without_encoding(text)
    return next((each for each in COMMANDS if len(each.words) == len(words) and each.begins(words)), None)


def danger_of(command: str) -> Danger:
    """Return the danger of a command, without asking a broker.

    Args:
        command: one line in the broker's own language, or a JSON object. Unknown commands are judged by their
            words: ``PURGE`` deletes also in an unknown command.

    Raises:
        UsageError: the command is not a text.
    """
    text = _checks.text("command", command)
    if text.lstrip().startswith("{"):
        words = _members(text)
    elif known := find_command(text):
        return known.danger
    else:
        words = without_encoding(text)
    return max((_DANGEROUS.get(word.upper(), Danger.READS) for word in words), default=Danger.READS)


def _members(text: str) -> list[str]:
    """Return the names of all members of a JSON object; names of domains are values, and do not count."""
    try:
        rest: list[Any] = [orjson.loads(text)]
    except ValueError:
        return []  # no broker decodes the command
    names: list[str] = []
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            members = cast("dict[str, Any]", each)
            names += members
            rest += members.values()
        elif type(each) is list:
            rest += each
    return names
