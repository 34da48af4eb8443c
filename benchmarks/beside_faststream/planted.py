# SPDX-License-Identifier: Apache-2.0
"""Ten mistakes in the same service, and which of them mypy and pyright find.

    python planted.py

Each mistake is a replacement in the correct program: the service, and code after it that uses every part. The
checkers run in strict mode, and report nothing for the correct program. "registration" is an import of the
program: the framework itself refuses the mistake before the first message.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Service:
    """A service, and code after it that uses every part correctly."""

    file: str
    use: str


SERVICES = {
    "bmq": Service(
        "orders_bmq.py",
        """

async def use(session: bmq.Session, queue: bmq.Queue) -> int:
    await queue.typed(Order).post(Order(number=1, article="tea", quantity=1))
    await queue.post(b"", properties={"CustomerId": 7})
    answer = await queue.typed(Ask).request(Ask(article="tea"), reply=Price, timeout=1)
    return answer.cents + app.state.handled


@app.consumer(PREFIX + "other", concurrency=4)
async def other(order: Order) -> None: ...


second = bmq.App(middlewares=[counted])
""",
    ),
    "FastStream": Service(
        "orders_faststream.py",
        """

publish_order = broker.publisher("orders")


async def use(context: ContextRepo) -> int:
    await publish_order.publish(Order(number=1, article="tea", quantity=1))
    await broker.publish(b"", "orders", headers={"CustomerId": 7})
    answer = await broker.request(Ask(article="tea"), "prices", timeout=1)
    price = Price.model_validate(await answer.decode())
    return price.cents + Counted.handled


@router.subscriber("other", no_reply=True)
async def other(order: Order, handled: Annotated[int, Context("handled")]) -> None: ...


second = RabbitBroker(middlewares=[Counted])
""",
    ),
}

#: Each mistake: what is wrong, and for each framework the correct text and the wrong text.
MISTAKES: list[tuple[str, tuple[str, str], tuple[str, str]]] = [
    (
        "a field of the value is misspelt in the handler",
        ("* order.quantity", "* order.quantityy"),
        ("* order.quantity", "* order.quantityy"),
    ),
    (
        "the handler returns another type than it declares",
        ("    return made\n", "    return made.total\n"),
        ("    return made\n", "    return made.total\n"),
    ),
    (
        "a value of another type is posted to the queue of orders",
        ('.post(Order(number=1, article="tea", quantity=1))', ".post(Price(cents=1))"),
        ('.publish(Order(number=1, article="tea", quantity=1))', ".publish(Price(cents=1))"),
    ),
    (
        "a property has an illegal value",
        ('properties={"CustomerId": 7}', 'properties={"CustomerId": [7]}'),
        ('headers={"CustomerId": 7}', 'headers={"CustomerId": object()}'),
    ),
    (
        "a reply is used as another type",
        ("answer.cents +", "answer.total +"),
        (
            "    price = Price.model_validate(await answer.decode())\n    return price.cents",
            "    return answer.cents",
        ),
    ),
    (
        "an option of a handler has a wrong type",
        ("concurrency=4", 'concurrency="4"'),
        ("no_reply=True", 'no_reply="yes"'),
    ),
    (
        "an option of a handler is misspelt",
        ("concurrency=4", "concurrencyy=4"),
        ("no_reply=True", "no_replyy=True"),
    ),
    (
        "shared state is misspelt",
        ("+ app.state.handled", "+ app.state.handledd"),
        ('Context("handled")', 'Context("handledd")'),
    ),
    (
        "a middleware has a wrong shape",
        ("second = bmq.App(middlewares=[counted])", "second = bmq.App(middlewares=[len])"),
        ("second = RabbitBroker(middlewares=[Counted])", "second = RabbitBroker(middlewares=[len])"),
    ),
    (
        "a dependency is declared with another type than its function returns",
        (
            "(ask: Ask, prices: Annotated[Prices, bmq.Depends(get_prices)])",
            "(ask: Ask, prices: Annotated[Prices, bmq.Depends(get_ledger)])",
        ),
        (
            "(ask: Ask, prices: Annotated[Prices, Depends(prices)])",
            "(ask: Ask, prices: Annotated[Prices, Depends(ledger)])",
        ),
    ),
]


def mypy(folder: Path) -> Counter[str]:
    """The number of errors in each file."""
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", *sorted(
            each.name for each in folder.glob("*.py")
        )],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not run.stderr, run.stderr
    return Counter(line.split(":")[0] for line in run.stdout.splitlines() if ": error:" in line)


def pyright(folder: Path) -> Counter[str]:
    """The number of errors in each file."""
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(run.stdout)
    return Counter(
        Path(each["file"]).name for each in report["generalDiagnostics"] if each["severity"] == "error"
    )


def registration(folder: Path) -> Counter[str]:
    """1 for each file that cannot be imported."""
    failed: Counter[str] = Counter()
    for each in folder.glob("*.py"):
        run = subprocess.run([sys.executable, each.name], cwd=folder, capture_output=True, check=False)
        failed[each.name] = int(run.returncode != 0)
    return failed


def results() -> dict[str, dict[str, list[bool]]]:
    """For each framework and checker, whether each mistake is found."""
    found: dict[str, dict[str, list[bool]]] = {}
    for at, (framework, service) in enumerate(SERVICES.items()):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            code = (HERE / service.file).read_text(encoding="utf-8")
            if framework == "FastStream":
                code = code.replace("BaseMiddleware,", "BaseMiddleware, Context, ContextRepo,")
            code += service.use
            (folder / "right.py").write_text(code)
            for number, mistake in enumerate(MISTAKES):
                right, wrong = (mistake[1], mistake[2])[at]
                assert right in code, (framework, right)
                (folder / f"wrong{number}.py").write_text(code.replace(right, wrong))
            found[framework] = {}
            for checker in (mypy, pyright, registration):
                errors = checker(folder)
                found[framework][checker.__name__] = [
                    errors[f"wrong{number}.py"] > errors["right.py"] for number in range(len(MISTAKES))
                ]
                assert not errors["right.py"], (framework, checker.__name__)
    return found


def main() -> None:
    """Print the results as a table."""
    found = results()
    columns = [(framework, checker) for framework, each in found.items() for checker in each]
    print("\n| mistake | " + " | ".join(f"{framework}, {checker}" for framework, checker in columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for number, mistake in enumerate(MISTAKES):
        cells = ["found" if found[framework][checker][number] else "-" for framework, checker in columns]
        print(f"| {mistake[0]} | " + " | ".join(cells) + " |")
    sums = [str(sum(found[framework][checker])) for framework, checker in columns]
    print("| **found, of ten** | " + " | ".join(sums) + " |")


if __name__ == "__main__":
    main()
