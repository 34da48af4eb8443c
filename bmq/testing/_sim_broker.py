# SPDX-License-Identifier: Apache-2.0
"""The broker of a simulation, whose process may be killed."""

from __future__ import annotations

from bmq.broker import Broker

__all__ = ["MortalBroker"]


class MortalBroker(Broker):
    """A broker whose process may end without any further code."""

    def vanish(self, forget: float = 0.0) -> None:
        """Imitate a killed process: only stored messages stay, for a later :meth:`start`.

        Args:
            forget: seconds; messages that arrived within this time were not stored yet, and are lost.
        """
        self._listener = None
        self._abandon(forget)

    def forget(self) -> None:
        """Lose all messages, between two runs."""
        self._renew()
