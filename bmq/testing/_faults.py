# SPDX-License-Identifier: Apache-2.0
"""Random faults for chaos tests, which can be printed and replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, cast, get_args

from bmq import _checks
from bmq.errors import UsageError
from bmq.testing._pipe import Direction
from bmq.testing._proxy import FaultProxy, Side

__all__ = ["FAULTS", "Fault", "FaultKind", "plan_faults", "random_faults", "replay_faults"]

FaultKind = Literal[
    "cut", "reset", "cut client", "cut broker", "cut inside", "stall", "stall one way", "delay", "split",
    "throttle", "refuse", "corrupt",
]  # fmt: skip
#: The default choice of :func:`plan_faults`: all kinds but corruption, after which a message may arrive
#: that nobody has sent.
FAULTS: tuple[FaultKind, ...] = tuple(kind for kind in get_args(FaultKind) if kind != "corrupt")


_MOST_FAULTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Its repr is a Python expression for the same fault.

    Attributes:
        after: seconds of undisturbed traffic before the fault.
        kind: the kind of fault.
        seconds: duration; 0 for an instantaneous fault.
        direction: "to broker" or "to client", for faults with a direction.
        amount: bytes (of pieces, into an event, to corrupt), bytes a second, or seconds of delay.

    Raises:
        UsageError: an attribute has another type, or is out of its range.
    """

    after: float
    kind: FaultKind
    seconds: float = 0.0
    direction: str = ""
    amount: float = 0.0

    def __post_init__(self) -> None:
        set_value = object.__setattr__
        set_value(self, "after", _checks.seconds("after", self.after))
        set_value(self, "kind", _checks.one_of("kind", self.kind, get_args(FaultKind)))
        set_value(self, "seconds", _checks.seconds("seconds", self.seconds))
        known = ("", *(each.value for each in Direction))
        set_value(self, "direction", _checks.one_of("direction", self.direction, known))
        set_value(self, "amount", _checks.number("amount", self.amount, 0.0, _checks.INT64_MAX))

    async def apply(self, proxy: FaultProxy) -> None:
        """Apply the fault to a proxy, and undo the fault at the end of its duration.

        Cancelling the call undoes the fault at once.
        """
        _checks.choice("proxy", proxy, FaultProxy)
        direction = Direction(self.direction) if self.direction else None
        try:
            match self.kind:
                case "cut":
                    proxy.cut()
                case "reset":
                    proxy.cut(reset=True)
                case "cut client":
                    proxy.cut(Side.CLIENT)
                case "cut broker":
                    proxy.cut(Side.BROKER)
                case "cut inside":
                    proxy.cut_after(direction or Direction.TO_BROKER, nbytes=int(self.amount))
                case "corrupt":
                    proxy.corrupt(direction or Direction.TO_BROKER, offset=int(self.amount))
                case "stall" | "stall one way":
                    proxy.stall(direction)
                case "delay":
                    proxy.delay(self.amount, jitter=self.amount)
                case "split":
                    proxy.split(int(self.amount))
                case "throttle":
                    proxy.throttle(self.amount)
                case "refuse":
                    proxy.refuse()
                    proxy.cut()
            await asyncio.sleep(self.seconds)
        finally:
            if self.seconds:
                proxy.heal()
                await proxy.accept()


def plan_faults(
    seed: int,
    count: int,
    *,
    kinds: Sequence[FaultKind] = FAULTS,
    pause: tuple[float, float] = (0.1, 1.0),
    duration: tuple[float, float] = (0.05, 1.0),
) -> list[Fault]:
    """Draw faults. The same arguments draw the same faults.

    Args:
        seed: the seed.
        count: number of faults.
        kinds: kinds to draw from.
        pause: shortest and longest time of undisturbed traffic between two faults, in seconds.
        duration: shortest and longest duration of faults that last, in seconds.

    Raises:
        UsageError: an argument has another type, or is out of its range.
    """
    random = Random(_checks.integer("seed", seed, -_checks.INT64_MAX))
    count = _checks.integer("count", count, 0, _MOST_FAULTS)
    kinds = cast("list[FaultKind]", _checks.texts("kinds", kinds))
    if not kinds:
        raise UsageError("kinds must have at least one kind of fault")
    for each in kinds:
        _checks.one_of("a kind of fault", each, get_args(FaultKind))
    pause, duration = _bounds("pause", pause), _bounds("duration", duration)
    plan: list[Fault] = []
    for _ in range(count):
        after = round(random.uniform(*pause), 3)
        kind = random.choice(kinds)
        seconds = round(random.uniform(*duration), 3)
        direction = random.choice([each.value for each in Direction])
        match kind:
            case "cut" | "reset" | "cut client" | "cut broker":
                plan.append(Fault(after, kind))
            case "cut inside" | "corrupt":
                plan.append(Fault(after, kind, direction=direction, amount=random.randint(1, 2000)))
            case "stall one way":
                plan.append(Fault(after, kind, seconds, direction))
            case "stall" | "refuse":
                plan.append(Fault(after, kind, seconds))
            case "delay":
                plan.append(Fault(after, kind, seconds, amount=round(random.uniform(0.001, 0.1), 3)))
            case "split":
                plan.append(Fault(after, kind, seconds, amount=random.choice([1, 7, 97, 997])))
            case "throttle":
                plan.append(Fault(after, kind, seconds, amount=random.choice([10_000, 100_000, 1_000_000])))
    return plan


def _bounds(name: str, value: object) -> tuple[float, float]:
    bounds: list[object] = _checks.items(name, value, "two numbers of seconds")
    if len(bounds) != 2:
        raise UsageError(f"{name} must be the shortest and the longest time, not {_checks.shown(value)}")
    low, high = (_checks.seconds(name, each) for each in bounds)
    if low > high:
        raise UsageError(f"{name} must begin with the shortest time, and {low:g} is above {high:g}")
    return low, high


def random_faults(
    proxy: FaultProxy,
    seed: int,
    count: int,
    *,
    kinds: Sequence[FaultKind] = FAULTS,
    pause: tuple[float, float] = (0.1, 1.0),
    duration: tuple[float, float] = (0.05, 1.0),
) -> AsyncIterator[Fault]:
    """Inject faults in sequence; yields each fault at its end.

    Print the faults to repeat them with :func:`replay_faults`. See :func:`plan_faults` for the arguments. At
    the end the proxy is healed in any case.
    """
    return replay_faults(proxy, plan_faults(seed, count, kinds=kinds, pause=pause, duration=duration))


def replay_faults(proxy: FaultProxy, faults: Iterable[Fault]) -> AsyncIterator[Fault]:
    """Inject the given faults; yields each fault at its end. The proxy is healed in any case.

    Raises:
        UsageError: an argument has another type.
    """
    _checks.choice("proxy", proxy, FaultProxy)
    planned: list[Fault] = _checks.items("faults", faults, "bmq.testing.Fault")
    for fault in planned:
        _checks.choice("a fault", fault, Fault)
    return _inject(proxy, planned)


async def _inject(proxy: FaultProxy, faults: list[Fault]) -> AsyncIterator[Fault]:
    try:
        for fault in faults:
            await asyncio.sleep(fault.after)
            await fault.apply(proxy)
            yield fault
    finally:
        proxy.heal()
        await proxy.accept()
