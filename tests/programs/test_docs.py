# SPDX-License-Identifier: Apache-2.0
"""The documentation matches the code: generated pages are complete, and code blocks are valid code."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bmq
import bmq.errors
from bmq.protocol.machine import Machine
from bmq.wire import layout
from conformance import all_cases
from tests import pages
from tests.commands import ROOT, completed
from tests.sweeps import sweep

DOCS = ROOT / "docs"
PROSE = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "benchmarks" / "RESULTS.md",
    *sorted(DOCS.rglob("*.md")),
]
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The module MkDocs loads as its hook, loaded the way MkDocs does: its folder first on the path."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        patch.setitem(sys.modules, "generate", module)
        spec.loader.exec_module(module)
    return module


def rows(markdown: str) -> list[list[str]]:
    """Return the cells of every table row in a piece of Markdown."""
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    unlinked = [re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", line) for line in lines]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in unlinked]


def section(markdown: str, heading: str) -> str:
    return markdown.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


@sweep("name", layout.LAYOUTS)
def test_every_field_of_a_layout_has_its_row(generate: ModuleType, name: str) -> None:
    declared = [member.name for member in layout.LAYOUTS[name].subcon.subcons]
    shown = [row[4] for row in rows(section("\n" + generate.layouts(), name))[2:]]
    assert shown == declared


def test_every_statement_of_the_documents_has_a_row_and_every_row_a_test(generate: ModuleType) -> None:
    page = tomllib.loads(generate.STATEMENTS.read_text(encoding="utf-8"))
    listed = [row for section in page["section"] for row in section["statement"]]
    numbers = {row["number"] for row in listed}
    assert len(numbers) == len(listed)
    shown = {row["number"] for row in listed if row["holds"] != "open"}
    by_cases = {row["number"]: set(row.get("cases", ())) for row in listed}
    assert set(generate.marked_tests()) | {number for number, cases in by_cases.items() if cases} == shown
    assert set().union(*by_cases.values()) <= {case.number for case in all_cases()}
    documents: dict[str, list[str]] = page["documents"]
    assert [int(number) for number in documents] == list(range(1, 155))
    assert [number for number, found in documents.items() if not found or not set(found) <= numbers] == []
    # Two rows are of the broker, not of the documents: what does not compile, and attempts that are left.
    assert numbers - {each for found in documents.values() for each in found} == {"2.12", "4.16"}


def test_every_transition_of_a_machine_has_its_row(generate: ModuleType) -> None:
    run = [machine.TRANSITIONS for machine in Machine.__subclasses__()]
    tables = generate.transition_tables()
    assert {id(table) for table in tables.values()} == {id(table) for table in run}
    for name, table in tables.items():
        shown = [tuple(row) for row in rows(section("\n" + generate.machines(), name)) if len(row) == 4]
        expected = []
        for (state, event), step in table.items():
            action = getattr(step.action, "__name__", "").removeprefix("_")
            expected.append((state.name, event.name, action, step.next_state.name))
        assert sorted(shown[2:]) == sorted(expected), name


def test_every_error_is_listed_and_whether_it_is_retryable(generate: ModuleType) -> None:
    said = {row[0]: row[2] for row in rows(generate.errors())[2:]}
    errors = vars(bmq.errors).items()
    assert said.keys() == {
        name for name, value in errors if isinstance(value, type) and issubclass(value, bmq.errors.Error)
    }
    assert [said[name] for name in ("BufferFull", "InvalidURI", "PostError")] == ["yes", "no", "by status"]


def test_every_error_and_every_line_of_the_log_has_a_cause_and_a_remedy(generate: ModuleType) -> None:
    """A new or reworded line needs its entry in docs/troubles.toml; an entry without a line is removed."""
    troubles = generate.troubles()
    classes = {
        name
        for name in bmq.errors.__all__
        if isinstance(value := getattr(bmq.errors, name), type) and issubclass(value, Exception)
    }
    assert set(troubles["error"]) == classes
    page = generate.fill((DOCS / "operate" / "troubleshooting.md").read_text(encoding="utf-8"))
    for name, found in troubles["error"].items():
        for text in (f"[`{name}`](../api/{name}.md)", found["cause"], found["remedy"]):
            assert text in page
    explained = [found["text"] for found in troubles["message"]]
    assert sorted(explained) == sorted(sys.modules["messages"].logged(ROOT / "bmq"))
    assert all(found["cause"] and found["remedy"] for found in troubles["message"])


def python_blocks() -> list[Any]:
    blocks = []
    for page in PROSE:
        # The section on notebooks has cells of one notebook, which tests/blocking/test_examples.py executes.
        text = page.read_text(encoding="utf-8").partition("\n## Notebooks {#notebooks}\n")[0]
        for match in CODE_BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            blocks.append(pytest.param(match[1], id=f"{page.relative_to(ROOT)}:{line}"))
    return blocks


@sweep("code", python_blocks())
def test_code_blocks_are_python_and_use_names_that_exist(code: str) -> None:
    tree = ast.parse(code)
    compile(code, "block", "exec")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "bmq":
            assert hasattr(bmq, node.attr), f"bmq.{node.attr} does not exist"


def test_every_code_block_is_a_complete_program(tmp_path: Path) -> None:
    """Except names that Spark's shell and notebooks define, and tables of the pages on Spark."""
    for number, block in enumerate(python_blocks()):
        (tmp_path / f"block_{number}.py").write_text(f"# {block.id}\n{block.values[0]}")
    ruff = (sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache")
    known = "builtins = ['spark', 'df', 'stream']"
    completed(*ruff, "--select", "F821,F704,PLE1142", "--config", known, tmp_path)


@sweep("page", sorted(page.name for page in ROOT.glob("*.md")))
def test_links_between_files_have_targets(page: str) -> None:
    """The site's build follows links among pages; this test covers files beside them."""
    for target in re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        assert (ROOT / path).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            anchors |= set(re.findall(r"\{#([\w-]+)\}$", "\n".join(headings), re.MULTILINE))
            assert anchor in anchors, target


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/explain/concepts.md", "docs/explain/guarantees.md"]
)
def test_absolute_words_stand_beside_a_link_or_a_test_that_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?^---$|^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    proof = re.compile(r"(?<!!)\[[^\]]*\]\(|`tests/")
    for block in re.split(r"\n[ ]*\n|\n(?= *(?:[-|]|\d+\.) )", text):
        if re.search(r"\b(never|always|no\s+message|nothing|exactly)\b", block, re.IGNORECASE):
            assert proof.search(block), block
    assert [file for file in re.findall(r"`(tests/[\w/.]+)`", text) if not (ROOT / file).is_file()] == []


def test_every_promise_of_the_guarantees_names_a_test() -> None:
    page = (DOCS / "explain" / "guarantees.md").read_text(encoding="utf-8")
    promises = re.findall(r"^\d\. .*?(?=^\d\. |^## )", page, re.MULTILINE | re.DOTALL)
    table = section(page, "How the client keeps them {#reliability}")
    promises += re.findall(r"^\|.*\|$", table, re.MULTILINE)[2:]
    assert len(promises) > 8
    assert [each for each in promises if "`tests/" not in each] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/start/quickstart.md"])
def test_make_targets_named_in_prose_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    console = re.findall(r"^\$ make ([^#\n]*)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    named = {word for line in console for word in re.sub(r'\w+=("[^"]*"|\S+)', "", line).split()}
    assert named <= targets


#: Columns of a listing that fit beside the navigation.
COLUMNS = 76
#: A listing, and the reason before a wider one.
LISTING = re.compile(
    r"(?P<wide><!-- wide: [^\n]+ -->\n+)?^(?P<indent> *)```[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


def navigated() -> list[str]:
    """The pages of the navigation that are files."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages_of_nav = [f"docs/{name}" for name in re.findall(r": ([\w/-]+\.md)$", nav, re.MULTILINE)]
    return [name for name in pages_of_nav if (ROOT / name).exists()]


@sweep("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", *navigated()])
def test_listings_have_at_most_76_columns(page: str) -> None:
    text = pages.include((ROOT / page).read_text(encoding="utf-8"))
    found = [
        line
        for listing in LISTING.finditer(text)
        if not listing["wide"]
        for line in listing["text"].splitlines()
        if len(line.removeprefix(listing["indent"])) > COLUMNS
    ]
    assert found == []


#: Elements with a resource that a browser fetches with a page.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\ssrc=\W?([^\s>]*)"
    r"|<link\b(?=[^>]*\srel=\W?(?:stylesheet|preconnect|icon|preload))[^>]*\shref=\W?([^\s>]*)"
)


@pytest.mark.timeout(300)
def test_the_site_builds_strictly_and_loads_no_external_resource(tmp_path: Path) -> None:
    completed(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path)
    built = sorted(tmp_path.rglob("*.html"))
    assert {"index.html", "wire.html", "states.html"} <= {page.name for page in built}
    for page in built:
        fetched = FETCHED.findall(page.read_text(encoding="utf-8"))
        assert fetched
        assert [urls for urls in fetched if "//" in "".join(urls)] == []
    assert "<!-- generated" not in (tmp_path / "protocol" / "wire.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["producer.py", "consumer.py"])
def test_an_example_without_a_broker_ends_in_one_line(name: str) -> None:
    run = completed(sys.executable, ROOT / "examples" / name, "--broker", "tcp://127.0.0.1:1", status=1)
    (line,) = run.stderr.splitlines()
    assert line.startswith("ConnectionFailed: could not connect to tcp://127.0.0.1:1")


def test_the_limits_of_the_embedded_broker_are_those_documented() -> None:
    text = (ROOT / "docs" / "guides" / "embedded-broker.md").read_text(encoding="utf-8")
    documented = {
        name: int(number.replace(",", ""))
        for name, number in re.findall(r"^\| `(\w+)` \| ([\d,]+)", text.partition("## Limits")[2], re.M)
    }
    assert len(documented) > 5
    assert {each.name: each.default for each in fields(bmq.broker.Bounds)} == documented


def test_external_addresses_are_complete() -> None:
    """Addresses are checked without the network: they must be well formed, and not an example's."""
    for page in PROSE:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith("http"):
                assert re.fullmatch(r"https?://[\w.-]+\.[a-z]{2,}(/\S*)?", target), f"{page.name}: {target}"
                assert "example." not in target
