# SPDX-License-Identifier: Apache-2.0
"""A second evaluator, written from the description of the language, as plainly as possible.

It shares only the syntax tree with the evaluator under test: values are (type, value) pairs, errors are
exceptions, and boolean literals are rewritten during the evaluation.
"""

from __future__ import annotations

from typing import Any

from bmq.subscriptions._syntax import Binary, Boolean, Exists, Integer, Negate, Node, Not, Property, String
from bmq.wire.properties import PropertyValue


class Stopped(Exception):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def outcome(node: Node, message: dict[str, Any]) -> bool | str:
    """True, False, or the name of the kind of error."""
    try:
        kind, value = evaluate(node, message)
    except Stopped as stopped:
        return stopped.kind
    return bool(value) if kind == "bool" else "TYPE"


def read(name: str, message: dict[str, Any]) -> tuple[str, Any]:
    if name not in message:
        raise Stopped("NAME")
    value = message[name]
    if isinstance(value, PropertyValue):
        if value.type.name == "CHAR":
            return "int", int.from_bytes(value.value, "big", signed=True)
        value = value.value
    if isinstance(value, bytes):
        raise Stopped("TYPE")
    return {bool: "bool", int: "int", str: "str"}[type(value)], value


def constant(node: Node) -> bool | None:
    """The value of what the broker's compiler has made a boolean literal of."""
    if isinstance(node, Boolean):
        return node.value
    if isinstance(node, Binary) and node.operator in ("==", "!="):
        left, right = constant(node.left), constant(node.right)
        if left is not None and right is not None:
            return (left == right) == (node.operator == "==")
    return None


def evaluate(node: Node, message: dict[str, Any]) -> tuple[str, Any]:
    if isinstance(node, Property):
        return read(node.name, message)
    if isinstance(node, Exists):
        try:
            read(node.name, message)
        except Stopped:
            return "bool", False
        return "bool", True
    if isinstance(node, Integer):
        return "int", node.value
    if isinstance(node, String):
        return "str", node.value
    if isinstance(node, Boolean):
        return "bool", node.value
    if isinstance(node, Not):
        kind, value = evaluate(node.operand, message)
        if kind != "bool":
            raise Stopped("TYPE")
        return "bool", not value
    if isinstance(node, Negate):
        kind, value = evaluate(node.operand, message)
        if kind != "int":
            raise Stopped("TYPE")
        return "int", wrap(-value)
    if node.operator in ("&&", "||"):
        kind, value = evaluate(node.left, message)
        if kind != "bool":
            raise Stopped("TYPE")
        if value == (node.operator == "||"):
            return kind, value
        kind, value = evaluate(node.right, message)
        if kind != "bool":
            raise Stopped("TYPE")
        return kind, value
    if node.operator in ("==", "!="):
        fixed = [
            (constant(side), other) for side, other in ((node.left, node.right), (node.right, node.left))
        ]
        if fixed[0][0] is not None and fixed[1][0] is not None:
            return "bool", (fixed[0][0] == fixed[1][0]) == (node.operator == "==")
        for literal, other in fixed:
            if literal is not None:
                return evaluate(other if literal == (node.operator == "==") else Not(other), message)
    left_kind, left = evaluate(node.left, message)
    right_kind, right = evaluate(node.right, message)
    if node.operator in ("==", "!=", "<", "<=", ">", ">="):
        if left_kind != right_kind or left_kind == "bool":
            raise Stopped("TYPE")
        if left_kind == "str":
            left, right = left.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape")
        answers = {
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }
        return "bool", answers[node.operator]
    if left_kind != "int" or right_kind != "int":
        raise Stopped("TYPE")
    if node.operator in ("/", "%"):
        if right == 0 or (left == -(2**63) and right == -1):
            raise Stopped("ARITHMETIC")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return "int", quotient if node.operator == "/" else left - quotient * right
    return "int", wrap({"+": left + right, "-": left - right, "*": left * right}[node.operator])


def wrap(value: int) -> int:
    return int.from_bytes((value % 2**64).to_bytes(8, "big"), "big", signed=True)
