# SPDX-License-Identifier: Apache-2.0
"""The structure follows CONTRIBUTING: imports point in one direction, and importing is silent."""

from __future__ import annotations

import ast
import graphlib
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import bmq

PACKAGE = Path(bmq.__file__).parent
CONFIG = PACKAGE.parent / "pyproject.toml"

#: Only some users need these, so `import bmq` must not pay for them.
NOT_ON_IMPORT = {
    "aiohttp", "anyio", "asyncpg", "blazingmq", "click", "hypothesis", "lark", "numpy", "opentelemetry",
    "pandas", "py4j", "pyarrow", "pyspark", "pytest", "rich", "sqlalchemy", "taskiq", "trio", "typer",
    "uvloop",
}  # fmt: skip


def lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", command], cwd=config.parent, capture_output=True, text=True, check=False
    )


def test_imports_point_one_way() -> None:
    run = lint_imports(CONFIG)
    assert run.returncode == 0, run.stdout


def test_forbidden_imports_are_detected(tmp_path: Path) -> None:
    """Every contract can be broken: an import of each kind, planted in a copy."""
    planted = {
        "wire/uri.py": "import bmq.protocol",
        "protocol/framing.py": "def f(): from ..client import session",
        "subscriptions/_filters.py": "def f(): from time import monotonic",
        "workers/_app.py": "import bmq.broker",
        "workers/_left.py": "from bmq.client import connection",
        "client/queue.py": "from bmq import Session",
        "client/options.py": "from bmq.client import queue",
        "blocking/_receive.py": "from bmq.blocking import _queue",
        "inbox/_inbox.py": "from bmq.client import session",
        "cli/verbs.py": "from conformance import catalogue",
        "newcomer.py": "",
    }
    shutil.copytree(PACKAGE, tmp_path / "bmq", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CONFIG, tmp_path)
    for module, line in planted.items():
        with (tmp_path / "bmq" / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    run = lint_imports(tmp_path / CONFIG.name)
    assert run.returncode == 1
    assert "KEPT" not in run.stdout
    for importer, imported in [
        ("bmq.wire.uri", "bmq.protocol"),
        ("bmq.protocol.framing", "bmq.client.session"),
        ("bmq.subscriptions._filters", "time"),
        ("bmq.workers._app", "bmq.broker"),
        ("bmq.workers._left", "bmq.client.connection"),
        ("bmq.client.queue", "bmq"),
        ("bmq.client.options", "bmq.client.queue"),
        ("bmq.blocking._receive", "bmq.blocking._queue"),
        ("bmq.inbox._inbox", "bmq.client.session"),
        ("bmq.cli.verbs", "conformance.catalogue"),
    ]:
        assert re.search(rf"\b{importer} ->\s+{imported} \(l", run.stdout), (importer, run.stdout)
    assert "newcomer" in run.stdout, "every module has its place among the layers"


def test_no_import_cycle_exists() -> None:
    """At run time, that is: an annotation may point both ways."""
    graph = grimp.build_graph("bmq", exclude_type_checking_imports=True, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imported).prepare()  # names the circle, if there is one


def test_underscore_modules_are_private_to_their_package() -> None:
    def room(module: str) -> str:
        return module.split(".")[1]

    graph = grimp.build_graph("bmq", cache_dir=None)
    private = {module for module in graph.modules if re.match(r"bmq\.\w+\.(.*\.)?_", module)}
    assert private
    for module in private:
        others = graph.find_modules_that_directly_import(module) - {"bmq"}
        assert {importer for importer in others if room(importer) != room(module)} == set(), module


#: Modules that configure the log of a program, or record the log of a simulation.
CONFIGURES = {"cli/run.py", "testing/_simulation.py"}


def _logs(tree: ast.Module) -> list[str]:
    """The uses of the standard library's loggers, and of the functions that log."""
    methods = {
        "getLogger", "debug", "info", "warning", "error", "exception", "critical", "log", "LoggerAdapter"
    }  # fmt: skip
    return [
        f"{node.lineno}: logging.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "logging"
        and node.attr in methods
    ] + [
        f"{node.lineno}: from logging import {alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "logging"
        for alias in node.names
        if alias.name in methods
    ]


def test_log_lines_pass_one_place() -> None:
    """There, no handler or filter of an application can affect the caller."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        # Parsing takes most of the time. The templates of ``bmq new`` are files of other projects.
        if "logging" in (text := path.read_text(encoding="utf-8")) and "projects/" not in name:
            found[name] = _logs(ast.parse(text))
    assert {name for name, lines in found.items() if lines} <= {"_logging.py", *CONFIGURES}, found


#: Runs in a fresh interpreter: every door to a thread, a loop, a policy or a socket is nailed shut first.
QUIET_IMPORT = """
import asyncio, json, socket, sys, threading

def refuse(what):
    def refused(*args, **kwargs):
        raise AssertionError("import bmq must not " + what)
    return refused

threading.Thread.start = refuse("start a thread")
for name in ("new_event_loop", "get_event_loop", "set_event_loop", "set_event_loop_policy"):
    setattr(asyncio, name, refuse(name))
    setattr(asyncio.events, name, refuse(name))
socket.socket.__init__ = refuse("open a socket")

import bmq
first = [name for name in sys.modules if name.partition(".")[0] == "bmq"]
bmq.connect

json.dump({"first": first, "modules": sorted(sys.modules), "threads": threading.active_count()}, sys.stdout)
"""


def test_importing_is_quiet_and_light() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET_IMPORT],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["threads"] == 1
    assert {name.partition(".")[0] for name in seen["modules"]} & NOT_ON_IMPORT == set()
    assert "bmq.client.session" in seen["modules"]
    assert sorted(seen["first"]) == ["bmq", "bmq._version"], "nothing before it is used"


def test_every_name_is_in_the_module_declared_to_type_checkers() -> None:
    """Names are imported when they are first used; type checkers are told by imports of their own."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "importlib")
        for alias in node.names
    }
    for name in {*bmq.__all__, *told}:
        home = importlib.import_module(f"bmq.{name}" if told[name] == "bmq" else str(told[name]))
        assert getattr(bmq, name) is (home if told[name] == "bmq" else getattr(home, name)), name
    assert {name for name, home in told.items() if home != "bmq"} <= set(bmq.__all__)
    assert set(told) <= set(dir(bmq))
    with pytest.raises(AttributeError, match="'bmq' has no attribute 'no_such_name'"):
        _ = bmq.no_such_name  # type: ignore[attr-defined]


def test_the_plugin_does_not_slow_an_unrelated_run_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n"
        "    names = [name for name in sys.modules if name.split('.')[0] in ('bmq', 'construct', 'orjson')]\n"
        "    assert sorted(names) == ['bmq', 'bmq._version', 'bmq.testing', 'bmq.testing.plugin']\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
