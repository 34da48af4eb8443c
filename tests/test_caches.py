# SPDX-License-Identifier: Apache-2.0
"""The caches of the process: each has a bound, and is registered."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import bmq
from bmq._caches import CACHES, Cache, clear_caches

PACKAGE = Path(bmq.__file__).parent
#: Module-level dicts that functions add to, and that are no caches.
REGISTERS = {
    "_caches.py: CACHES": "the register itself; one entry for each cache",
    "_logging.py: _waiting": "lines for the next turn of an event loop; at most _MOST_WAITING",
    "broker/_admin.py: _COMMANDS": "the commands of the class below",
    "client/session.py: _closing": "tasks that close sessions left open, until the deadline of the closing",
    "codecs/_codec.py: _made_by": "the codecs that the program registers",
    "errors.py: _problems": "the types of problems that the program defines",
}

#: The start of a dict that is assigned at module level, in any of its forms.
_MODULE_LEVEL = re.compile(r"^[\w\])}].*=\s*\(?\s*\{", re.MULTILINE)


def _growing() -> list[str]:
    """Return the module-level dicts, other than caches, to which a function adds entries."""
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not _MODULE_LEVEL.search(text):
            continue  # parsing takes most of the time
        tree = ast.parse(text)
        dicts = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        grown = {
            node.value.id
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name)
        }
        found += [f"{path.relative_to(PACKAGE).as_posix()}: {name}" for name in sorted(dicts & grown)]
    return found


def test_process_wide_state_is_in_bounded_caches() -> None:
    assert _growing() == list(REGISTERS)


def test_full_cache_is_emptied_except_for_permanent_entries() -> None:
    cache: Cache[int, str] = Cache("cache of a test", 3, {0: "zero"})
    try:
        assert [cache.keep(number, str(number)) for number in (1, 2)] == ["1", "2"]
        assert len(cache) == 3
        cache.keep(3, "3")
        assert dict(cache) == {0: "zero", 3: "3"}
        clear_caches()
        assert dict(cache) == {0: "zero"}
    finally:
        del CACHES["cache of a test"]
