# SPDX-License-Identifier: Apache-2.0
"""Health and metrics of several processes or threads, as a single service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from bmq._logging import Log
from bmq.cli.process import Slot, SlotState, Worker
from bmq.cli.sums import MetricSums
from bmq.workers.probe import AGES, METRICS_TYPE, TEXT_TYPE, Page, Probe

__all__ = ["LONGEST_ANSWER", "Answers"]

logger = Log("bmq.run")

#: Seconds for the answer of a process: fewer than a prober waits, which is told so which process is hung.
LONGEST_ANSWER: Final = 4.0
_NOT_FOUND: Final = "the paths are /livez, /readyz and /metrics\n"
_NO_JSON: Final = "the answer of the process is malformed"


class Answers:
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
        self._kind = kind = slots[0].kind
        self.kinds = "processes" if kind == "process" else f"{kind}s"
        self._has_pids = kind == "process"
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

    async def _ask(self, probe: int, page: str) -> list[tuple[Slot, Worker, tuple[int, bytes] | None]]:
        """Ask all running processes."""
        asked = [(slot, slot.process) for slot in self._slots if slot.asked and slot.process is not None]
        path = f"/{probe}{page}"
        answers = await asyncio.gather(*(process.ask(path, LONGEST_ANSWER) for _, process in asked))
        # Processes that ended or began to stop meanwhile owe no answer.
        return [
            (slot, process, answer)
            for (slot, process), answer in zip(asked, answers, strict=True)
            if slot.process is process and slot.asked
        ]

    async def _livez(self, probe: int) -> Page:
        answers = await self._ask(probe, "/livez")
        silent = [slot for slot, _, answer in answers if answer is None or answer[0] != HTTPStatus.OK]
        if not silent:
            return HTTPStatus.OK, "alive\n", TEXT_TYPE
        lines = "".join(f"{slot.kind} {slot.number} does not answer\n" for slot in silent)
        return HTTPStatus.SERVICE_UNAVAILABLE, lines, TEXT_TYPE

    async def _readyz(self, probe: int) -> Page:
        answers = {slot.number: answer for slot, _, answer in await self._ask(probe, "/readyz")}
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
            **{name: _largest(each[name] for each in found) for name in AGES},
            "troubles": sorted(troubles, key=lambda trouble: str(trouble.get("since", ""))),
            self.kinds: found,
        }
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return status, json.dumps(answer, indent=1) + "\n", "application/json"

    def _condition(self, slot: Slot, answer: tuple[int, bytes] | None) -> dict[str, Any]:
        """Return the part of a process in /readyz."""
        since = slot.since.isoformat(timespec="milliseconds")
        condition: dict[str, Any] = {
            self._kind: slot.number,
            **({"pid": slot.process.pid if slot.process is not None else None} if self._has_pids else {}),
            "state": slot.state.value,
            "restarts": slot.restarts,
            "ready": slot.state is SlotState.FINISHED,
            "degraded": False,
            "since": since,
            **dict.fromkeys(AGES),
            "troubles": [],
        }
        if slot.state is SlotState.FINISHED:
            return condition
        if answer is None:
            what = {
                SlotState.STARTING: f"the {self._kind} is starting",
                SlotState.RUNNING: f"the {self._kind} does not answer",
                SlotState.STOPPING: f"the {self._kind} is stopping",
            }.get(slot.state, f"{slot.why}; waiting before a restart")
            condition["troubles"] = [{"what": what, "since": since}]
            return condition
        try:
            told: Any = json.loads(answer[1])
            condition["ready"], condition["degraded"] = bool(told["ready"]), bool(told["degraded"])
            condition["since"] = str(told.get("since", since))
            for name in AGES:
                age = told.get(name)
                condition[name] = age if age is None else float(age)
            condition["troubles"] = [dict(each) for each in told["troubles"]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            condition["ready"] = condition["degraded"] = False
            condition["troubles"] = [{"what": _NO_JSON, "since": since}]
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
        for slot, _, answer in await self._ask(probe, "/metrics"):
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


def _largest(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)
