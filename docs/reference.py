# SPDX-License-Identifier: Apache-2.0
"""The API reference, written from the docstrings of the public names.

The docstrings follow Google's sections (Args, Returns, Raises, Attributes); what is rendered is what
``help()`` shows, with the sections as lists.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

__all__ = ["describe"]

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")
_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields")
_ITEM = re.compile(r"^    (\*{0,2}[\w., ]+?): (.*)$")


def describe(names: Iterable[str], source: Any, *, level: int = 2) -> str:
    """Return the reference of public names as Markdown.

    Args:
        names: what to describe, in order.
        source: the module that has them.
        level: the level of the headings.
    """
    return "\n\n".join(
        "\n\n".join(_describe(name, getattr(source, name), level) or _constant(name, source, level))
        for name in names
    )


def _constant(name: str, source: ModuleType, level: int) -> list[str]:
    """A constant or the name of a type: what it is, and what is said with its definition."""
    heading = f"{'#' * level} {name}"
    found = _constants(source.__name__).get(name)
    if found is None:
        return [heading, render(inspect.getdoc(type(getattr(source, name))) or "")]
    value, doc = found
    return [heading, f"`{value}`", render(doc)]


@cache
def _constants(package: str) -> dict[str, tuple[str, str]]:
    """Everything annotated at the top of a package's modules: its value, and what is said of it."""
    found = {}
    for module in [m for n, m in sys.modules.items() if n.startswith(package)]:
        text = inspect.getsource(module)
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.AnnAssign) and node.value:
                said = []
                while lines[node.lineno - 2 - len(said)].startswith("#:"):
                    said.insert(0, lines[node.lineno - 2 - len(said)].removeprefix("#:").strip())
                after = re.match(r'"""(.*?)"""', "\n".join(lines[node.end_lineno or 0 :]), re.DOTALL)
                doc = after[1] if after else " ".join(said)
                found[ast.unparse(node.target)] = ast.unparse(node.value), doc
    return found


def _describe(name: str, thing: Any, level: int) -> list[str]:
    return list(_described(name, thing, level))


def _described(name: str, thing: Any, level: int) -> Iterator[str]:
    heading = "#" * level
    if inspect.isclass(thing):
        yield f"{heading} {name}"
        if not _is_plain(thing):
            yield _signature(name, thing)
        yield render(inspect.getdoc(thing) or "")
        if issubclass(thing, enum.Enum):
            yield ", ".join(f"`{member.name}`" for member in thing)
            return
        for attribute, member in _members(thing):
            yield from _member(name, attribute, member, level + 1)
    elif inspect.isroutine(thing):
        yield f"{heading} {name}"
        yield _signature(name, thing)
        yield render(inspect.getdoc(thing) or "")


def _is_plain(cls: type) -> bool:
    """Whether there is nothing to know about making one: enumerations, errors, what other calls return."""
    made_elsewhere = (inspect.getdoc(cls) or "").find("Made by") >= 0
    return issubclass(cls, enum.Enum | BaseException) or made_elsewhere


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        documented = isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)
        if documented and inspect.getdoc(member):
            yield name, member


def _member(owner: str, name: str, member: Any, level: int) -> Iterator[str]:
    heading = "#" * level
    if isinstance(member, property):
        yield f"{heading} {owner}.{name}"
    else:
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        yield f"{heading} {owner}.{name}()"
        yield _signature(name, function)
    yield render(inspect.getdoc(member) or "")


def _signature(name: str, thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    if dataclasses.is_dataclass(thing):
        parameters = [p.replace(annotation=str(p.annotation)) for p in parameters]
    if inspect.isclass(thing):  # what making one returns is not what __init__ does
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    text = str(signature.replace(parameters=[_plain(p) for p in parameters])).replace("'", "")
    prefix = "await " if inspect.iscoroutinefunction(thing) else ""
    if len(text) > 90:
        inner = "".join(f"    {part},\n" for part in _parts(parameters))
        returns = text.rpartition(")")[2]
        text = f"(\n{inner}){returns}"
    return f"```python\n{prefix}{name}{text}\n```"


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    if callable(parameter.default) and parameter.default is not inspect.Parameter.empty:
        return parameter.replace(default=_Default(getattr(parameter.default, "__name__", "...")))
    return parameter


def _parts(parameters: list[inspect.Parameter]) -> Iterator[str]:
    keyword_only = False
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        yield str(_plain(parameter)).replace("'", "")


class _Default:
    def __init__(self, text: str) -> None:
        self._text = "..." if text == "<lambda>" else text

    def __repr__(self) -> str:
        return self._text


def render(doc: str) -> str:
    """Return a docstring as Markdown."""
    text = _ROLE.sub(r"`\1`", doc).replace("``", "`")
    blocks: list[str] = []
    lines = iter(text.split("\n"))
    section = ""
    for line in lines:
        if line.rstrip(":") in _SECTIONS and line.endswith(":"):
            section = line
            blocks.append(f"\n**{line[:-1]}**\n")
        elif section and line.startswith("    ") and line.strip():
            item = _ITEM.match(line)
            if item:
                blocks.append(f"- `{item[1]}`: {item[2]}")
            elif line.startswith("        ") and blocks[-1].startswith("- "):
                blocks[-1] += " " + line.strip()
            else:
                blocks.append(line.strip())
        elif line.endswith("::") and line.strip() != "::":
            blocks.append(line[:-1])
        else:
            section = section if not line else ""
            blocks.append(line)
    return "\n".join(blocks).strip()
