# SPDX-License-Identifier: Apache-2.0
"""For tests of services: a pytest plugin and a fault-injecting proxy.

pytest loads the plugin, :mod:`bmq.testing.plugin`, by itself where bmq is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bmq.testing._app import TestApp
    from bmq.testing._background import BackgroundBroker
    from bmq.testing._faults import FAULTS, Fault, FaultKind, plan_faults, random_faults, replay_faults
    from bmq.testing._names import fresh_queue_uri
    from bmq.testing._pipe import Direction
    from bmq.testing._proxy import FaultProxy, ProxiedConnection, Side

__all__ = [
    "FAULTS",
    "BackgroundBroker",
    "Direction",
    "Fault",
    "FaultKind",
    "FaultProxy",
    "ProxiedConnection",
    "Side",
    "TestApp",
    "fresh_queue_uri",
    "plan_faults",
    "random_faults",
    "replay_faults",
]

# Loaded when asked for: the plugin is imported by every run of pytest, whatever it tests.
_MODULES = {
    "BackgroundBroker": "_background",
    "Direction": "_pipe",
    "FaultProxy": "_proxy",
    "ProxiedConnection": "_proxy",
    "Side": "_proxy",
    "TestApp": "_app",
    "fresh_queue_uri": "_names",
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
