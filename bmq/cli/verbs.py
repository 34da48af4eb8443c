# SPDX-License-Identifier: Apache-2.0
"""The verbs of the ``bmq`` command."""

from __future__ import annotations

#: The verbs, in the order of the help, each with its module and its purpose. The module has a function of the
#: name of the verb.
VERBS: dict[str, tuple[str, str]] = {
    "post": ("bmq.cli.post", "Post messages: arguments, files, lines, NDJSON."),
    "tail": ("bmq.cli.tail", "Print the messages of a queue; confirm only with --confirm."),
    "peek": ("bmq.cli.queues", "List the messages that wait in a queue."),
    "move": ("bmq.cli.move", "Move messages to another queue, resumable."),
    "dead": ("bmq.cli.dead", "List dead letters, show one, or put letters back."),
    "mover": ("bmq.cli.services", "Pass delayed messages on when they are due."),
    "purge": ("bmq.cli.queues", "Delete the messages of a queue or a domain."),
    "queues": ("bmq.cli.queues", "List queues with their depth and clients."),
    "stat": ("bmq.cli.queues", "Show counts of posted, delivered and confirmed messages."),
    "top": ("bmq.cli.top", "Watch queues, rates, consumers and clients."),
    "console": ("bmq.cli.services", "Serve a web page: queues over time, consumers, messages."),
    "exporter": ("bmq.cli.services", "Serve metrics of brokers, queues and clusters for Prometheus."),
    "explain": ("bmq.cli.explain", "Explain why a message is still in its queue."),
    "check": ("bmq.cli.check", "Check expressions, and test them with properties."),
    "contexts": ("bmq.cli.contexts", "Name brokers, with credentials and a default domain."),
    "doctor": ("bmq.cli.doctor", "Test each step from here to a broker and a queue."),
    "bench": ("bmq.cli.bench", "Measure a broker: rates, round trips, latency under load."),
    "admin": ("bmq.cli.admin", "Send an admin command to a broker."),
    "domains": ("bmq.cli.domains", "Compare files of domains with a broker, and apply them."),
    "decode": ("bmq.cli.decode", "Decode recorded bytes, field by field."),
    "run": ("bmq.cli.run", "Run an app of workers, until a signal."),
    "new": ("bmq.cli.new", "Create a project: a service, a pipeline of Spark, or tests."),
    "docs": ("bmq.cli.run", "Print the AsyncAPI document of an app."),
    "broker": ("bmq.cli.broker", "Run the embedded broker, for development and tests."),
}
