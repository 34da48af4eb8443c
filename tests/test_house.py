"""The house stands as CONTRIBUTING draws it: imports point one way, importing is quiet."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bmq

PACKAGE = Path(bmq.__file__).parent
MODULES = {path.relative_to(PACKAGE.parent): path for path in sorted(PACKAGE.rglob("*.py"))}

#: What each room may import from the others. Every room may use what is in FREE.
MAY_IMPORT = {
    "errors": set[str](),
    "_local": set[str](),
    "_version": set[str](),
    "events": {"protocol"},
    "wire": set[str](),
    "subscriptions": {"wire"},
    "protocol": {"wire"},
    "client": {"wire", "protocol", "subscriptions"},
    "broker": {"wire", "protocol", "subscriptions"},
    "admin": {"wire", "protocol", "subscriptions", "client"},
    "console": {"", "admin"},
    "workers": {"wire", "protocol", "subscriptions", "client"},
    "testing": {"wire", "protocol", "subscriptions", "client", "broker"},
    "spark": {"wire", "protocol", "subscriptions", "client", "broker"},
    # "" is `import bmq`: the command stands on the public names.
    "cli": {"", "wire", "protocol", "subscriptions", "client", "broker", "testing", "admin", "console"},
}
FREE = {"errors", "_local", "_version"}

#: Rooms in which time and bytes are parameters, and what would bring a clock, a loop or a socket in.
PURE = {"wire", "protocol", "subscriptions"}
IMPURE = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "select",
    "selectors",
    "signal",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "uvloop",
}

#: Only some users need these, so `import bmq` must not pay for them.
NOT_ON_IMPORT = {
    "aiohttp",
    "anyio",
    "blazingmq",
    "click",
    "construct",
    "hypothesis",
    "lark",
    "numpy",
    "opentelemetry",
    "pandas",
    "py4j",
    "pyarrow",
    "pyspark",
    "pytest",
    "rich",
    "trio",
    "typer",
    "uvloop",
}


def room(module: Path) -> str:
    """bmq/wire/put.py is in the room wire; bmq/errors.py is a room of its own."""
    return module.parts[1].removesuffix(".py")


def imports(module: Path, source: str) -> Iterator[tuple[int, str]]:
    """Every module that an import statement names, wherever in the file it stands, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            package = list(module.parent.parts)
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, [base, node.module]))
            if name == "bmq":
                for alias in node.names:
                    yield node.lineno, f"bmq.{alias.name}"
            else:
                yield node.lineno, name


def violations(module: Path, source: str) -> list[str]:
    """What a module imports that its room may not."""
    here = room(module)
    found = []
    for line, name in imports(module, source):
        top, _, rest = name.partition(".")
        if top == "bmq":
            there = rest.partition(".")[0]
            if there != here and there not in FREE | MAY_IMPORT[here]:
                found.append(f"{module}:{line}: {here} must not import {name}")
        elif here in PURE and top in IMPURE:
            found.append(f"{module}:{line}: {here} is without I/O and clock, and must not import {name}")
    return found


HOUSED = [module for module in MODULES if room(module) not in {"__init__", "__main__"}]


@pytest.mark.parametrize("module", HOUSED, ids=str)
def test_imports_point_one_way(module: Path) -> None:
    assert violations(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("bmq/wire/x.py", "import bmq.protocol"),
        ("bmq/wire/x.py", "import asyncio"),
        ("bmq/wire/x.py", "import bmq"),
        ("bmq/wire/x.py", "from bmq import Session"),
        ("bmq/protocol/x.py", "def f():\n    from time import monotonic"),
        ("bmq/protocol/x.py", "from ..client import session"),
        ("bmq/subscriptions/x.py", "from bmq import protocol"),
        ("bmq/client/x.py", "from bmq.broker import Broker"),
        ("bmq/errors.py", "from . import wire"),
    ],
)
def test_the_scan_sees_what_is_not_allowed(module: str, source: str) -> None:
    assert len(violations(Path(module), source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "bmq/wire/x.py",
            "from bmq.errors import ProtocolError\nfrom bmq.wire import layout\nfrom . import uri",
        ),
        (
            "bmq/client/x.py",
            "import asyncio\nfrom bmq import errors\nfrom ..protocol.client.tables import Transition",
        ),
    ],
)
def test_the_scan_lets_pass_what_is(module: str, source: str) -> None:
    assert violations(Path(module), source) == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_modules_say_what_they_are(module: Path) -> None:
    source = MODULES[module].read_text(encoding="utf-8")
    if not module.stem.startswith("_") or module.stem == "__init__":
        assert ast.get_docstring(ast.parse(source)), "every public module starts with a docstring"


@pytest.mark.parametrize("folder", sorted({module.parent for module in MODULES}), ids=str)
def test_every_folder_is_a_package(folder: Path) -> None:
    assert folder / "__init__.py" in MODULES


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_every_public_name_exists_once_and_is_documented() -> None:
    assert len(bmq.__all__) == len(set(bmq.__all__))
    for name in bmq.__all__:
        value = getattr(bmq, name)
        if callable(value):
            assert value.__doc__, f"bmq.{name} needs a docstring"


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


def test_every_name_is_found_where_type_checkers_are_told_it_is() -> None:
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
    with pytest.raises(AttributeError, match="'bmq' has no attribute 'conect'"):
        _ = bmq.conect  # type: ignore[attr-defined]


def test_an_unrelated_run_of_pytest_does_not_pay_for_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n"
        "    names = [name for name in sys.modules if name.split('.')[0] in ('bmq', 'construct', 'orjson')]\n"
        "    assert sorted(names) == ['bmq', 'bmq._version', 'bmq.testing', 'bmq.testing.plugin']\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
