# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: the expression language, typed filters, tag filters, and the broker's routing, all offline.

No module here contacts a broker: an :class:`Expression` is checked and evaluated locally.
"""

from bmq.subscriptions._builder import Filter, Operand, P
from bmq.subscriptions._diagnostics import ErrorKind, point_at
from bmq.subscriptions._domains import Finding, check_domain
from bmq.subscriptions._evaluator import EvaluationFailure, Evaluator, Lookup, lookup
from bmq.subscriptions._expression import Evaluation, Expression
from bmq.subscriptions._filters import (
    CmqTags,
    Complement,
    ExpressionInput,
    PulsarTags,
    TagFilter,
    check_property_types,
    complement,
    plan,
    pulsar_properties,
    pulsar_tags,
    subscriptions_for,
    tag,
    tag_name,
    tag_properties,
    tags_of,
    with_pulsar_tags,
)
from bmq.subscriptions._filters import (
    check_expression_type as check_expression_type,
)
from bmq.subscriptions._lint import Doubt
from bmq.subscriptions._parser import parse
from bmq.subscriptions._routing import Decision, Equalities, Route, RoutingTable, Step
from bmq.subscriptions._syntax import MAX_LENGTH, MAX_OPERATORS, unparse

__all__ = [
    "MAX_LENGTH",
    "MAX_OPERATORS",
    "CmqTags",
    "Complement",
    "Decision",
    "Doubt",
    "Equalities",
    "ErrorKind",
    "Evaluation",
    "EvaluationFailure",
    "Evaluator",
    "Expression",
    "ExpressionInput",
    "Filter",
    "Finding",
    "Lookup",
    "Operand",
    "P",
    "PulsarTags",
    "Route",
    "RoutingTable",
    "Step",
    "TagFilter",
    "check_domain",
    "check_property_types",
    "complement",
    "lookup",
    "parse",
    "plan",
    "point_at",
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
