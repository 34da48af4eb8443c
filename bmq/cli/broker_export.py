# SPDX-License-Identifier: Apache-2.0
"""The collector behind ``bmq exporter``: asks brokers in turns, and returns the last views as metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

import bmq
from bmq import _world
from bmq.admin import Admin
from bmq.admin.watch import BrokerView, BrokerWatch
from bmq.cli.broker_metrics import families, gauge
from bmq.cli.output import note
from bmq.cli.target import BrokerTarget
from bmq.client.address import Address

__all__ = ["Exporter", "Labels"]


class Labels:
    """The names with separate series, a limited number.

    A name keeps the place until the name is gone from every broker: a series never changes the meaning.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: dict[str, set[str]] = {}
        self._left_out: dict[str, set[str]] = {}

    def choose(self, broker: str, names: Iterable[str]) -> frozenset[str]:
        """Return the names with series among all names of a broker; earlier names go first."""
        names = list(names)
        present = set(names)
        for name in [name for name, holders in self._holders.items() if broker in holders]:
            if name not in present:
                self._holders[name].discard(broker)
                if not self._holders[name]:
                    del self._holders[name]
        for name in names:
            if name in self._holders or len(self._holders) < self._limit:
                self._holders.setdefault(name, set()).add(broker)
        chosen = frozenset(present & self._holders.keys())
        self._left_out[broker] = present - chosen
        return chosen

    def forget(self, broker: str) -> None:
        """Leave a silent broker out of the counts; the names keep the places."""
        self._left_out.pop(broker, None)

    @property
    def left_out(self) -> int:
        """Number of names without series."""
        return len(set[str]().union(*self._left_out.values()))


class _Broker:
    """A broker: the connection, and the last view.

    Attributes:
        view: the answers of the last round; absent after a failure.
        failures: failed rounds, by class of the error.
        seconds: duration of the last round.
    """

    def __init__(self, target: BrokerTarget, address: Address, watch: BrokerWatch) -> None:
        self._target = replace(target, uri=str(address))
        self._admin: Admin | None = None
        self._reported = ""
        self.address = str(address)
        self.watch = watch
        self.view: BrokerView | None = None
        self.failures: dict[str, int] = {}
        self.seconds = 0.0

    async def ask(self) -> None:
        """Ask for a new view. A failure is kept as a count and as a line on stderr."""
        started = _world.monotonic()
        try:
            if self._admin is None:
                self._admin = await self._target.admin()
            self.view = await self.watch.look(self._admin)
        except Exception as error:
            self.view = None
            self.watch.forget()
            name = type(error).__name__
            self.failures[name] = self.failures.get(name, 0) + 1
            if self._reported != name:
                expected = isinstance(error, bmq.Error | OSError)
                what = f"does not answer: {error}" if expected else f"could not be asked: {error!r}"
                note(f"bmq exporter: {self.address} {what}")
            self._reported = name
            with suppress(Exception):
                await self.close()
        else:
            if self._reported:
                note(f"bmq exporter: {self.address} answers again")
            self._reported = ""
        self.seconds = _world.monotonic() - started

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


class Exporter(Collector):
    """Asks each broker in a separate loop, and collects the last views."""

    def __init__(
        self,
        target: BrokerTarget,
        addresses: Iterable[Address],
        *,
        interval: float,
        max_queues: int,
        max_apps: int,
        max_details: int,
        only: frozenset[str],
    ) -> None:
        self._interval = interval
        self._max_apps = max_apps
        self._queues, self._domains = Labels(max_queues), Labels(max_queues)
        self._brokers = [
            _Broker(
                target,
                address,
                BrokerWatch(
                    str(address),
                    choose_queues=partial(self._queues.choose, str(address)),
                    choose_domains=partial(self._domains.choose, str(address)),
                    wants=lambda domain: not only or domain in only,
                    most_inside=max_details,
                    left_out=partial(_left_out, str(address)),
                ),
            )
            for address in dict.fromkeys(addresses)
        ]

    async def _ask(self, broker: _Broker) -> None:
        await broker.ask()
        if broker.view is None:
            self._queues.forget(broker.address)
            self._domains.forget(broker.address)

    async def ask_all(self) -> None:
        """Ask all brokers once, at the same time."""
        await asyncio.gather(*map(self._ask, self._brokers))

    async def run(self) -> None:
        """Ask all brokers, until cancelled."""
        await asyncio.gather(*map(self._repeat, self._brokers))

    async def _repeat(self, broker: _Broker) -> None:
        while True:
            # A slow broker gets a pause as long as the last round.
            await asyncio.sleep(max(self._interval - broker.seconds, broker.seconds))
            await self._ask(broker)

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*(broker.close() for broker in self._brokers))

    # in the thread of a scrape: a view is replaced, and never changed

    def describe(self) -> Iterable[Metric]:
        """Return no description: a registration would collect otherwise."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the last views."""
        views = [broker.view for broker in self._brokers]
        yield from self._of_brokers()
        yield from families([view for view in views if view is not None], _world.now(), self._max_apps)

    def _of_brokers(self) -> Iterable[Metric]:
        # Another thread replaces the views.
        brokers = [(broker, broker.view) for broker in self._brokers]
        views = [(broker.address, view) for broker, view in brokers if view is not None]
        for name, what, value in _GAUGES:
            samples = (([broker.address], value(broker, view)) for broker, view in brokers)
            yield gauge(f"bmq_{name}", what, ("broker",), samples)
        yield gauge(
            "bmq_broker_info",
            "1 for the name and role of a broker in a cluster",
            ("broker", "cluster", "node", "role"),
            (
                ([address, each.cluster, view.label(each.cluster), each.role], 1)
                for address, view in views
                for each in view.clusters
            ),
        )
        commands = CounterMetricFamily(
            "bmq_exporter_commands", "Admin commands sent", labels=["broker", "command"]
        )
        failures = CounterMetricFamily(
            "bmq_exporter_failed_rounds", "Rounds without a complete answer", labels=["broker", "error"]
        )
        for broker in self._brokers:
            for name, count in list(broker.watch.commands.items()):
                commands.add_metric([broker.address, name], count)
            for name, count in list(broker.failures.items()):
                failures.add_metric([broker.address, name], count)
        yield from (commands, failures)
        apps = sum(
            max(0, len(queue.inside.apps) - self._max_apps)
            for _, view in views
            for queue in view.queues
            if queue.inside is not None
        )
        left_out = {"queues": self._queues.left_out, "domains": self._domains.left_out, "apps": apps}
        for name, count in left_out.items():
            what = f"Number of {name} without series"
            yield gauge(f"bmq_exporter_left_out_{name}", what, (), [([], count)])


# Gauges by broker: name, description, and value; None for no sample.
_GAUGES: tuple[tuple[str, str, Callable[[_Broker, BrokerView | None], float | None]], ...] = (
    ("broker_up", "Whether a broker answered the last round", lambda _, view: view is not None),
    ("exporter_round_seconds", "Duration of the last round of commands", lambda broker, _: broker.seconds),
    (
        "exporter_last_success_timestamp_seconds",
        "Time of the last answers",
        lambda _, view: view.time.timestamp() if view is not None else None,
    ),
    (
        "exporter_oldest_details_seconds",
        "Age of the oldest answer about one queue",
        lambda _, view: view.stale if view is not None else None,
    ),
    (
        "exporter_unreadable",
        "Queues and domains whose answers could not be read in the last round",
        lambda broker, _: len(broker.watch.unreadable),
    ),
)


def _left_out(broker: str, name: str, error: bmq.ProtocolError) -> None:
    note(f"bmq exporter: {broker}: {name} is left out: {error}")
