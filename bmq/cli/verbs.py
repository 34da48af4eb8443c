# SPDX-License-Identifier: Apache-2.0
"""The verbs of the ``bmq`` command."""

from __future__ import annotations

__all__ = ["VERBS"]

#: The verbs, in the order of the help, each with its module and its purpose. A module has a function
#: ``command``.
VERBS: dict[str, tuple[str, str]] = {
    "post": ("bmq.cli.post", "Post messages: arguments, files, lines, NDJSON."),
    "tail": ("bmq.cli.tail", "Print messages as they come; take them only when told to."),
    "peek": ("bmq.cli.peek", "List what waits in a queue without taking it."),
    "dead": ("bmq.cli.dead", "List dead letters, look at one, put one or all back."),
    "mover": ("bmq.cli.mover", "Pass delayed messages on when they are due."),
    "purge": ("bmq.cli.purge", "Delete what waits in a queue or a domain."),
    "queues": ("bmq.cli.queues", "List queues with what they hold."),
    "stat": ("bmq.cli.stat", "Show what was posted, delivered and confirmed."),
    "top": ("bmq.cli.top", "Watch queues, rates, consumers and clients."),
    "console": ("bmq.cli.console", "Serve a web page: queues over time, consumers, messages."),
    "explain": ("bmq.cli.explain", "Say why a message is still in its queue."),
    "check": ("bmq.cli.check", "Check subscription expressions, and try them on properties."),
    "doctor": ("bmq.cli.doctor", "Try everything between here and a queue, step by step."),
    "bench": ("bmq.cli.bench", "Measure a broker: producing, consuming, round trips."),
    "admin": ("bmq.cli.admin", "Send a command in the broker's own language."),
    "decode": ("bmq.cli.decode", "Take apart recorded bytes, field by field."),
    "record": ("bmq.cli.record", "Write down what a client and a broker say to each other."),
    "replay": ("bmq.cli.replay", "Play one half of a recorded conversation."),
    "run": ("bmq.cli.run", "Run an app of workers, until a signal."),
    "spark": ("bmq.cli.spark", "Have a Spark query go on that refuses its checkpoint."),
    "broker": ("bmq.cli.broker", "Run the embedded broker, for development and tests."),
}
