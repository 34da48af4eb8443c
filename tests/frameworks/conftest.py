# SPDX-License-Identifier: Apache-2.0
"""The same brokers and queues as for the subscriptions."""

from tests.subscriptions.through_broker.conftest import broker_uri, fresh

__all__ = ["broker_uri", "fresh"]
