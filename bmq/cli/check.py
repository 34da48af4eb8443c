# SPDX-License-Identifier: Apache-2.0
"""``bmq check``."""

from __future__ import annotations

import warnings

import bmq
from bmq.cli.consoles import out, styled, table
from bmq.cli.messages import parse_properties
from bmq.cli.output import BadInput, ExitStatus, emit
from bmq.cli.records import Form, Records
from bmq.cli.verb import OUTPUT, argument, option, verb
from bmq.subscriptions import MAX_LENGTH, MAX_OPERATORS, point_at
from bmq.wire.properties import PropertyInput

#: Fields of the records; ``code`` and ``offset`` belong to the error of an expression that is not legal.
FIELDS = (
    *("expression", "legal", "operators", "length", "properties", "warnings", "matches"),
    *("code", "offset", "error"),
)


@verb("check", broker=False)
def check(
    expressions: list[str] = argument("EXPRESSION...", "Subscription expressions; '' matches every message."),
    properties: list[str] | None = option(
        "--property -p NAME[:TYPE]=VALUE", "A property of a message to test the expressions with."
    ),
    empty: bool = option("--empty", "Test the expressions with a message without properties."),
    priorities: list[int] | None = option(
        "--priority -P", "Priority of each expression, in order; 0 by default."
    ),
    full: list[int] | None = option("--full N", "Treat the consumer of the N-th expression as full."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Check subscription expressions without a broker: syntax, cost, and matches.

    A broker accepts an expression with a syntax error, reports nothing, and then delivers every message. A
    legal expression with a probable mistake, such as an expression that never matches, causes a warning. A
    text beyond the broker's limits is shown as the subscriptions into which the client splits the text.
    Several expressions are the subscriptions of one queue: the output shows the broker's decision about the
    message. The exit status is 1 if an expression is not legal, or if no expression matches.

    [bold]Examples[/]

    $ bmq check 'CustomerId >= 1000 && exists(OrderType)'
    $ bmq check 'x == 1' -p x=1
    $ bmq check 'x > 0' 'x == 1' --priority 5 --priority 10 -p x=1 --full 2
    """
    message = parse_properties(properties)
    tries = bool(message) or empty
    if priorities and len(priorities) > len(expressions):
        raise BadInput("more priorities than expressions were given")
    if full and not all(1 <= place <= len(expressions) for place in full):
        raise BadInput(f"--full needs the number of an expression, 1 to {len(expressions)}")
    writer = Records.of(output, FIELDS)
    ranks = [*(priorities or ()), *[0] * len(expressions)]
    routes: list[bmq.subscriptions.Route] = []
    failed = False
    for place, text in enumerate(expressions, 1):
        try:
            with warnings.catch_warnings(action="ignore"):
                parts = bmq.subscriptions.subscriptions_for(text or None)
        except bmq.InvalidExpression as error:
            failed = True
            _show_error(text, error, writer)
            continue
        if len(parts) > 1 and writer is None:
            emit(f"{text}\n  beyond the limits of a broker: the client sends {len(parts)} subscriptions")
        rank, is_full = ranks[place - 1], place in (full or ())
        for number, part in enumerate(parts, 1):
            _show(part, message if tries else None, writer)
            name = f"#{place}.{number}" if len(parts) > 1 else f"#{place}"
            routes.append(bmq.subscriptions.Route(part, rank, name, full=is_full))
    if failed or not tries:
        return ExitStatus.FAILED if failed else ExitStatus.OK
    decision = bmq.subscriptions.RoutingTable(routes).route(message)
    if writer is None and len(routes) > 1:
        emit("")
        show_decision(decision)
    return ExitStatus.OK if decision.candidates or decision.waits else ExitStatus.FAILED


def _show(
    expression: bmq.Expression | None, message: dict[str, PropertyInput] | None, writer: Records | None
) -> None:
    evaluation = None
    if message is not None:
        evaluation = expression.evaluate(message) if expression else bmq.subscriptions.Evaluation(True)
    if writer is not None:
        doubts = expression.doubts if expression else ()
        writer.write(
            {
                "expression": expression.text if expression else "",
                "legal": True,
                "operators": expression.operators if expression else 0,
                "length": len(expression.text) if expression else 0,
                "properties": expression.properties if expression else (),
                "warnings": [{"offset": each.offset, "message": each.message} for each in doubts],
                "matches": None if evaluation is None else bool(evaluation),
                "error": evaluation.reason if evaluation is not None else "",
            }
        )
        return
    if expression is None:
        emit("(everything)\n  legal: without an expression, every message matches")
    else:
        emit(expression.text)
        emit(
            f"  legal: {expression.operators} of {MAX_OPERATORS} operators, {len(expression.text)} of "
            f"{MAX_LENGTH} characters; reads {', '.join(expression.properties)}"
        )
        for doubt in expression.doubts:
            emit(f"  warning: {doubt.message}")
            emit(*(f"  {line}" for line in point_at(expression.text, doubt.offset).splitlines()))
    if evaluation is not None and evaluation.error is not None:
        emit(f"  does not match: {evaluation.error.name} error, {evaluation.reason}")
    elif evaluation is not None:
        emit("  matches" if evaluation else "  does not match")


def _show_error(text: str, error: bmq.InvalidExpression, writer: Records | None) -> None:
    if writer is not None:
        place = {"code": error.code, "offset": error.offset}
        writer.write({"expression": text, "legal": False, **place, "error": str(error).partition("\n")[0]})
    else:
        emit(text, *(f"  {line}" for line in str(error).splitlines()))


def show_decision(decision: bmq.subscriptions.Decision) -> None:
    """Print the subscriptions in the order of evaluation, with the results, and the decision."""
    rows: list[tuple[object, ...]] = []
    for step in decision.steps:
        text = "(everything)" if step.expression is None else step.expression.text
        who = ", ".join(route.name + (" (full)" if route.full else "") for route in step.active)
        rows.append((step.priority, text, who, styled(step.verdict, "bold" if step.evaluation else "")))
        never = f"never: {step.priority} is higher"
        rows += [(route.priority, text, route.name, never) for route in step.dormant]
    console = out()
    if rows:
        console.print(table(["priority>", "expression", "subscription", "verdict"], rows))
    console.print(styled(str(decision).splitlines()[-1]))
