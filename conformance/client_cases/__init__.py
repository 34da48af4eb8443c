# SPDX-License-Identifier: Apache-2.0
"""The cases for clients, by group."""

from conformance.client_cases.connecting import CASES as _CONNECTING
from conformance.client_cases.forms import CASES as _FORMS
from conformance.client_cases.hostile import CASES as _HOSTILE
from conformance.client_cases.losing import CASES as _LOSING
from conformance.client_cases.posting import CASES as _POSTING
from conformance.client_cases.queues import CASES as _QUEUES
from conformance.client_cases.receiving import CASES as _RECEIVING

__all__ = ["EVERY_GROUP"]

EVERY_GROUP = (_CONNECTING, _QUEUES, _POSTING, _RECEIVING, _LOSING, _HOSTILE, _FORMS)
