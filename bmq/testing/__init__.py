# SPDX-License-Identifier: Apache-2.0
"""For tests of services: a pytest plugin, a fault-injecting proxy, simulation, and histories with a checker.

pytest loads the plugin, :mod:`bmq.testing.plugin`, automatically if bmq is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bmq.testing._app import TestApp
    from bmq.testing._background import BackgroundBroker
    from bmq.testing._checker import BrokenPromise, Problem, Verdict
    from bmq.testing._faults import FAULTS, Fault, FaultKind, plan_faults, random_faults, replay_faults
    from bmq.testing._history import History, Recorder, check, examine
    from bmq.testing._names import fresh_queue_uri
    from bmq.testing._pipe import Direction
    from bmq.testing._proxy import FaultProxy, ProxiedConnection, Side
    from bmq.testing._sim_faults import SIMULATED_FAULTS, SimulatedFault
    from bmq.testing._sim_network import SimulatedNetwork
    from bmq.testing._simulation import (
        SimulatedBroker,
        SimulatedProcess,
        Simulation,
        SimulationError,
        simulated,
    )

__all__ = [
    "FAULTS",
    "SIMULATED_FAULTS",
    "BackgroundBroker",
    "BrokenPromise",
    "Direction",
    "Fault",
    "FaultKind",
    "FaultProxy",
    "History",
    "Problem",
    "ProxiedConnection",
    "Recorder",
    "Side",
    "SimulatedBroker",
    "SimulatedFault",
    "SimulatedNetwork",
    "SimulatedProcess",
    "Simulation",
    "SimulationError",
    "TestApp",
    "Verdict",
    "check",
    "examine",
    "fresh_queue_uri",
    "plan_faults",
    "random_faults",
    "replay_faults",
    "simulated",
]

# Loaded on first use: every run of pytest imports the plugin.
_MODULES = {
    "BackgroundBroker": "_background",
    "BrokenPromise": "_checker",
    "Direction": "_pipe",
    "FaultProxy": "_proxy",
    "History": "_history",
    "Problem": "_checker",
    "ProxiedConnection": "_proxy",
    "Recorder": "_history",
    "Side": "_proxy",
    "SIMULATED_FAULTS": "_sim_faults",
    "SimulatedBroker": "_simulation",
    "SimulatedFault": "_sim_faults",
    "SimulatedNetwork": "_sim_network",
    "SimulatedProcess": "_simulation",
    "Simulation": "_simulation",
    "SimulationError": "_simulation",
    "TestApp": "_app",
    "Verdict": "_checker",
    "check": "_history",
    "examine": "_history",
    "fresh_queue_uri": "_names",
    "simulated": "_simulation",
}


# Type checkers take the imports above.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in __all__:
            module = importlib.import_module(f"bmq.testing.{_MODULES.get(name, '_faults')}")
            return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
