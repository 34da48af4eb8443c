# SPDX-License-Identifier: Apache-2.0
"""Evaluation: compiles a syntax tree to one Python function.

The function is generated as source. No part of the expression is ever pasted into the source: names, literals
and failures are passed as arguments, and appear in the source as ``k0``, ``k1``, ...

The meaning is the broker's. Operands are evaluated left to right, and the first error ends the evaluation.
``&&`` and ``||`` skip the right side if the left side decides. Arithmetic has 64 bits and wraps around.
Strings compare by their bytes. Before evaluation, a comparison with a literal ``true`` or ``false`` is
replaced by the other side or its negation; booleans cannot be compared in any other way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from bmq import _checks
from bmq.errors import InvalidExpression, InvalidProperty, ProtocolError
from bmq.subscriptions._diagnostics import ErrorKind
from bmq.subscriptions._syntax import (
    INT64_MAX,
    INT64_MIN,
    PRECEDENCE,
    Binary,
    Boolean,
    Exists,
    Integer,
    Negate,
    Node,
    Not,
    Property,
    String,
)
from bmq.wire.constants import PropertyType
from bmq.wire.properties import Properties, PropertyValue

#: Returns a property's value by name: bool, int, str, bytes (BINARY) or PropertyValue; None or KeyError if
#: absent.
Lookup: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class EvaluationFailure:
    """The error that ended an evaluation.

    Attributes:
        kind: kind of the error.
        offset: index of the error in the expression's text.
        reason: the error in words.
    """

    kind: ErrorKind
    offset: int
    reason: str


#: A compiled expression: takes a lookup, returns ``True``, ``False`` or an :class:`EvaluationFailure`.
Evaluator: TypeAlias = Callable[[Lookup], bool | EvaluationFailure]

#: Returns whether decoded values match; all values are bool, int or str.
Matcher: TypeAlias = Callable[[Mapping[str, Any]], bool]


def always(_get: Lookup) -> bool:
    """The evaluator of a subscription without an expression, or with an invalid expression."""
    return True


def lookup(properties: Mapping[str, Any] | None) -> Lookup:
    """Return the lookup through which evaluators read a message's properties.

    Received properties are decoded lazily. If they cannot be decoded, every name is absent, as for the
    broker.
    """
    if properties is None:
        return _nothing
    if isinstance(properties, Properties):
        plain = properties.plain
        return plain.get if plain is not None else _wire_lookup(properties)
    return _checks.mapping("properties", properties).get


def _nothing(_name: str) -> None:
    return None


def _wire_lookup(properties: Properties) -> Lookup:
    def get(name: str) -> Any:
        try:
            value = properties[name]
        except (KeyError, ProtocolError):
            return None
        if type(value) is bytes:  # CHAR or BINARY: only the property type distinguishes them.
            return PropertyValue(properties.types[name], value)
        return value

    return get


# ---- called by the generated code, always off the fast path


def _char(value: Any) -> int:
    code = value if isinstance(value, int) else value[0]
    return code - 256 if code > 127 else code


def _exact(value: Any) -> Any:
    """Return a property's value as exactly bool, int or str, or the kind of error of reading the value."""
    if value is None:
        return ErrorKind.NAME
    if isinstance(value, PropertyValue):
        match value.type:
            case PropertyType.BINARY:
                return ErrorKind.TYPE
            case PropertyType.CHAR:
                return _char(value.value)
            case _:
                return _exact(value.value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        # The broker reports a type error here, not the error called BINARY.
        return ErrorKind.TYPE
    raise InvalidProperty(
        f"a property's value must be bool, int, str, bytes or bmq.PropertyValue, not {_checks.shown(value)}"
    )


def _reader(
    read_failures: dict[ErrorKind, EvaluationFailure], otherwise: EvaluationFailure
) -> Callable[[Any], EvaluationFailure]:
    def failure(value: Any) -> EvaluationFailure:
        return read_failures[value] if type(value) is ErrorKind else otherwise

    return failure


def _readable(value: Any) -> bool:
    return type(_exact(value)) is not ErrorKind


def encoded(text: str) -> bytes:
    """The bytes of a string, for the comparison of strings."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _wrapped(value: int) -> int:
    return (value - INT64_MIN) % 2**64 + INT64_MIN


def _quotient(a: int, b: int) -> int:
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


_HELPERS: Final[dict[str, Any]] = {
    "__builtins__": {"type": type, "bool": bool, "int": int, "str": str, "KeyError": KeyError},
    "PLAIN": frozenset({bool, int, str}),
    "exact": _exact,
    "readable": _readable,
    "encoded": encoded,
    "wrapped": _wrapped,
    "quotient": _quotient,
    "remainder": _remainder,
    "MIN": INT64_MIN,
    "MAX": INT64_MAX,
}

_TYPE_NAMES: Final = {"bool": "a boolean", "int": "an integer", "str": "a string"}


def _is_operator(operator: object) -> bool:
    return type(operator) is str and operator in PRECEDENCE


def lowered(node: Node) -> Node:
    """Apply the broker's compile-time rewriting of comparisons with a literal ``true`` or ``false``."""
    match node:
        case Not(operand, offset):
            return Not(lowered(operand), offset)
        case Negate(operand, offset):
            return Negate(lowered(operand), offset)
        case Binary(operator, left, right, offset):
            # The operator becomes part of the generated source, so accept only operators of the language.
            if not _is_operator(operator):
                raise InvalidExpression(f"the language has no operator {operator!r}", offset=offset)
            left, right = lowered(left), lowered(right)
            if operator in ("==", "!="):
                literal, other = (left, right) if isinstance(left, Boolean) else (right, left)
                if isinstance(literal, Boolean):
                    keep = literal.value == (operator == "==")
                    if isinstance(other, Boolean):
                        return Boolean(other.value == keep, offset)
                    return other if keep else Not(other, offset)
            return Binary(operator, left, right, offset)
        case _:
            return node


class _Generator:
    """Writes the body of the function; each method returns the name and type of the computed variable."""

    #: Name of the function's argument.
    argument = "get"

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = 2
        self._constants: list[Any] = []
        self._variables = 0
        # Variables already holding a property's value, by property name and type.
        self._known: dict[tuple[str, str], str] = {}

    def function(self, node: Node) -> Any:
        result = self._boolean(node, "the whole expression")
        self._write(f"return {result}")
        return self._compiled()

    def _compiled(self) -> Any:
        names = ", ".join(f"k{i}" for i in range(len(self._constants)))
        head = [f"def make({names}):", f"  def evaluate({self.argument}):"]
        source = "\n".join([*head, *self._lines, "  return evaluate"])
        made: dict[str, Any] = {}
        # A common namespace: a separate namespace would be the largest part of a compiled expression.
        exec(compile(source, "<subscription expression>", "exec"), _HELPERS, made)
        return made["make"](*self._constants)

    # -- writing

    def _end(self, failure: str) -> str:
        """The statement to end the evaluation with an error."""
        return f"return {failure}"

    def _write(self, line: str) -> None:
        self._lines.append("  " * self._indent + line)

    def _constant(self, value: Any) -> str:
        self._constants.append(value)
        return f"k{len(self._constants) - 1}"

    def _variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def _failure(self, kind: ErrorKind, node: Node, reason: str) -> str:
        return self._constant(EvaluationFailure(kind, node.offset, reason))

    # -- values

    def _property(self, node: Property, wanted: str = "", reason: str = "") -> tuple[str, str]:
        """Read a property; if ``wanted`` is given, a different type ends the evaluation."""
        known = self._known.get((node.name, wanted))
        if known is not None:
            return known, wanted
        value = self._known[node.name, wanted] = self._variable()
        self._read(node, value, wanted, reason)
        return value, wanted

    def _read(self, node: Property, value: str, wanted: str, reason: str) -> None:
        name = self._constant(node.name)
        missing = EvaluationFailure(ErrorKind.NAME, node.offset, f"the message has no property `{node.name}`")
        unreadable = EvaluationFailure(
            ErrorKind.TYPE, node.offset, f"`{node.name}` is BINARY, which an expression cannot read"
        )
        failures = {ErrorKind.NAME: missing, ErrorKind.TYPE: unreadable}
        wrong = EvaluationFailure(ErrorKind.TYPE, node.offset, reason) if wanted else unreadable
        missing_name = self._constant(missing)
        fail = self._constant(_reader(failures, wrong))
        test = f"type({value}) is not {wanted}" if wanted else f"type({value}) not in PLAIN"
        self._write(f"try: {value} = get({name})")
        self._write(f"except KeyError: {self._end(missing_name)}")
        self._write(f"if {test}:")
        self._write(f"  if {value} is None: {self._end(missing_name)}")
        self._write(f"  {value} = exact({value})")
        self._write(f"  if {test}: {self._end(f'{fail}({value})')}")

    def _value(self, node: Node) -> tuple[str, str]:
        """Evaluate to (variable, type); the type is "" if dependent on the message."""
        match node:
            case Property():
                return self._property(node)
            case Integer(value):
                return self._constant(value), "int"
            case String(value):
                return self._constant(value), "str"
            case Boolean(value):
                return self._constant(value), "bool"
            case Negate():
                return self._negate(node)
            case Binary("+" | "-" | "*" | "/" | "%"):
                return self._arithmetic(node)
            case Binary("==" | "!=" | "<" | "<=" | ">" | ">="):
                return self._comparison(node), "bool"
            case _:
                return self._boolean(node, ""), "bool"

    def _typed(self, node: Node, wanted: str, reason: str) -> str:
        """Evaluate to a value of one type, or end with a type error."""
        if isinstance(node, Property):
            return self._property(node, wanted, f"{reason}, and `{node.name}` has another type")[0]
        value, kind = self._value(node)
        self._require(value, kind, wanted, node, reason)
        return value

    def _require(self, value: str, kind: str, wanted: str, node: Node, reason: str) -> None:
        if kind == wanted:
            return
        if kind:
            reason = f"{reason}, and the operand is {_TYPE_NAMES[kind]}"
        failure = self._failure(ErrorKind.TYPE, node, reason)
        # Always true for a known type; as a test, the condition keeps the following code reachable.
        self._write(f"if type({value}) is not {wanted}: {self._end(failure)}")

    # -- booleans

    def _boolean(self, node: Node, where: str) -> str:
        match node:
            case Exists(name):
                return self._exists(name)
            case Not(operand):
                inner = self._boolean(operand, "the operand of `!`")
                result = self._variable()
                self._write(f"{result} = not {inner}")
                return result
            case Binary("&&" | "||" as operator, left, right):
                where = f"each side of `{operator}`"
                result = self._variable()
                self._write(f"{result} = {self._boolean(left, where)}")
                self._write(f"if {result}:" if operator == "&&" else f"if not {result}:")
                known = dict(self._known)
                self._indent += 1
                self._write(f"{result} = {self._boolean(right, where)}")
                self._indent -= 1
                # The right side may not have been evaluated, leaving variables unset.
                self._known = known
                return result
            case _:
                return self._typed(node, "bool", f"{where} must be a boolean")

    def _exists(self, name: str) -> str:
        key, value, result = self._constant(name), self._variable(), self._variable()
        self._write(f"try: {value} = get({key})")
        self._write(f"except KeyError: {result} = False")
        self._write(f"else: {result} = type({value}) in PLAIN or readable({value})")
        return result

    # -- integers and strings

    def _integers(self, node: Binary) -> tuple[str, str]:
        reason = f"`{node.operator}` needs two integers"
        if isinstance(node.right, Integer):
            return self._typed(node.left, "int", reason), self._value(node.right)[0]
        # Read both sides before checking types: an absent name on the right is the reported error.
        a, a_kind = self._value(node.left)
        b, b_kind = self._value(node.right)
        self._require(a, a_kind, "int", node.left, reason)
        self._require(b, b_kind, "int", node.right, reason)
        return a, b

    def _negate(self, node: Negate) -> tuple[str, str]:
        value = self._typed(node.operand, "int", "the operand of unary `-` must be an integer")
        result = self._variable()
        self._write(f"{result} = -{value}")
        self._wrap(result)
        return result, "int"

    def _arithmetic(self, node: Binary) -> tuple[str, str]:
        a, b = self._integers(node)
        result = self._variable()
        if node.operator in ("/", "%"):
            zero = self._failure(ErrorKind.ARITHMETIC, node, f"`{node.operator}` by zero")
            large = self._failure(ErrorKind.ARITHMETIC, node, f"{INT64_MIN} {node.operator} -1 overflows")
            self._write(f"if {b} == 0: {self._end(zero)}")
            self._write(f"if {b} == -1 and {a} == MIN: {self._end(large)}")
            function = "quotient" if node.operator == "/" else "remainder"
            self._write(f"{result} = {function}({a}, {b})")
        else:
            self._write(f"{result} = {a} {node.operator} {b}")
            self._wrap(result)
        return result, "int"

    def _wrap(self, value: str) -> None:
        self._write(f"if not MIN <= {value} <= MAX: {value} = wrapped({value})")

    def _comparison(self, node: Binary) -> str:
        operator, left, right = node.operator, node.left, node.right
        result = self._variable()
        for literal, other in ((right, left), (left, right)):
            if not isinstance(literal, Integer | String):
                continue
            kind = "int" if isinstance(literal, Integer) else "str"
            reason = f"`{operator}` compares with {_TYPE_NAMES[kind]} here"
            value = self._typed(other, kind, reason)
            a, b = value, self._value(literal)[0]
            # ASCII sorts the same by characters and by bytes, regardless of the second operand.
            if isinstance(literal, String) and not literal.value.isascii():
                a, b = f"encoded({value})", self._constant(encoded(literal.value))
            if literal is left:
                a, b = b, a
            self._write(f"{result} = {a} {operator} {b}")
            return result
        (a, a_kind), (b, b_kind) = self._value(left), self._value(right)
        failure = self._failure(
            ErrorKind.TYPE, node, f"`{operator}` compares only two integers or two strings"
        )
        self._write(f"if type({a}) is int and type({b}) is int: {result} = {a} {operator} {b}")
        if not a_kind and not b_kind:
            self._write(f"elif type({a}) is str and type({b}) is str:")
            self._write(f"  {result} = encoded({a}) {operator} encoded({b})")
        self._write(f"else: {self._end(failure)}")
        return result


def compile_tree(node: Node) -> Evaluator:
    """Compile a tree within the broker's limits to a function.

    Raises:
        InvalidExpression: a tree built by hand has an unknown operator.
    """
    return cast("Evaluator", _Generator().function(lowered(node)))


class _OfValues(_Generator):
    """Writes a function of decoded values: an error is no match, and no type is checked twice."""

    argument = "values"

    def _end(self, failure: str) -> str:
        return "return False"

    def _read(self, node: Property, value: str, wanted: str, reason: str) -> None:
        self._write(f"try: {value} = values[{self._constant(node.name)}]")
        self._write("except KeyError: return False")
        if wanted:
            self._write(f"if type({value}) is not {wanted}: return False")

    def _exists(self, name: str) -> str:
        result = self._variable()
        self._write(f"{result} = {self._constant(name)} in values")
        return result


def compile_matcher(node: Node) -> Matcher:
    """Compile a tree to a function of a message's decoded values.

    Args:
        node: the tree, as for :func:`compile_tree`.
    """
    return cast("Matcher", _OfValues().function(lowered(node)))
