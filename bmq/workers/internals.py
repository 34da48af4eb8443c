# SPDX-License-Identifier: Apache-2.0
"""What the command line, tests of applications and documents need of apps beside the public methods."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bmq._dead_letters import Failure
from bmq.client.consumer import Consumer
from bmq.workers._app import App, Settings
from bmq.workers._dependencies import Overrides
from bmq.workers._registry import Registrar, Registry
from bmq.workers._results import Responder, Results
from bmq.workers._retry import Clock
from bmq.workers._status import calls
from bmq.workers.probe import Probe

__all__ = [
    "Results",
    "begin_trial",
    "begun_of",
    "calls",
    "consumers_of",
    "dependencies_of",
    "grace_of",
    "parts_of",
    "probes_of",
    "registry_of",
    "replies_of",
    "settings_of",
]


def registry_of(registrar: Registrar) -> Registry:
    """Return the register of an app or a router."""
    return registrar._registry


def replies_of(responder: Responder) -> Results:
    """Return the conversion of a responder's replies."""
    return responder._results


def settings_of(app: App[Any]) -> Settings:
    """Return the arguments of an app."""
    return app._settings


def parts_of(app: App[Any]) -> list[App[Any]]:
    """Return the included apps."""
    return app._parts


def consumers_of(app: App[Any]) -> list[Consumer]:
    """Return the consumers of the latest run of an app."""
    return app._consumers


def probes_of(app: App[Any]) -> list[Probe]:
    """Return the probe of an app, and the probes of its parts that have an address."""
    rest = [each._probe for each in app._all() if each is not app]
    return [app._probe, *(each for each in rest if each.address is not None)]


def begun_of(app: App[Any]) -> asyncio.Future[None]:
    """Return a future to be done once the handlers of the next run receive messages."""
    return app._begun()


def grace_of(app: App[Any]) -> float:
    """Return the seconds for handlers to finish, with those of the parts."""
    return max(each._settings.grace for each in app._all())


def dependencies_of(app: App[Any], overrides: Overrides) -> list[Callable[..., Any]]:
    """Return the functions of all dependencies, as they are and with these replacements."""
    return [
        dependency.function
        for plan in (each.plan for each in app._registry.handlers)
        for some in ({}, app.overrides, {**app.overrides, **overrides})
        for dependency in plan.dependencies(some)
    ]


def begin_trial(
    app: App[Any], broker: str, clock: Clock, watch: Callable[[Failure], None], *, sockets: bool
) -> Callable[[], None]:
    """Make an app run with a test's broker, clock and hook; the result undoes the change.

    With sockets, the probe has a free port: the service itself may run on the machine. Without, none.
    """
    settings, state, overrides, address = app._settings, app.state, app.overrides, app._probe.address
    app._probe.address = (address[0], 0) if sockets and address is not None else None
    options = settings.options.copy()
    options.pop("credentials", None)
    options.pop("ssl", None)
    options.pop("server_hostname", None)
    app._settings = replace(settings, broker=broker, options=options, clock=clock, watch=watch)
    app.state, app.overrides = copy.copy(state), overrides.copy()

    def undo() -> None:
        app._settings, app.state, app.overrides = settings, state, overrides
        app._probe.address = address

    return undo
