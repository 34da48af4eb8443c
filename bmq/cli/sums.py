# SPDX-License-Identifier: Apache-2.0
"""The sum of the metrics of several processes, in Prometheus' text format.

Counters must not fall when a process ends: Prometheus takes a fall for a restart, and counts the whole value
again. The latest counts of an ended process are therefore kept, and so are the counts of a process that does
not answer. The samples are summed by their name and labels as written, which are equal in processes of one
program.

Rejected: the parser of ``prometheus_client``, an optional dependency, gives up a text at its first malformed
line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["MetricSums", "parse"]

# Bytes of a process's text, and number of kept counters of ended processes.
_LONGEST: Final = 8 * 1024 * 1024
_MOST_KEPT: Final = 100_000
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:[^"\\]|\\.)*"[ \t]*'
_SAMPLE = re.compile(
    rf"({_NAME})[ \t]*(\{{[ \t]*(?:{_LABEL}(?:,[ \t]*{_LABEL})*,?[ \t]*)?\}})?"
    r"[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*"
)
_COMMENT = re.compile(rf"#[ \t]+(HELP|TYPE)[ \t]+({_NAME})(?:[ \t]+(.*))?")
_VALUE = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[iI]nf|NaN)")
_TYPES: Final = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_PARTS: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_COUNTED: Final = ("_total", "_bucket", "_sum", "_count")
#: Gauges with these endings are not summed: the largest value counts.
_LARGEST: Final = ("_seconds", "_ratio", "_info", "_created")


@dataclass(slots=True)
class Family:
    """A metric.

    Attributes:
        kind: type; "untyped" if unknown.
        about: description as written.
        samples: values by name and labels as written.
    """

    kind: str = "untyped"
    about: str = ""
    samples: dict[str, float] = field(default_factory=dict[str, float])

    def summed(self, name: str, sample: str) -> bool:
        """Whether the values of a sample are summed; otherwise the largest counts."""
        return self.counts(sample) or (self.kind != "summary" and not name.endswith(_LARGEST))

    def counts(self, sample: str) -> bool:
        """Whether a sample is a counter, also as a part of a histogram."""
        if self.kind in ("counter", "histogram"):
            return True
        return self.kind != "gauge" and sample.partition("{")[0].endswith(_COUNTED)


def parse(text: bytes) -> tuple[dict[str, Family], int | None]:
    """Return the metrics of a text, and the number of the first malformed line.

    Malformed lines are left out. A text that is too long is left out as a whole.
    """
    if len(text) > _LONGEST:
        return {}, 1
    families: dict[str, Family] = {}
    malformed: int | None = None
    for number, line in enumerate(text.decode("utf-8", "replace").split("\n"), 1):
        if not _take(families, line.rstrip("\r")):
            malformed = malformed or number
    return {name: each for name, each in families.items() if each.samples}, malformed


def _take(families: dict[str, Family], line: str) -> bool:
    """Add a line to the metrics. Return whether the line is well-formed."""
    if not line.strip():
        return True
    if line.startswith("#"):
        found = _COMMENT.fullmatch(line)
        if found is not None:
            what, name, rest = found[1], found[2], found[3] or ""
            if what == "TYPE" and rest.strip() not in _TYPES:
                return False
            family = families.setdefault(name, Family())
            if what == "HELP":
                family.about = rest
            else:
                family.kind = rest.strip()
        return True  # any other comment is legal
    sample = _SAMPLE.fullmatch(line)
    if sample is None or _VALUE.fullmatch(sample[3]) is None:
        return False
    name = sample[1]
    families.setdefault(_family_of(families, name), Family()).samples[name + (sample[2] or "")] = float(
        sample[3]
    )
    return True


def _family_of(families: dict[str, Family], name: str) -> str:
    for kind, endings in _PARTS.items():
        for ending in endings:
            whole = name.removesuffix(ending)
            if whole != name and whole in families and families[whole].kind == kind:
                return whole
    return name


class MetricSums:
    """The metrics of numbered processes, and the counts of their ended predecessors."""

    def __init__(self) -> None:
        self._latest: dict[int, dict[str, Family]] = {}
        self._ended: dict[str, Family] = {}
        self._kept = 0

    def update(self, process: int, text: bytes) -> int | None:
        """Take the present metrics of a process. Return the number of the first malformed line."""
        families, malformed = parse(text)
        self._latest[process] = families
        return malformed

    def ended(self, process: int) -> None:
        """Keep the counters of a process that has ended, and forget its gauges."""
        for name, family in self._latest.pop(process, {}).items():
            kept = self._ended.get(name)
            for sample, value in family.samples.items():
                if family.counts(sample) and math.isfinite(value):
                    if kept is None:
                        kept = self._ended[name] = Family(family.kind, family.about)
                    if sample in kept.samples:
                        kept.samples[sample] += value
                    elif self._kept < _MOST_KEPT:
                        self._kept += 1
                        kept.samples[sample] = value

    def text(self) -> str:
        """Return the sum of all metrics."""
        total: dict[str, Family] = {}
        for families in (self._ended, *self._latest.values()):
            for name, family in families.items():
                _add(total.setdefault(name, Family(family.kind, family.about)), name, family)
        return "".join(_lines(total.items()))


def _add(total: Family, name: str, family: Family) -> None:
    samples = total.samples
    for sample, value in family.samples.items():
        before = samples.get(sample)
        if before is None:
            samples[sample] = value
        elif total.summed(name, sample):
            samples[sample] = before + value
        else:
            samples[sample] = max(before, value)


def _lines(families: Iterable[tuple[str, Family]]) -> Iterable[str]:
    for name, family in families:
        if family.about:
            yield f"# HELP {name} {family.about}\n"
        if family.kind != "untyped":
            yield f"# TYPE {name} {family.kind}\n"
        for sample, value in family.samples.items():
            yield f"{sample} {_number(value)}\n"


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
