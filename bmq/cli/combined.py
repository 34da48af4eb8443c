# SPDX-License-Identifier: Apache-2.0
"""Health and metrics of several processes or threads, as a single service."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

from bmq._logging import Log
from bmq.cli.process import Slot, SlotState, Worker
from bmq.workers.probe import AGES, METRICS_TYPE, TEXT_TYPE, Page, Probe

__all__ = ["LONGEST_ANSWER", "CombinedHealth", "MetricSums"]

logger = Log("bmq.run")

#: Seconds for the answer of a process: fewer than a prober waits, so that the prober sees the number of the
#: hung process.
LONGEST_ANSWER: Final = 4.0
_NOT_FOUND: Final = "the paths are /livez, /readyz and /metrics\n"


class CombinedHealth:
    """Asks all processes, and joins the answers to one page.

    Args:
        slots: slots of the processes or threads.
        probes: the probes of the app and of the included apps, for threads: all threads share the metrics of
            the process.

    Attributes:
        kinds: "processes" or "threads".
    """

    def __init__(self, slots: list[Slot], probes: list[Probe] | None = None) -> None:
        self._slots = slots
        self._probes = probes
        self._kind = slots[0].kind
        self.kinds = "processes" if self._kind == "process" else f"{self._kind}s"
        self._sums: dict[int, MetricSums] = {}
        self._malformed: set[int] = set()

    def ended(self, number: int) -> None:
        """Keep the counts of an ended process."""
        for sums in self._sums.values():
            sums.ended(number)

    async def page(self, probe: int, path: str) -> Page:
        """Return a page of a probe: number 0 is the probe of the app, other numbers of included apps."""
        match path:
            case "/livez":
                return await self._livez(probe)
            case "/readyz":
                return await self._readyz(probe)
            case "/metrics":
                return await self._metrics(probe)
            case _:
                return HTTPStatus.NOT_FOUND, _NOT_FOUND, TEXT_TYPE

    async def _ask(self, probe: int, page: str) -> list[tuple[Slot, tuple[int, bytes] | None]]:
        """Ask all running processes."""
        asked: list[tuple[Slot, Worker]] = [
            (slot, slot.process) for slot in self._slots if slot.asked and slot.process is not None
        ]
        path = f"/{probe}{page}"
        answers = await asyncio.gather(*(process.ask(path, LONGEST_ANSWER) for _, process in asked))
        # Processes that ended or began to stop meanwhile owe no answer.
        return [
            (slot, answer)
            for (slot, process), answer in zip(asked, answers, strict=True)
            if slot.process is process and slot.asked
        ]

    async def _livez(self, probe: int) -> Page:
        silent = [slot for slot, answer in await self._ask(probe, "/livez") if answer is None]
        if not silent:
            return HTTPStatus.OK, "alive\n", TEXT_TYPE
        lines = "".join(f"{slot.kind} {slot.number} does not answer\n" for slot in silent)
        return HTTPStatus.SERVICE_UNAVAILABLE, lines, TEXT_TYPE

    async def _readyz(self, probe: int) -> Page:
        answers = {slot.number: answer for slot, answer in await self._ask(probe, "/readyz")}
        found = [self._condition(slot, answers.get(slot.number)) for slot in self._slots]
        ready = all(each["ready"] for each in found)
        degraded = ready and any(each["degraded"] for each in found)
        alike = [each["since"] for each in found if (each["ready"], each["degraded"]) == (ready, degraded)]
        troubles = [
            {self._kind: each[self._kind], **trouble} for each in found for trouble in each.pop("troubles")
        ]
        answer: dict[str, Any] = {
            "ready": ready,
            "degraded": degraded,
            "since": (max if ready and not degraded else min)(alike),
            **{
                name: max((each[name] for each in found if each[name] is not None), default=None)
                for name in AGES
            },
            "troubles": sorted(troubles, key=lambda trouble: str(trouble.get("since", ""))),
            self.kinds: found,
        }
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return status, json.dumps(answer, indent=1) + "\n", "application/json"

    def _condition(self, slot: Slot, answer: tuple[int, bytes] | None) -> dict[str, Any]:
        """Return the part of a process in /readyz."""
        since = slot.since.isoformat(timespec="milliseconds")
        condition: dict[str, Any] = {self._kind: slot.number}
        if self._kind == "process":
            condition["pid"] = slot.process.pid if slot.process is not None else None
        condition |= {
            "state": slot.state.value,
            "restarts": slot.restarts,
            "ready": slot.state is SlotState.FINISHED,
            "degraded": False,
            "since": since,
            **dict.fromkeys(AGES),
            "troubles": [],
        }
        if answer is not None:
            return {**condition, **json.loads(answer[1])}
        if slot.state is not SlotState.FINISHED:
            what = {
                SlotState.STARTING: f"the {self._kind} is starting",
                SlotState.RUNNING: f"the {self._kind} does not answer",
                SlotState.STOPPING: f"the {self._kind} is stopping",
            }.get(slot.state, f"{slot.why}; waiting before a restart")
            condition["troubles"] = [{"what": what, "since": since}]
        return condition

    async def _metrics(self, probe: int) -> Page:
        if self._probes is not None:
            status, body, kind = self._probes[probe].page("/metrics")
            if status == HTTPStatus.NOT_FOUND:  # no metrics are configured
                status, body, kind = HTTPStatus.OK, "", METRICS_TYPE
            if status == HTTPStatus.OK:
                body = self._own() + (body if isinstance(body, str) else body.decode("utf-8", "replace"))
            return status, body, kind
        sums = self._sums.setdefault(probe, MetricSums())
        for slot, answer in await self._ask(probe, "/metrics"):
            if answer is None or answer[0] != HTTPStatus.OK:
                continue  # the latest values count
            line = sums.update(slot.number, answer[1])
            if line is not None and slot.number not in self._malformed:
                self._malformed.add(slot.number)
                logger.warning("line %d of the metrics of process %d is malformed", line, slot.number)
        return HTTPStatus.OK, self._own() + sums.text(), METRICS_TYPE

    def _own(self) -> str:
        """Return the metrics of the supervisor."""
        kind, kinds = self._kind, self.kinds
        states = [slot.state for slot in self._slots]
        lines = [f"# HELP bmq_{kinds} {kinds.capitalize()} by state\n# TYPE bmq_{kinds} gauge\n"]
        lines += [f'bmq_{kinds}{{state="{state.value}"}} {states.count(state)}\n' for state in SlotState]
        restarts = f"bmq_{kind}_restarts_total"
        lines += [f"# HELP {restarts} Restarts of a {kind}\n# TYPE {restarts} counter\n"]
        lines += [f'{restarts}{{{kind}="{each.number}"}} {each.restarts}\n' for each in self._slots]
        return "".join(lines)


# ---- the sum of the metrics, in Prometheus' text format

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:[^"\\]|\\.)*"[ \t]*'
_SAMPLE = re.compile(
    rf"({_NAME})[ \t]*(\{{[ \t]*(?:{_LABEL}(?:,[ \t]*{_LABEL})*,?[ \t]*)?\}})?"
    r"[ \t]+([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[iI]nf|NaN))(?:[ \t]+-?\d+)?[ \t]*"
)
_HELP = re.compile(rf"#[ \t]+HELP[ \t]+({_NAME})(?:[ \t]+(.*))?")
_TYPE = re.compile(rf"#[ \t]+TYPE[ \t]+({_NAME})[ \t]+(counter|gauge|histogram|summary|untyped)[ \t]*")
_WRONG_TYPE = re.compile(r"#[ \t]+TYPE[ \t].*")
_PARTS: Final = {
    "_bucket": ("histogram",),
    "_sum": ("histogram", "summary"),
    "_count": ("histogram", "summary"),
}
_COUNTED: Final = ("_total", *_PARTS)
# Gauges with these endings are not summed: the largest value counts.
_LARGEST: Final = ("_seconds", "_ratio", "_info", "_created")
# Number of kept counters of ended processes.
_MOST_KEPT: Final = 100_000


class MetricSums:
    """The metrics of numbered processes, and the counts of their ended predecessors.

    Counters must not fall when a process ends: Prometheus takes a fall for a restart, and counts the whole
    value again. The latest counts of an ended process are therefore kept, and so are the counts of a process
    that does not answer. The samples are summed by their name and labels as written, which are equal in
    processes of one program.

    Rejected: the parser of ``prometheus_client``, an optional dependency, gives up a text at its first
    malformed line.
    """

    def __init__(self) -> None:
        self._help: dict[str, str] = {}
        self._types: dict[str, str] = {}
        # Values by name and labels as written.
        self._latest: dict[int, dict[str, float]] = {}
        self._ended: dict[str, float] = {}

    def update(self, process: int, text: bytes) -> int | None:
        """Take the present metrics of a process. Return the number of the first malformed line."""
        samples = self._latest[process] = {}
        malformed: int | None = None
        for number, line in enumerate(text.decode("utf-8", "replace").split("\n"), 1):
            line = line.rstrip("\r")
            if found := _SAMPLE.fullmatch(line):
                samples[found[1] + (found[2] or "")] = float(found[3])
            elif found := _HELP.fullmatch(line):
                self._help[found[1]] = found[2] or ""
            elif found := _TYPE.fullmatch(line):
                self._types[found[1]] = found[2]
            elif _WRONG_TYPE.fullmatch(line) or (line.strip() and not line.startswith("#")):
                malformed = malformed or number
        return malformed

    def ended(self, process: int) -> None:
        """Keep the counters of a process that has ended, and forget its gauges."""
        for sample, value in self._latest.pop(process, {}).items():
            kept = sample in self._ended or len(self._ended) < _MOST_KEPT
            if kept and math.isfinite(value) and self._counts(sample):
                self._ended[sample] = self._ended.get(sample, 0.0) + value

    def text(self) -> str:
        """Return the sum of all metrics."""
        families: dict[str, dict[str, float]] = {}
        for samples in (self._ended, *self._latest.values()):
            for sample, value in samples.items():
                family = self._family(sample)
                total = families.setdefault(family, {})
                if sample not in total:
                    total[sample] = value
                elif self._counts(sample) or (
                    self._types.get(family) != "summary" and not family.endswith(_LARGEST)
                ):
                    total[sample] += value
                else:
                    total[sample] = max(total[sample], value)
        return "".join(self._lines(families.items()))

    def _family(self, sample: str) -> str:
        """Return the name of the metric of a sample."""
        name = sample.partition("{")[0]
        for ending in _PARTS:
            whole = name.removesuffix(ending)
            if whole != name and self._types.get(whole) in ("histogram", "summary"):
                return whole
        return name

    def _counts(self, sample: str) -> bool:
        """Whether a sample is a counter, also as a part of a histogram."""
        kind = self._types.get(self._family(sample))
        if kind in ("counter", "histogram"):
            return True
        return kind != "gauge" and sample.partition("{")[0].endswith(_COUNTED)

    def _lines(self, families: Iterable[tuple[str, dict[str, float]]]) -> Iterator[str]:
        for name, samples in families:
            if about := self._help.get(name):
                yield f"# HELP {name} {about}\n"
            if name in self._types:
                yield f"# TYPE {name} {self._types[name]}\n"
            for sample, value in samples.items():
                yield f"{sample} {_number(value)}\n"


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
