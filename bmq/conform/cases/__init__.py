# SPDX-License-Identifier: Apache-2.0
"""The cases, a module a group. Numbers are given by hand and stay: a new case gets the next free number."""

from typing import Final

from bmq.conform.case import Cases
from bmq.conform.cases.applications import GROUP as _APPLICATIONS
from bmq.conform.cases.ber import GROUP as _BER
from bmq.conform.cases.credentials import GROUP as _CREDENTIALS
from bmq.conform.cases.delivery import GROUP as _DELIVERY
from bmq.conform.cases.framing import GROUP as _FRAMING
from bmq.conform.cases.limits import GROUP as _LIMITS
from bmq.conform.cases.modes import GROUP as _MODES
from bmq.conform.cases.negotiation import GROUP as _NEGOTIATION
from bmq.conform.cases.posting import GROUP as _POSTING
from bmq.conform.cases.refusals import GROUP as _REFUSALS
from bmq.conform.cases.requests import GROUP as _REQUESTS
from bmq.conform.cases.routing import GROUP as _ROUTING
from bmq.conform.cases.subscriptions import GROUP as _SUBSCRIPTIONS

__all__ = ["EVERY_GROUP"]

#: All groups, in the order of their numbers.
EVERY_GROUP: Final[tuple[Cases, ...]] = (
    _NEGOTIATION,
    _FRAMING,
    _REQUESTS,
    _POSTING,
    _DELIVERY,
    _SUBSCRIPTIONS,
    _MODES,
    _ROUTING,
    _REFUSALS,
    _CREDENTIALS,
    _LIMITS,
    _BER,
    _APPLICATIONS,
)
