# SPDX-License-Identifier: Apache-2.0
"""The names of spans, attributes and metrics in OpenTelemetry's conventions, as of version 1.44.

The conventions for messaging are still in development. Changes belong into this module.
"""

from __future__ import annotations

from typing import Final

__all__: list[str] = []

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

#: Spans of operations on sessions and queues, with the names of BlazingMQ's own clients.
OPERATION_SPANS: Final = {
    "session.start": "bmq.session.start",
    "session.stop": "bmq.session.stop",
    "queue.open": "bmq.queue.open",
    "queue.configure": "bmq.queue.configure",
    "queue.close": "bmq.queue.close",
}
#: Attribute of the spans of operations on a queue, as in BlazingMQ's own clients.
QUEUE_URI: Final = "bmq.queue.uri"

# Attributes.
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
SUBSCRIPTION_NAME: Final = "messaging.destination.subscription.name"
CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
FUNCTION_NAME: Final = "code.function.name"

# Attributes of our own, as the conventions ask: in the system's namespace.
REDELIVERED: Final = "messaging.blazingmq.message.redelivered"
ATTEMPT: Final = "messaging.blazingmq.handler.attempt"

# Values.
BLAZINGMQ: Final = "blazingmq"
#: The name of an operation here, and the operation's type in the conventions.
OPERATIONS: Final = {"post": "send", "receive": "receive", "process": "process", "confirm": "settle"}

# Metrics.
OPERATION_DURATION: Final = "messaging.client.operation.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
PROCESS_DURATION: Final = "messaging.process.duration"
SECONDS: Final = "s"
MESSAGES: Final = "{message}"
#: The bounds for durations from the conventions.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
