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
        words: the words; a word in angle brackets is a name, such as ``<domain>``.
        danger: the effect.
        effect: the effect in words, for dangerous commands; empty for harmless commands.
    """

    words: tuple[str, ...]
    danger: Danger = Danger.READS
    effect: str = ""

    def matches(self, words: list[str]) -> bool:
        """Whether a line of words is this command."""
        return len(words) == len(self.words) and all(
            mine.startswith("<") or mine == given.upper()
            for mine, given in zip(self.words, words, strict=True)
        )


def _command(text: str, danger: Danger = Danger.READS, effect: str = "") -> Command:
    return Command(tuple(text.split()), danger, effect)


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
    _command("HELP"),
    _command("HELP PLUMBING"),
    _command("BROKERCONFIG DUMP"),
    _command(f"{_DOMAIN} INFOS"),
    _command(f"{_DOMAIN} PURGE", _DELETES, "deletes all messages of all queues of the domain"),
    _command(f"{_QUEUE} INTERNALS"),
    _command(f"{_QUEUE} LIST <offset> <count>"),
    _command(f"{_QUEUE} LIST <app> <offset> <count>"),
    _command(
        f"{_QUEUE} PURGE <app>",
        _DELETES,
        "deletes all messages of an application of the queue; * for the whole queue",
    ),
    _command("DOMAINS RECONFIGURE <domain>", _CHANGES),
    _command("DOMAINS RESOLVER CACHE_CLEAR ALL", _CHANGES),
    _command("DOMAINS RESOLVER CACHE_CLEAR <domain>", _CHANGES),
    _command(
        "DOMAINS REMOVE <domain>",
        _DELETES,
        "deletes all queues of the domain with their messages, and refuses clients of the domain from now on",
    ),
    _command(
        "DOMAINS REMOVE <domain> FINALIZE",
        _INTERRUPTS,
        "ends the removal: the broker forgets the domain, and accepts a new domain with the name",
    ),
    _command("CONFIGPROVIDER CACHE_CLEAR ALL", _CHANGES),
    _command("CONFIGPROVIDER CACHE_CLEAR <domain>", _CHANGES),
    _command("STAT SHOW"),
    _command("STAT LIST_TUNABLES"),
    _command("STAT GET <stat-tunable>"),
    _command("STAT SET <stat-tunable> <value>", _CHANGES),
    _command("CLUSTERS LIST"),
    _command(f"{_CLUSTER} STATUS"),
    _command(f"{_CLUSTER} QUEUEHELPER"),
    _command(f"{_CLUSTER} FORCE_GC_QUEUES", _CHANGES),
    _command(f"{_CLUSTER} STORAGE SUMMARY"),
    _command(f"{_PARTITION} SUMMARY"),
    _command(f"{_PARTITION} ENABLE", _CHANGES),
    _command(
        f"{_PARTITION} DISABLE",
        _INTERRUPTS,
        "refuses posts to the partition's file-backed queues until ENABLE; confirmed messages stay stored",
    ),
    _command(
        f"{_PARTITION} ROLLOVER",
        _INTERRUPTS,
        "copies the outstanding messages of the partition to new files; its queues wait meanwhile",
    ),
    _command(f"{_CLUSTER} STORAGE DOMAIN <domain> QUEUE_STATUS"),
    *(
        _command(f"{_CLUSTER} {scope} {words}")
        for scope in ("STORAGE REPLICATION", "STATE ELECTOR")
        for words in ("LIST_TUNABLES", "GET <tunable>", "GET_ALL <tunable>")
    ),
    *(
        _command(f"{_CLUSTER} {scope} {words} <tunable> <value>", _INTERRUPTS, effect)
        for scope, effect in (("STORAGE REPLICATION", _RECEIPTS), ("STATE ELECTOR", _QUORUM))
        for words in ("SET", "SET_ALL")
    ),
)

# Words that mark commands of newer brokers as dangerous, in the text form and as members of the JSON form.
_DANGEROUS_WORDS = {
    "PURGE": _DELETES,
    "PURGEAPPID": _DELETES,
    "REMOVE": _DELETES,
    "DELETE": _DELETES,
    "WIPE": _DELETES,
    "FINALIZE": _INTERRUPTS,
    "DISABLE": _INTERRUPTS,
    "ROLLOVER": _INTERRUPTS,
    "SHUTDOWN": _INTERRUPTS,
    "STOP": _INTERRUPTS,
    "EXIT": _INTERRUPTS,
    "KILL": _INTERRUPTS,
    "SET": _INTERRUPTS,
    "SET_ALL": _INTERRUPTS,
    "SETTUNABLE": _INTERRUPTS,
}


def without_encoding(text: str) -> list[str]:
    """Return the words of a command without ``ENCODING <format>`` in front."""
    words = text.split()
    while len(words) >= 2 and words[0].upper() == "ENCODING":
        words = words[2:]
    return words


def find_command(text: str) -> Command | None:
    """Return the command of a line; None for an unknown command, and for a command as JSON."""
    words = without_encoding(text)
    return next((each for each in COMMANDS if each.matches(words)), None)


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
        return _danger_of_json(text)
    known = find_command(text)
    if known is not None:
        return known.danger
    return max((_danger_of_word(word) for word in without_encoding(text)), default=Danger.READS)


def _danger_of_word(word: str) -> Danger:
    return _DANGEROUS_WORDS.get(word.upper(), Danger.READS)


def _danger_of_json(text: str) -> Danger:
    """Judge a command by the names of its members; names of domains are values, and do not count."""
    try:
        value: Any = orjson.loads(text)
    except ValueError:
        return Danger.READS  # no broker decodes the command
    names: list[str] = []
    rest = [value]
    while rest:
        each: Any = rest.pop()
        if isinstance(each, dict):
            members = cast("dict[str, Any]", each)
            names.extend(members)
            rest.extend(members.values())
        elif type(each) is list:
            rest += each
    return max((_danger_of_word(name) for name in names), default=Danger.READS)
