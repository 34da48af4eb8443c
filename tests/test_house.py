# SPDX-License-Identifier: Apache-2.0
"""The structure follows CONTRIBUTING: imports point in one direction, and importing is silent."""

from __future__ import annotations

import ast
import graphlib
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

import bmq
from bmq._caches import CACHES, Cache, clear_caches
from tests import spdx
from tests.commands import completed

PACKAGE = Path(bmq.__file__).parent

#: Only some users need these, so `import bmq` must not pay for them.
NOT_ON_IMPORT = {
    "aiohttp", "anyio", "asyncpg", "blazingmq", "click", "hypothesis", "lark", "numpy", "opentelemetry",
    "pandas", "py4j", "pyarrow", "pyspark", "pytest", "rich", "sqlalchemy", "taskiq", "trio", "typer",
    "uvloop",
}  # fmt: skip


def test_imports_point_one_way() -> None:
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    completed(sys.executable, "-c", command)


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


#: Modules that configure the log of a program, or record the log of a simulation, and the one that logs.
LOGGING = {"_logging.py", "cli/run.py", "testing/_simulation.py"}
#: The uses of the standard library's loggers, and of the functions that log.
LOGS = re.compile(
    r"\blogging\.(getLogger|debug|info|warning|error|exception|critical|log|LoggerAdapter)\b"
    r"|from logging import"
)


def test_log_lines_pass_one_place() -> None:
    """There, no handler or filter of an application can affect the caller."""
    logging = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if LOGS.search(path.read_text(encoding="utf-8"))
    }
    # The templates of ``bmq new`` are files of other projects.
    assert {name for name in logging if "projects/" not in name} <= LOGGING


#: Clocks and random numbers; a generator with a seed of its own is no source of randomness.
CLOCKS = re.compile(
    r"time\.(time|monotonic|perf_counter|process_time)(_ns)?|time\.(thread_time|clock_gettime|localtime|gmtime)"
    r"|time\.(strftime|sleep)|random\.(?!Random$)\w+|secrets\.\w+|uuid\.uuid[14]"
    r"|os\.(urandom|getrandom|getpid)|socket\.(gethostname|getfqdn)"
    r"|(datetime\.)?(datetime|date)\.(now|utcnow|today)|(random\.)?Random\(\)"
)
#: What reads clocks and random numbers of its own, and why.
OWN_CLOCKS = {
    "_world.py": "the one source",
    "cli/": "programs for people, which no simulation runs",
    "console/server.py": "a token that protects a page",
    "testing/_simulation.py": "replaces the clocks of simulated programs",
    "spark/": "runs in Spark's own processes and threads",
}


def _clocks(source: str) -> Iterator[str]:
    """The clocks and random numbers that a module asks for."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    yield from (each.name for each in imported if each.asname and each.name in ("time", "random", "secrets"))
    modules = {each.name for each in imported} | {"datetime", "date"}
    for node in nodes:
        asked: list[str] = []
        if isinstance(node, ast.ImportFrom):
            asked = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute | ast.Call):
            text = ast.unparse(node)
            asked = [text] if text == "Random()" or text.partition(".")[0] in modules else []
        yield from (each for each in asked if CLOCKS.fullmatch(each))


def test_no_module_but_one_reads_a_clock_or_draws_a_random_number() -> None:
    excused: set[str] = set()
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for what in _clocks(path.read_text(encoding="utf-8")):
            excuse = next((each for each in OWN_CLOCKS if name.startswith(each)), None)
            if excuse is None:
                found.append(f"{name}: {what}")
            else:
                excused.add(excuse)
    assert not found, "bmq._world has the same"
    assert excused == OWN_CLOCKS.keys(), "an exception that is not needed any more"


#: Module-level dicts that functions add to, and that are no caches.
REGISTERS = {
    "_caches.py: CACHES": "the register itself; one entry for each cache",
    "_logging.py: _waiting": "lines for the next turn of an event loop; at most _MOST_WAITING",
    "broker/_admin.py: _COMMANDS": "the commands of the class below",
    "client/session.py: _closing": "tasks that close sessions left open, until the deadline of the closing",
    "codecs/_codec.py: _made_by": "the codecs that the program registers",
    "errors.py: _problems": "the types of problems that the program defines",
}
#: The start of a dict that is assigned at module level.
DICT = re.compile(r"^(\w+)(?::.*)? = \(?\{", re.MULTILINE)


def test_process_wide_state_is_in_bounded_caches() -> None:
    growing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        grown = [name for name in DICT.findall(text) if re.search(rf"^ +{name}\[.+\] = ", text, re.MULTILINE)]
        growing += [f"{path.relative_to(PACKAGE).as_posix()}: {name}" for name in grown]
    assert growing == list(REGISTERS)


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
    seen = json.loads(completed(sys.executable, "-W", "error", "-c", QUIET_IMPORT).stdout)
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
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    completed(sys.executable, "-m", "pytest", *options, cwd=tmp_path)


def test_every_file_names_its_license() -> None:
    found = spdx.files()
    assert {path.suffix for path in found} >= {".py", ".toml", ".yml", ".css", ".js"}
    missing = [str(path.relative_to(spdx.ROOT)) for path in found if not spdx.says(path)]
    assert missing == [], "python tests/spdx.py --add"


def test_the_page_on_how_to_write_a_test_names_tests_and_folders_that_exist() -> None:
    tests = PACKAGE.parent / "tests"
    page = (tests / "README.md").read_text(encoding="utf-8")
    models = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(models) > 8
    for path, name in models:
        assert f"def {name}(" in (tests / path).read_text(encoding="utf-8"), f"{path}::{name}"
    for row in page.partition("| layer")[2].partition("\n\n")[0].splitlines()[2:]:
        for path in re.findall(r"`([\w/]+(?:\.py)?)`", row.split("|")[2]):
            assert (tests / path).exists(), path
