# SPDX-License-Identifier: Apache-2.0
"""Tab completion offers exactly the names of the API reference."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import enum
import importlib
import inspect
import re
import textwrap
from types import ModuleType
from typing import Any

import pytest

import bmq
from tests.programs.test_docs import generate as generate
from tests.surface import current
from tests.sweeps import sweep

NAMES = (
    "arrow", "asyncapi", "broker", "codecs", "console", "conventions", "delays", "groups", "health", "inbox",
    "interceptors", "otel", "prometheus", "taskiq", "spark", "stats", "subscriptions", "testing", "typed",
    "types", "workers",
)  # fmt: skip
PARTS = [bmq, *(importlib.import_module(f"bmq.{name}") for name in NAMES)]
CLASSES = {
    name: value
    for part in PARTS
    for name in part.__all__
    if inspect.isclass(value := getattr(part, name)) and not issubclass(value, enum.Enum | BaseException)
}


@pytest.fixture(scope="module")
def reference(generate: ModuleType) -> Any:
    return generate.api()


def described(reference: Any, cls: type) -> set[str]:
    """The members of a class that its page has: with a heading, in the list of attributes, or inherited."""
    page = reference.page_of(cls)
    members = set(re.findall(rf"^## {cls.__name__}\.(\w+)(?:\(\))?$", page, re.MULTILINE))
    attributes = re.search(r"\*\*Attributes\*\*\n\n(.*?)(?=\n\n|\Z)", page, re.DOTALL)
    if attributes:
        members |= set(re.findall(r"^- `(\w+)`", attributes[1], re.MULTILINE))
    inherited = page.partition("## Inherited members")[2]
    return members | set(re.findall(r"^\| \[?`(\w+)`", inherited, re.MULTILINE))


def offered(thing: Any) -> set[str]:
    """Return the names of a class, or of an object with its attributes, without those of foreign bases."""
    cls = thing if inspect.isclass(thing) else type(thing)
    inherited = {
        name for base in cls.__mro__[1:] if not base.__module__.startswith("bmq") for name in dir(base)
    }
    return current(thing) - inherited


@sweep("name", sorted(CLASSES))
def test_the_page_of_a_class_has_all_members(reference: Any, name: str) -> None:
    assert offered(CLASSES[name]) <= described(reference, CLASSES[name])


@sweep("part", PARTS)
def test_every_class_has_a_page_and_every_other_name_is_on_that_of_its_module(
    reference: Any, part: ModuleType
) -> None:
    module = reference.pages()[f"api/{part.__name__.removeprefix('bmq.')}.md"]
    for name in part.__all__:
        value = getattr(part, name)
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if inspect.isclass(value):
            assert reference.page_of(value).startswith(f"# {name}\n")
        elif part is bmq or getattr(bmq, name, None) is not value:
            assert f"[`{name}`](" in module


@sweep("name", [each for each in bmq.__all__ if not inspect.ismodule(getattr(bmq, each))])
def test_every_name_of_the_package_has_an_example(reference: Any, name: str) -> None:
    if name == "__version__":
        return
    value = getattr(bmq, name)
    page = inspect.getdoc(value) or ""
    if inspect.isclass(value) or inspect.isroutine(value):
        page = reference.page_of(value)
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL) or [
        textwrap.dedent(page.partition("::\n")[2])
    ]
    examples += [each.source for each in doctest.DocTestParser().get_examples(page)]
    assert any(examples)
    for example in examples:
        compile(example, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for used in re.findall(r"\bbmq\.(?!test\.)(\w+)", example):
            assert hasattr(bmq, used), f"{name}: bmq.{used}"


def test_every_link_of_a_signature_leads_to_a_page(reference: Any) -> None:
    pages = reference.pages()
    assert len({path.lower() for path in pages}) == len(pages), "no two pages differ in case only"
    for path, page in pages.items():
        for target, anchor in re.findall(r'<a href="([\w.]+)\.html(?:#(\w+))?">', page):
            assert f"api/{target}.md" in pages, f"{path}: {target}"
            headings = re.findall(r"^##+ (.+)$", pages[f"api/{target}.md"], re.MULTILINE)
            assert not anchor or anchor in map(str.lower, headings), f"{path}: {target}#{anchor}"


@sweep("cls", [bmq.connect, bmq.App, bmq.blocking.connect])
def test_options_are_spelled_out(reference: Any, cls: type) -> None:
    page = reference.page_of(cls)
    signature = page.partition("</pre>")[0]
    listed = page.partition("**Options**")[2]
    for field in dataclasses.fields(bmq.SessionOptions):
        assert f"    {field.name}: " in signature
        assert f"\n- `{field.name}` " in listed
    assert "Unpack" not in signature
