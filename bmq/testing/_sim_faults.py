# SPDX-License-Identifier: Apache-2.0
"""Faults of a simulation, drawn separately from the seed: each fault can be left out."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from bmq.testing._sim_network import SimConnection

if TYPE_CHECKING:
    from bmq.testing._simulation import SimulatedBroker, SimulatedProcess, Simulation

__all__ = ["SIMULATED_FAULTS", "SKIP", "Faults", "SimulatedFault"]

SimulatedFault = Literal[
    "cut", "reset", "reset all", "half close", "stall", "silence",
    "latency", "segments", "throttle", "window",
    "refuse", "partition", "one way", "crash", "power", "restart", "move",
    "kill", "pause", "busy", "clock",
]  # fmt: skip
#: The default choice of :meth:`bmq.testing.Simulation.faults`.
SIMULATED_FAULTS: Final[tuple[SimulatedFault, ...]] = get_args(SimulatedFault)

#: The environment variable with the numbers of faults to leave out.
SKIP: Final = "BMQ_SIM_SKIP"
_OF_CONNECTIONS: Final = ("cut", "reset", "half close", "stall", "silence")
_OF_SEGMENTS: Final = ("latency", "segments", "throttle", "window")
_OF_BROKERS: Final = ("crash", "power", "restart", "move", "refuse")
_OF_PROCESSES: Final = ("kill", "pause", "busy", "clock")


class Faults:
    """The faults of one call of :meth:`bmq.testing.Simulation.faults`."""

    def __init__(
        self,
        simulation: Simulation,
        kinds: Sequence[SimulatedFault],
        victims: Sequence[SimulatedProcess],
    ) -> None:
        self._simulation = simulation
        self._network = simulation.network
        self._engine = simulation._engine
        self._victims = list(victims)
        self._brokers = simulation._brokers
        self._kinds: list[SimulatedFault] = [
            kind
            for kind in kinds
            if (kind not in _OF_BROKERS or self._brokers)
            and (kind not in _OF_PROCESSES or self._victims)
            and (kind != "move" or any(len(each.hosts) > 1 for each in self._brokers))
        ]
        self._conditions: dict[str, Any] = {}

    async def run(self, until: float, pause: tuple[float, float], duration: tuple[float, float]) -> None:
        """Start fault after fault; faults may overlap."""
        simulation, engine, skipped = self._simulation, self._engine, skipped_faults()
        while self._kinds:
            simulation._faults_drawn += 1
            number = simulation._faults_drawn
            # Separate generators: a fault's draw stays the same when another fault is left out.
            random = Random(f"{simulation.seed}/fault/{number}")
            wait = random.uniform(*pause)
            if engine.now + wait > until:
                break
            await asyncio.sleep(wait)
            kind = random.choice(self._kinds)
            seconds = random.uniform(*duration)
            if number not in skipped:
                self._do(number, kind, seconds, random)
        await asyncio.sleep(max(0.0, until - engine.now))

    def _do(self, number: int, kind: SimulatedFault, seconds: float, random: Random) -> None:
        connections = self._network.connections
        if kind in _OF_CONNECTIONS:
            if connections:
                self._hurt(number, kind, seconds, random.choice(connections), random)
        elif kind == "reset all":
            self._note(number, f"reset of all {len(connections)} connections")
            for each in connections:
                each.reset()
        elif kind in _OF_SEGMENTS:
            self._worsen(number, kind, seconds, random)
        elif kind in ("partition", "one way"):
            hosts = list(self._network._hosts)
            if len(hosts) > 1:
                one, other = random.sample(hosts, 2)
                self._note(number, f"{kind}: {one} and {other} for {seconds:.3f} s")
                self._network.partition(one, other, both=kind == "partition")
                self._later(seconds, lambda: self._network.mend(one, other))
        elif kind in _OF_BROKERS:
            self._break(number, kind, seconds, random.choice(self._brokers), random)
        else:
            self._trouble(number, kind, seconds, random.choice(self._victims), random)

    def _hurt(
        self, number: int, kind: SimulatedFault, seconds: float, connection: SimConnection, random: Random
    ) -> None:
        towards_client = random.random() < 0.5
        way = "towards its client" if towards_client else "towards its server"
        if kind == "cut":
            self._note(number, f"cut of {connection}")
            connection.cut()
        elif kind == "reset":
            self._note(number, f"reset of {connection}")
            connection.reset()
        elif kind == "half close":
            self._note(number, f"half close of {connection}, {way}")
            connection.half_close(towards_client=towards_client)
        else:
            length = math.inf if kind == "silence" else seconds
            self._note(number, f"stall of {connection}, {way}, for {length:.3f} s")
            connection.stall(length, towards_client=towards_client)

    def _worsen(self, number: int, kind: SimulatedFault, seconds: float, random: Random) -> None:
        name, value = {
            "latency": ("latency", (0.0, random.choice((0.01, 0.1, 1.0)))),
            "segments": ("segment", (1, random.choice((1, 7, 97, 997)))),
            "throttle": ("rate", random.choice((1e4, 1e5, 1e6))),
            "window": ("window", random.choice((1, 100, 5000))),
        }[kind]
        self._note(number, f"{name}={value!r} for {seconds:.3f} s")
        self._conditions[name] = value
        self._network.set(**self._conditions)

        def better() -> None:
            self._conditions.pop(name, None)
            self._network.set(**self._conditions)

        self._later(seconds, better)

    def _break(
        self, number: int, kind: SimulatedFault, seconds: float, broker: SimulatedBroker, random: Random
    ) -> None:
        if kind == "refuse":
            self._note(number, f"{broker.host} refuses connections for {seconds:.3f} s")
            refusing, port = broker.host, broker.port
            self._network.refuse(refusing, port)
            self._later(seconds, lambda: self._network.refuse(refusing, port, refuse=False))
            return
        if not broker.running:
            return
        if kind == "restart":
            self._note(number, f"{broker.host} stops in good order for {seconds:.3f} s")
            broker.stop()
        else:
            how = "loses its power" if kind == "power" else "crashes"
            self._note(number, f"{broker.host} {how} for {seconds:.3f} s")
            # Messages of this last moment were not acknowledged: every segment takes longer.
            broker.crash(machine=kind == "power", lose=self._network._latency[0] * 0.99)
        host = random.choice(broker.hosts) if kind == "move" else None

        def start() -> None:
            if broker.running:
                self._later(0.1, start)  # still running
            else:
                broker.start(host)

        self._later(seconds, start)

    def _trouble(
        self, number: int, kind: SimulatedFault, seconds: float, victim: SimulatedProcess, random: Random
    ) -> None:
        if kind == "clock":
            ahead = random.choice((-1.0, 1.0)) * random.choice((0.1, 5.0, 3600.0))
            self._note(number, f"the clock of {victim.name} jumps by {ahead:g} s")
            victim.jump(ahead)
        elif victim.state != "running":
            pass
        elif kind == "busy":
            self._note(number, f"{victim.name} has no turn for {seconds:.3f} s")
            victim.busy(seconds)
        elif kind == "pause":
            self._note(number, f"{victim.name} is paused for {seconds:.3f} s")
            victim.pause()
            self._later(seconds, victim.resume)
        else:
            machine = random.random() < 0.3
            self._note(
                number,
                f"{victim.name} is killed{', its machine too,' if machine else ''} for {seconds:.3f} s",
            )
            victim.kill(machine=machine)
            self._later(seconds, lambda: None if victim.running else victim.start())

    def _note(self, number: int, what: str) -> None:
        self._simulation.note(what, number=number)

    def _later(self, seconds: float, end: Callable[[], object]) -> None:
        """End a fault after some time, or when the simulation heals."""
        ends, token = self._simulation._fault_ends, object()

        def act() -> None:
            if ends.pop(token, None) is not None:
                end()

        ends[token] = end
        self._engine.at(self._engine.now + seconds, act)


def skipped_faults() -> frozenset[int]:
    """Return the numbers of faults to leave out, from the environment."""
    given = os.environ.get(SKIP, "")
    return frozenset(int(each) for each in given.replace(",", " ").split() if each.isdigit())
