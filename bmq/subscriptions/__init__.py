"""Subscriptions: the expression language, typed filters, tag filters, and the broker's routing, all offline.

Nothing here talks to a broker: an :class:`Expression` is checked and evaluated where it is made.
"""

from bmq.subscriptions.builder import Filter, Operand, P
from bmq.subscriptions.diagnostics import ErrorKind
from bmq.subscriptions.domains import AppOutcome, Finding, check_domain, explain_domain
from bmq.subscriptions.doubts import Doubt
from bmq.subscriptions.evaluator import EvaluationFailure, Evaluator, Lookup, lookup
from bmq.subscriptions.expression import Evaluation, Expression
from bmq.subscriptions.filters import (
    CmqTags,
    Complement,
    PulsarTags,
    Selector,
    TagFilter,
    complement,
    plan,
    subscriptions_for,
    tag,
)
from bmq.subscriptions.parser import parse
from bmq.subscriptions.routing import Decision, Route, RoutingTable, Step
from bmq.subscriptions.tags import (
    pulsar_properties,
    pulsar_tags,
    tag_name,
    tag_properties,
    tags_of,
    with_pulsar_tags,
)
from bmq.subscriptions.unparse import unparse

__all__ = [
    "AppOutcome",
    "CmqTags",
    "Complement",
    "Decision",
    "Doubt",
    "ErrorKind",
    "Evaluation",
    "EvaluationFailure",
    "Evaluator",
    "Expression",
    "Filter",
    "Finding",
    "Lookup",
    "Operand",
    "P",
    "PulsarTags",
    "Route",
    "RoutingTable",
    "Selector",
    "Step",
    "TagFilter",
    "check_domain",
    "complement",
    "explain_domain",
    "lookup",
    "parse",
    "plan",
    "pulsar_properties",
    "pulsar_tags",
    "subscriptions_for",
    "tag",
    "tag_name",
    "tag_properties",
    "tags_of",
    "unparse",
    "with_pulsar_tags",
]
