# SPDX-License-Identifier: Apache-2.0
"""The cases for clients, by group."""

from conformance.client_cases import connecting, forms, hostile, losing, posting, queues, receiving

__all__ = ["EVERY_GROUP"]

EVERY_GROUP = tuple(each.CASES for each in (connecting, queues, posting, receiving, losing, hostile, forms))
