# SPDX-License-Identifier: Apache-2.0
"""Handlers registered without an app, for modules that an app includes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from bmq import _checks
from bmq.errors import InvalidURI, StateError, UsageError
from bmq.wire.uri import QueueUri
from bmq.workers._dependencies import ANY_STATE
from bmq.workers._middleware import Middleware
from bmq.workers._registrar import Registrar, RegistrationTarget, Step
from bmq.workers._registry import Registry

__all__ = ["Router"]

_SCHEME: Final = "bmq://"
# The registrations of a router with a relative prefix are checked with this domain.
_STAND_IN: Final = "bmq://router/"
_RELATIVE: Final = re.compile(r"[-a-zA-Z0-9_.]*\Z")


class Router(Registrar):
    """Handlers of a module without an app, to be included in one or several apps.

    ::

        router = bmq.Router(prefix="bmq://bmq.test.mem.priority/")

        @router.consumer("orders")
        async def ship(message: bmq.Message) -> None:
            ...

        app = bmq.App("tcp://localhost:30114")
        app.include(router)

    The decorators are the decorators of :class:`bmq.App`, with the same arguments and checks. A router has no
    session: its handlers use the session of the app. :meth:`bmq.App.include` repeats the registrations in the
    app; afterwards the router accepts no further registrations.

    Args:
        prefix: beginning of the URI of each queue: a domain such as ``bmq://bmq.test.mem.priority/``, or a
            domain and the beginning of a queue name. Without ``bmq://``, the prefix is the beginning of a
            queue name, and the including router has the domain. Queues registered with a whole URI ignore
            the prefix.
        middlewares: async functions around each attempt of each handler, inside the middlewares of the app.

    Raises:
        InvalidURI: ``prefix`` is not the beginning of a queue URI or of a queue name.

    Attributes:
        prefix: the prefix.
    """

    @_checks.known_arguments
    def __init__(self, prefix: str = "", *, middlewares: Iterable[Middleware] = ()) -> None:
        super().__init__(middlewares)
        self.prefix = _checked_prefix(prefix)
        self._steps: list[Step] = []
        self._routers: list[Router] = []
        self._included = False

    def include(self, router: Router) -> None:
        """Include another router. A prefix without ``bmq://`` is appended to the prefix of this router.

        Args:
            router: the other router.

        Raises:
            UsageError: ``router`` is already a part of this router, or this router is a part of ``router``;
                or a registration of ``router`` contradicts a registration of this router.
            InvalidURI: the prefixes and a queue name do not make a legal queue URI.
            StateError: this router is already a part of an app or of another router.
        """
        self._check_open()
        _checks.choice("router", router, Router)
        self._registry = router._included_in(self._routers, self._target(), self)
        self._steps += map(self._prefixed, router._steps)

    def _uri_of(self, queue: str) -> str:
        uri = _joined(self.prefix, queue)
        return uri if _is_whole(uri) else _STAND_IN + uri

    def _target(self) -> RegistrationTarget:
        return RegistrationTarget(self._registry, self._uri_of, ANY_STATE)

    def _register(self, step: Step) -> None:
        self._check_open()
        step(self._target())
        self._steps.append(self._prefixed(step))

    def _prefixed(self, step: Step) -> Step:
        """Return a registration of this router, for an app or another router."""

        def prefixed(target: RegistrationTarget) -> None:
            def uri_of(queue: str) -> str:
                return target.uri_of(_joined(self.prefix, queue))

            middlewares = (*target.middlewares, *self._middlewares)
            step(replace(target, uri_of=uri_of, middlewares=middlewares))

        return prefixed

    def _included_in(
        self, routers: list[Router], target: RegistrationTarget, owner: Router | None = None
    ) -> Registry:
        """Return a register with the entries of a target and of this router. An error changes neither.

        Args:
            routers: routers that are part of the target already, directly or in other routers.
            target: the including app or router.
            owner: the including router; None for an app.

        Raises:
            UsageError: the router is a part of the target already, or contains the target; or a registration
                of the router contradicts a registration of the target.
            InvalidURI: a queue name is relative, or not legal.
        """
        added = [self, *self._routers]
        if owner in added:
            raise UsageError(f"{self!r} would be a part of itself")
        for each in added:
            if each in routers:
                raise UsageError(
                    f"{each!r} is already included, and its handlers would be registered twice. For the same "
                    "handlers on other queues, make each router in a function of the prefix"
                )
        trial = target.registry.copy()

        def uri_of(queue: str) -> str:
            uri = target.uri_of(queue)
            if not _is_whole(uri):
                raise InvalidURI(
                    f"the queue name {uri!r} of {self!r} is relative, and no router has a domain: "
                    "bmq.Router('bmq://DOMAIN/'), or give the queue's URI"
                )
            return uri

        for step in self._steps:
            step(replace(target, registry=trial, uri_of=uri_of))
        routers += added
        self._included = True
        return trial

    def _check_open(self) -> None:
        if self._included:
            raise StateError(
                "the router is already a part of an app or of another router; register its handlers before "
                "app.include(router)"
            )

    def __repr__(self) -> str:
        return f"Router({self.prefix!r})"


def _is_whole(queue: str) -> bool:
    return queue.startswith(_SCHEME)


def _joined(prefix: str, queue: str) -> str:
    """Return a queue name with a prefix. A whole URI is returned unchanged."""
    name = _checks.text("queue", queue)
    return name if _is_whole(name) else prefix + name


def _checked_prefix(prefix: object) -> str:
    """Return the prefix of a router.

    Raises:
        InvalidURI: no queue URI or queue name can begin with the prefix.
    """
    text = _checks.text("prefix", prefix)
    if not _is_whole(text):
        if not _RELATIVE.match(text):
            raise InvalidURI(
                f"prefix must be a domain such as bmq://bmq.test.mem.priority/, or the beginning of a queue "
                f"name, which consists of letters, digits, '-', '_' and '.'; not {text!r}"
            )
        return text
    if "/" not in text[len(_SCHEME) :]:
        raise InvalidURI(f"prefix {text!r} must end the domain with '/': {text + '/'!r}")
    uri = QueueUri.parse(text + ("q" if text.endswith("/") else ""))
    if uri.app_id or "?" in text:
        raise InvalidURI(f"prefix {text!r} must not contain an application: ?id= belongs to the queue name")
    return text
