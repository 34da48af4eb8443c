# SPDX-License-Identifier: Apache-2.0
"""The library's lines in the log at WARNING or above, from the source code.

The page on troubleshooting has a cause and a remedy for each text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["logged"]

_LEVELS = {"warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "CRITICAL"}
_LOGGER = re.compile(r"(^|[._])(log(ger)?|limit(ed)?|lines|skipped|refusals|throttle)$|(getLogger|Log)\(")


def logged(package: Path) -> dict[str, str]:
    """Return the level of each text, for the modules of a package."""
    found: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assigned = dict(_assigned(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (level := _level(node)) and (text := _text(node, assigned)):
                found.setdefault(text, level)
    return found


def _text(call: ast.Call, assigned: dict[tuple[str, int], str]) -> str:
    """The text of a call: the longest constant, or else the text behind a name."""
    constants = [text for each in call.args if "%" in (text := _constant(each)) or " " in text]
    best = max(constants, key=len, default="")
    if best not in ("", "%s"):
        return best
    for name in [each.id for each in call.args if isinstance(each, ast.Name)]:
        above = [
            line for (known, line), text in assigned.items() if known == name and line < call.lineno and text
        ]
        if above:
            return assigned[name, max(above)]
    return best


def _level(call: ast.Call) -> str:
    """The level of a call with WARNING or above; "" for all other calls."""
    if ast.unparse(call.func) == "warnings.warn":
        return ast.unparse(call.args[1]) if len(call.args) > 1 else "UserWarning"
    if isinstance(call.func, ast.Name) and call.func.id == "log":
        name, logger = "log", "log"
    elif isinstance(call.func, ast.Attribute):
        name, logger = call.func.attr, ast.unparse(call.func.value)
    else:
        return ""
    if not _LOGGER.search(logger) or logger.startswith("asyncio."):
        return ""
    if name == "log" and call.args:
        named = re.findall(r"logging\.(\w+)", ast.unparse(call.args[0]))
        grave = [each for each in named if each not in ("INFO", "DEBUG")]
        return "WARNING" if not named else grave[0] if grave else ""
    return _LEVELS.get(name, "")


def _assigned(tree: ast.AST) -> Iterator[tuple[tuple[str, int], str]]:
    """The texts with a name, by name and line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield (node.targets[0].id, node.lineno), _constant(node.value)


def _constant(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "%s" for part in node.values)
    return ""
