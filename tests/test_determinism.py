# SPDX-License-Identifier: Apache-2.0
"""No behaviour depends on hash seeds or addresses of objects."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bmq

PACKAGE = Path(bmq.__file__).parent

#: Functions whose result does not depend on the order of a set.
_ORDERLESS = {"sorted", "len", "min", "max", "any", "all", "set", "frozenset", "bool", "isinstance"}
#: Functions whose result depends on the order.
_ORDERED = {"list", "tuple", "iter", "next", "enumerate", "zip", "map", "filter", "reversed", "deque", "dict"}
_ORDERED_METHODS = {"join", "extend", "gather", "fromkeys"}
_SET_METHODS = {"difference", "union", "intersection", "symmetric_difference"}
#: A set of small integers has the same order in every process.
_SET = re.compile(r"(asyncio\.)?(set|frozenset|Set|AbstractSet|(weakref\.)?WeakSet)\b(?!\[int\])")
_SET_INSIDE = re.compile(r"\b(dict|list|Mapping|defaultdict)\[.*\b(set|frozenset)\[(?!int\])")
#: The owner of the set, and why the order has no effect.
_HARMLESS = {
    "cli/dead.py: missing": "a list of the same name",
    "cli/exporter.py: self._holders, which has sets in it": "asked for members only",
    "cli/exporter.py: self._left_out, which has sets in it": "counted",
    "codecs/fields.py: kinds": "it has one member",
    "otel/_interceptor.py: deliveries": "it has one member",
    "spark/rows.py: _BYTES": "it becomes part of a set",
    "spark/stream_reader.py: self._held, which has sets in it": "confirmations have no order",
    "subscriptions/_filters.py: tags": "the tags of a call; a set of the same name is elsewhere",
    "spark/stream_reader.py: self._known, which has sets in it": "asked for members only",
    "spark/connection.py: asyncio.all_tasks()": "sorted in the next line",
}


def _is_set(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Subscript(value=ast.Name(id=name))):
            return name in {"set", "frozenset", "WeakSet"}
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _SET_METHODS or name in {"all_tasks", "WeakSet"}
        case ast.BinOp(op=ast.Sub() | ast.BitAnd() | ast.BitOr() | ast.BitXor()):
            return _is_set(node.left, names) or _is_set(node.right, names)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in names
        case _:
            return False


def _targets(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Tuple(elts=elements):
            for each in elements:
                yield from _targets(each)
        case _:
            pass


def _sets_of(tree: ast.AST) -> set[str]:
    """The names of sets in a module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=target, annotation=annotation) if _SET.match(ast.unparse(annotation)):
                names.update(_targets(target))
            case ast.arg(arg=name, annotation=annotation) if annotation and _SET.match(
                ast.unparse(annotation)
            ):
                names.add(name)
            case ast.Assign(targets=targets, value=value) if _is_set(value, set()):
                names.update(name for target in targets for name in _targets(target))
            case ast.Assign(targets=targets, value=ast.Await(value=ast.Call(func=called))) if (
                ast.unparse(called) == "asyncio.wait"
            ):
                names.update(name for target in targets for name in _targets(target))
            case _:
                pass
    return names - {"_"}


def _shown(tree: ast.AST) -> Iterator[ast.expr]:
    """Return all objects serialized member by member, where the order may have an effect."""
    orderless: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ORDERLESS:
            for argument in node.args:
                orderless.update(id(each) for each in getattr(argument, "generators", ()))
        if isinstance(node, ast.SetComp):
            orderless.update(map(id, node.generators))
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=taken) | ast.AsyncFor(iter=taken) | ast.Starred(value=taken):
                yield taken
            case ast.comprehension(iter=taken) if id(node) not in orderless:
                yield taken
            case ast.Call(func=ast.Attribute(value=taken, attr="pop" | "popitem"), args=[]):
                yield taken
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in _ORDERED:
                yield from arguments
            case ast.Call(func=ast.Attribute(attr=name), args=arguments) if name in _ORDERED_METHODS:
                yield from arguments
            case _:
                pass


def _found(path: Path, source: str) -> dict[str, int]:
    """Return names and lines of the sets whose order has an effect."""
    tree = ast.parse(source)
    names = _sets_of(tree)
    found = {f"{path}: {ast.unparse(each)}": each.lineno for each in _shown(tree) if _is_set(each, names)}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _SET_INSIDE.search(ast.unparse(node.annotation)):
            found[f"{path}: {ast.unparse(node.target)}, which has sets in it"] = node.lineno
    return found


def test_no_iteration_follows_the_order_of_a_set() -> None:
    found: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found |= _found(path.relative_to(PACKAGE), path.read_text(encoding="utf-8"))
    stale = _HARMLESS.keys() - found
    assert not stale, f"not found any more: {sorted(stale)}"
    shown = {what: line for what, line in found.items() if what not in _HARMLESS}
    assert not shown, "a dict keeps the order of insertion; sorted() makes one"


def test_an_iteration_over_a_set_is_found() -> None:
    for source in (
        "tasks: set[Task] = set()\nfor task in tasks: task.cancel()",
        "class A:\n def __init__(self): self.all: set[B] = set()\n def f(self): return [b for b in self.all]",
        "def f(names: frozenset[str]): return ', '.join(names)",
        "async def f(all):\n done, _ = await asyncio.wait(all)\n for each in done: print(each)",
        "known: weakref.WeakSet[A] = weakref.WeakSet()\nfor each in list(known): pass",
        "touched: dict[A, set[B]] = {}",
        "for each in asyncio.all_tasks(): each.cancel()",
        "x = {1, 2} - y\nx.pop()",
    ):
        assert _found(Path("a.py"), source), source
    for source in (
        "tasks: set[int] = set()\nfor task in tasks: print(task)",
        "names: set[str] = set()\nfor name in sorted(names): print(name)",
        "names: set[str] = set()\nok = all(name for name in names) and 'a' in names",
        "names: dict[str, None] = {}\nfor name in names: print(name)",
    ):
        assert not _found(Path("a.py"), source), source


def test_cores_produce_the_same_output_under_every_hash_seed() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.determinism"],
            cwd=PACKAGE.parent,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (0, 1, 77)
    ]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(set(said)) == 1
