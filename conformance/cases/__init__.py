# SPDX-License-Identifier: Apache-2.0
"""The cases, a module a group. Numbers are given by hand and stay: a new case gets the next free number."""

from typing import Final

from conformance.case import Cases
from conformance.cases.applications import GROUP as _APPLICATIONS
from conformance.cases.ber import GROUP as _BER
from conformance.cases.credentials import GROUP as _CREDENTIALS
from conformance.cases.delivery import GROUP as _DELIVERY
from conformance.cases.framing import GROUP as _FRAMING
from conformance.cases.limits import GROUP as _LIMITS
from conformance.cases.modes import GROUP as _MODES
from conformance.cases.negotiation import GROUP as _NEGOTIATION
from conformance.cases.posting import GROUP as _POSTING
from conformance.cases.refusals import GROUP as _REFUSALS
from conformance.cases.requests import GROUP as _REQUESTS
from conformance.cases.routing import GROUP as _ROUTING
from conformance.cases.subscriptions import GROUP as _SUBSCRIPTIONS

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
