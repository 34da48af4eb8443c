# SPDX-License-Identifier: Apache-2.0
"""Mutation tests: plants random small bugs, one at a time, and runs the tests of the affected lines.

`python -P tests/mutants.py ...`, with the group `mutants` installed; CONTRIBUTING.md explains the output. The
bugs come from mutmut's operators and three more: an omitted statement, an inverted condition, a dropped
result. mutmut's own command skips decorated functions and code outside of functions: every property and
every state table. The working tree is not changed: the tests run in copies of the tree, in `.mutants`.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import difflib
import gc
import hashlib
import itertools
import json
import os
import py_compile
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import hypothesis  # noqa: F401  imported here to spare every child the import
import libcst as cst
import libcst.matchers as m
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".mutants"
COPIED = (
    *("bmq", "pyspark_bmq", "conformance", "tests", "docs", "examples", "docker"),
    *("pyproject.toml", "README.md"),
)

#: Tests by suite, without long tests and tests with a JVM or a cluster.
SUITES: dict[str, Sequence[str]] = {
    "wire": ["tests/wire"],
    "subscriptions": ["tests/subscriptions"],
    "protocol": ["tests/protocol"],
    "client": ["tests/client"],
    "codecs": ["tests/codecs"],
    "blocking": ["tests/blocking"],
    "gate": ["tests/gate"],
    "poison": ["tests/poison"],
    "performance": ["tests/performance"],
    "integration": ["tests/integration"],
    "workers": ["tests/workers"],
    "groups": ["tests/groups"],
    "delays": ["tests/integration/features/test_delays.py"],
    "broker": ["tests/broker"],
    "conformance": ["tests/conformance/test_suite.py"],
    "arrow": ["tests/arrow"],
    "spark": ["tests/spark"],
}
LEFT_OUT = {
    "test_chaos.py",
    "test_cluster.py",
    "test_local.py",
    "test_packaging.py",
    "official",
}

#: The files of each area, and the suites that should find the area's bugs: the area's own suite first.
AREAS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "wire": (["wire/**/*"], ["wire", "performance", "arrow", "client"]),
    "subscriptions": (["subscriptions/*"], ["subscriptions"]),
    "protocol": (["protocol/**/*"], ["protocol", "broker", "client", "performance", "arrow", "integration"]),
    "client": (
        ["client/*"],
        ["client", "integration", "subscriptions", "codecs", "blocking", "gate", "performance"],
    ),
    "groups": (["groups/*"], ["groups"]),
    "delays": (["delays/*"], ["delays"]),
    "workers": (["workers/*"], ["workers", "poison", "integration", "gate"]),
    "broker": (
        [f"broker/_{name}" for name in ("client", "delivery", "domain", "queue", "routing", "storage")],
        ["broker", "conformance", "integration"],
    ),
    # Without code for the communication with a JVM.
    "spark": (
        [f"spark/{name}" for name in ("guids", "log", "options", "partition", "rows", "schema")],
        ["spark", "arrow"],
    ),
}

#: Areas with bugs that the simulation alone should find, and the number of seeds for each bug.
SIMULATED = ("client", "protocol", "broker", "groups", "delays", "workers")
SIMULATED_SEEDS = 20
#: Limits of one world of one seed: CPU seconds, seconds, and bytes of memory of the process.
WORLD_CPU, WORLD_SECONDS, WORLD_MEMORY = 20, 300, 4 << 30

#: Files with I/O only: every test finds a bug in these files, or no test does.
WITHOUT = {"client/reporting"}


@dataclass(frozen=True)
class Mutant:
    """A bug: the replacement of a node."""

    path: str
    lines: range
    everywhere: bool
    """Whether importing the module executes the bug: any test may then find the bug."""
    place: str
    change: str
    node: cst.CSTNode = field(repr=False, compare=False)
    replacement: cst.CSTNode | cst.RemovalSentinel = field(repr=False, compare=False)
    module: cst.Module = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the bug, unchanged as long as the line is unchanged."""
        return hashlib.sha256(self.change.encode()).hexdigest()[:10]

    def source(self) -> str:
        changed = self.module.deep_replace(self.node, self.replacement)  # type: ignore[arg-type]
        assert isinstance(changed, cst.Module)
        return changed.code

    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.module.code.splitlines(), self.source().splitlines(), self.path, self.path, lineterm="", n=2
        )
        return "\n".join(lines)


#: Nodes without interesting bugs: types, imports, docstrings, lists of names, code for type checkers.
_NEVER = (
    m.Annotation()
    | m.Decorator()
    | m.Import()
    | m.ImportFrom()
    | m.If(test=m.Name("TYPE_CHECKING"))
    | m.FunctionDef(decorators=[m.ZeroOrMore(), m.Decorator(m.Name("overload")), m.ZeroOrMore()])
    | m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
    | m.SimpleStatementLine(
        body=[m.Assign(targets=[m.AssignTarget(m.Name("__all__") | m.Name("__slots__"))])]
    )
    | m.Assign(value=m.Call(m.Name("TypeVar")))
    | m.AnnAssign(annotation=m.Annotation(m.Name("TypeAlias")))
    | m.Assert()  # for type checkers and readers: never fails
    | m.ConcatenatedString()  # a text for people
)
_LEFT_OUT_STATEMENT = m.SimpleStatementLine(
    body=[m.OneOf(m.Expr(m.Call() | m.Await()), m.AugAssign(), m.Del(), m.Raise())]
) | m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Attribute() | m.Subscript())])])


def _own_operators(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if m.matches(node, _LEFT_OUT_STATEMENT):
        yield cst.SimpleStatementLine(body=[cst.Pass()])
    elif isinstance(node, (cst.If, cst.CompIf)):
        parenthesised = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), parenthesised))
    elif (
        isinstance(node, cst.Return) and node.value is not None and not m.matches(node.value, m.Name("None"))
    ):
        yield node.with_changes(value=cst.Name("None"))


def _prose(node: cst.CSTNode) -> list[str]:
    """Texts for people in a node: the presence of a text is tested, the wording is not."""
    strings = m.findall(node, m.SimpleString() | m.FormattedStringText())
    return [string.value for string in strings if " " in string.value]  # type: ignore[attr-defined]


def _mutations(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            yield from (new for new in operator(node) if _prose(new) == _prose(node))
    yield from _own_operators(node)


class _Planter(cst.CSTVisitor):
    """All possible bugs of a module."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: str, module: cst.Module) -> None:
        super().__init__()
        self.path = path
        self.module = module
        self.statements = _statements(module.code)
        self.mutants: list[Mutant] = []
        self._texts = module.code.splitlines()
        self._seen = Counter[str]()
        self._places: dict[int, str] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        if m.matches(node, _NEVER):
            return False
        position = self.get_metadata(PositionProvider, node, None)
        if position is not None and position.start.line in self.statements:
            for new in _mutations(node):
                self._plant(position.start.line, node, new)
        return True

    def _plant(self, line: int, node: cst.CSTNode, new: cst.CSTNode) -> None:
        if line not in self._places:
            text = self._texts[line - 1].strip()
            self._seen[text] += 1
            self._places[line] = f"{self.path} {self._seen[text]} {text}"
        lines, inside = self.statements[line]
        code = self.module.code_for_node
        change = f"{self._places[line]}\n{code(node)} -> {code(new)}"
        self._seen[change] += 1
        if self._seen[change] > 1:
            change += f" {self._seen[change]}"
        self.mutants.append(
            Mutant(self.path, lines, not inside, self._places[line], change, node, new, self.module)
        )


def _statements(source: str) -> dict[int, tuple[range, bool]]:
    """Return, by line, the lines of the statement or its head, and whether a function executes the line."""
    found: dict[int, tuple[range, bool]] = {}

    def walk(statements: Iterable[ast.AST], inside: bool) -> None:
        for statement in statements:
            if isinstance(statement, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                body = getattr(statement, "body", None)
                start = (
                    statement.pattern.lineno if isinstance(statement, ast.match_case) else statement.lineno
                )
                end = body[0].lineno - 1 if body else statement.end_lineno
                lines = range(start, max(start, end) + 1)
                found.update((line, (lines, inside)) for line in lines if line not in found)
                function = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
                walk(ast.iter_child_nodes(statement), inside or function)

    walk(ast.parse(source).body, False)
    return found


def sources(area: str) -> list[Path]:
    """The modules of an area."""
    modules: set[Path] = set()
    for pattern in AREAS[area][0]:
        matching = {*ROOT.glob(f"bmq/{pattern}.py")}
        if not matching:
            sys.exit(f"{area}: there is no bmq/{pattern}.py any more")
        modules |= matching
    return sorted(modules - {ROOT / f"bmq/{name}.py" for name in WITHOUT})


def plant(area: str) -> list[Mutant]:
    """Every bug of an area."""
    mutants: list[Mutant] = []
    for path in sources(area):
        module = MetadataWrapper(cst.parse_module(path.read_text(encoding="utf-8")), unsafe_skip_copy=True)
        planter = _Planter(str(path.relative_to(ROOT)), module.module)
        module.visit(planter)
        mutants += planter.mutants
    return mutants


def draw(mutants: Sequence[Mutant], count: int, seed: str) -> list[Mutant]:
    """Draw random lines, with a bug for each line; a draw stays equal while unrelated lines change."""

    def chance(what: str) -> bytes:
        return hashlib.sha256(f"{seed} {what}".encode()).digest()

    by_place: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_place[mutant.place].append(mutant)
    places = sorted(by_place, key=chance)[:count]
    return [min(by_place[place], key=lambda mutant: chance(mutant.name)) for place in places]


def shares(count: int) -> dict[str, int]:
    """Divide `count` bugs among the areas, by lines of code."""
    lines = {area: sum(len(_statements(path.read_text())) for path in sources(area)) for area in AREAS}
    return {area: round(count * number / sum(lines.values())) for area, number in lines.items()}


class Recorder:
    """A pytest plugin that records the duration and the executed lines of each test."""

    def __init__(self, coverage_: coverage.Coverage) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self._coverage = coverage_

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


class Selection:
    """A pytest plugin: runs only the given tests, in this order, and records the test that found the bug.

    Tests newer than the recording come first. Each test has little more time than a run without a bug took.
    """

    def __init__(self, tests: Sequence[str], known: Record, found: Path) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._known = known
        self._found = found

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seconds, failed = self._known.seconds, self._known.failed
        newer = {item.nodeid for item in items} - seconds.keys() - failed
        chosen = [item for item in items if item.nodeid in self._order or item.nodeid in newer]
        for item in chosen:
            item.add_marker(pytest.mark.timeout(15 + 5 * seconds.get(item.nodeid, 1)), append=False)
        items[:] = sorted(chosen, key=lambda item: self._order.get(item.nodeid, -1))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._found.with_name("running.txt").write_text(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._found.write_text(report.nodeid)


def in_a_child(copy: Path, arguments: Sequence[str], *plugins: object, cpu: int) -> int:
    """Fork; the child runs pytest in a copy of the tree, for at most the given seconds of CPU time."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
        os.chdir(copy)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ |= {"PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "mutants"}
        sys.path.insert(0, str(copy))
        common = [
            "-x",
            "-q",
            "--no-header",
            "-pno:cacheprovider",
            "-Wignore::pytest.PytestAssertRewriteWarning",
        ]
        status = pytest.main([*common, *arguments], list(plugins))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status))


def copy_tree(name: str) -> Path:
    """A copy of the files needed by the tests."""
    copy = HOME / name
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for entry in COPIED:
        if (ROOT / entry).is_dir():
            shutil.copytree(ROOT / entry, copy / entry, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / entry, copy / entry)
    return copy


@dataclass
class Record:
    """The durations and lines of a suite without a bug."""

    suite: str
    seconds: dict[str, float]
    executed: dict[str, dict[int, list[str]]]
    """Tests by file and line."""
    failed: set[str]
    """Tests that fail without any bug, and cannot find a bug."""

    def tests(self, mutant: Mutant) -> list[str]:
        """Tests that can find a bug, the fastest first, for at most a minute."""
        lines = self.executed.get(mutant.path, {})
        tests = {test for line in mutant.lines for test in lines.get(line, [])}
        if mutant.everywhere or "" in tests:  # importing executes the bug
            tests = set(self.seconds)
        tests &= set(self.seconds)
        ordered = sorted(tests, key=lambda test: self.seconds[test])
        taken = itertools.accumulate(self.seconds[test] for test in ordered)
        return [test for test, sum_ in zip(ordered, taken, strict=True) if sum_ < 60 or test == ordered[0]]


def simulate(copy: Path, seeds: range, chosen: Sequence[str], tracer: coverage.Coverage | None) -> str:
    """Run worlds in a copy of the tree with each seed; return the first failed run, or an empty text."""
    from tests.simulation.runs import WORLDS, run

    for seed in seeds:
        for world in chosen or WORLDS:
            where = f"{world}, seed {seed}"
            (copy / "running.txt").write_text(where)
            signal.setitimer(signal.ITIMER_PROF, 0 if tracer else WORLD_CPU)
            signal.alarm(0 if tracer else WORLD_SECONDS)
            if tracer is not None:
                tracer.switch_context(world)
            error = run(world, seed)[0]
            if error:
                print(error)
                return where
    return ""


def simulate_in_a_child(
    copy: Path, seeds: range, chosen: Sequence[str], tracer: coverage.Coverage | None = None
) -> int:
    """Fork; the child runs worlds, and exits with 3 after a failure."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (WORLD_MEMORY, WORLD_MEMORY))
        os.chdir(copy)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(copy))
        if tracer is not None:
            tracer.start()
        found = simulate(copy, seeds, chosen, tracer)
        if tracer is not None:
            tracer.stop()
            data = tracer.get_data()
            executed = {
                str(Path(file).relative_to(copy)): data.contexts_by_lineno(file)
                for file in data.measured_files()
            }
            if not found:
                (HOME / "simulation.json").write_text(json.dumps(executed))
        (copy / "found.txt").write_text(found)
        status = 3 if found else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@dataclass
class SimulatedTrial:
    """A bug that a child looks for with the simulation.

    Attributes:
        area: the bug's area.
        mutant: the bug.
        copy: the tree with the bug.
        original: the bytes of the file without the bug.
        pid: the child.
    """

    area: str
    mutant: Mutant
    copy: Path
    original: bytes
    pid: int

    def end(self) -> str | None:
        """Return the run that found the bug, "" if no run found the bug, or None while the child runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        (self.copy / self.mutant.path).write_bytes(self.original)
        found, running = self.copy / "found.txt", self.copy / "running.txt"
        if found.exists():
            return found.read_text()
        where = running.read_text() if running.exists() else "the import"
        return f"an end without time, or of the process ({os.waitstatus_to_exitcode(status)}), in {where}"


def simulated(drawn: dict[str, list[Mutant]], jobs: int) -> None:
    """Search bugs with the simulation alone, in the lines executed by the simulation; print a table."""
    executed: dict[str, dict[str, list[str]]] = json.loads((HOME / "simulation.json").read_text())
    free: list[Path] = []
    for number in range(jobs):
        free.append(copy_tree(f"simulation-{number}"))
        # By content: the files of a copy change and change back.
        compileall.compile_dir(
            free[-1], quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )
    waiting = [(area, mutant) for area, mutants in drawn.items() for mutant in mutants]
    count, began = len(waiting), time.monotonic()
    trials: list[SimulatedTrial] = []
    found: dict[str, list[str]] = defaultdict(list)
    survivors: list[Mutant] = []
    done = 0
    while waiting or trials:
        while waiting and free:
            area, mutant = waiting.pop(0)
            copy = free.pop()
            for written in ("found.txt", "running.txt"):
                (copy / written).unlink(missing_ok=True)
            target = copy / mutant.path
            trial = SimulatedTrial(area, mutant, copy, target.read_bytes(), 0)
            target.write_text(mutant.source(), encoding="utf-8")
            worlds = worlds_for(mutant, executed.get(mutant.path, {}))
            trial.pid = simulate_in_a_child(copy, range(1, SIMULATED_SEEDS + 1), worlds)
            trials.append(trial)
        for trial in [*trials]:
            how = trial.end()
            if how is None:
                continue
            trials.remove(trial)
            free.append(trial.copy)
            done += 1
            if how:
                found[trial.area].append(how)
            else:
                survivors.append(trial.mutant)
            print(
                f"{done:>3} of {count}, {time.monotonic() - began:.0f} s: {trial.mutant.name} "
                f"{trial.mutant.path}:{trial.mutant.lines[0]} {f'found by {how}' if how else 'NOT FOUND'}",
                flush=True,
            )
        time.sleep(0.02)
    for mutant in survivors:
        print(f"\n{mutant.name} {mutant.path}:{mutant.lines[0]}\n{mutant.diff()}")
    rows = [("area", "planted", "found", "at seed 1", "share")]
    every: list[str] = []
    for area, mutants in drawn.items():
        rows.append(_row_of_table(area, len(mutants), found[area]))
        every += found[area]
    rows.append(_row_of_table("in all", count, every))
    rows.insert(1, ("---",) * len(rows[0]))
    print()
    for row in rows:
        print(f"| {' | '.join(row)} |")


def _row_of_table(area: str, planted: int, found: list[str]) -> tuple[str, ...]:
    first = sum(how.endswith(("seed 1", "the import")) for how in found)
    return area, str(planted), str(len(found)), str(first), f"{len(found) / max(planted, 1):.0%}"


def worlds_for(mutant: Mutant, executed: dict[str, list[str]]) -> list[str]:
    """Return the worlds that execute a bug, by the executed share of the bug's module; [] for all worlds."""
    if mutant.everywhere:
        return []
    reaching = {world for line in mutant.lines for world in executed.get(str(line), []) if world}
    lines = Counter(world for worlds in executed.values() for world in worlds)
    return sorted(reaching, key=lambda world: (-lines[world], world))


def executed_by_simulation(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the bugs on lines executed by a simulated world; record the executed lines first if unknown."""
    answer = HOME / "simulation.json"
    if not answer.exists():
        copy = copy_tree("simulation-recorded")
        tracer = coverage.Coverage(data_file=None, include=[f"{copy}/bmq/*"])
        # Every seed passes without a bug; two seeds, run slowly, show the executed lines of each world.
        for seeds, how in ((range(1, SIMULATED_SEEDS + 1), None), (range(1, 3), tracer)):
            _, status = os.waitpid(simulate_in_a_child(copy, seeds, [], how), 0)
            if status:
                sys.exit(f"the simulation fails without any bug: see {copy}/output.txt")
    executed = json.loads(answer.read_text())

    def reached(mutant: Mutant) -> bool:
        lines = executed.get(mutant.path, {})
        return any(any(lines.get(str(line), [])) for line in mutant.lines)

    return [mutant for mutant in mutants if reached(mutant)]


def test_files(suite: str) -> list[str]:
    """The modules with the tests of a suite."""
    found: list[Path] = []
    for where in SUITES[suite]:
        found += [ROOT / where] if where.endswith(".py") else sorted((ROOT / where).rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in found if not LEFT_OUT & {*path.parts}]


def record(suite: str) -> None:
    """Run the tests of a suite unchanged, and write the recording for `recorded`."""
    copy = copy_tree(f"{suite}-recorded")
    tracer = coverage.Coverage(data_file=None, include=[f"{copy}/bmq/*"])
    recorder = Recorder(tracer)
    answer = HOME / f"{suite}.json"
    answer.unlink(missing_ok=True)

    class Writer:
        def pytest_sessionstart(self) -> None:
            tracer.start()

        def pytest_sessionfinish(self) -> None:
            tracer.stop()
            data = tracer.get_data()
            executed = {
                str(Path(file).relative_to(copy)): data.contexts_by_lineno(file)
                for file in data.measured_files()
            }
            seconds = {test: took for test, took in recorder.seconds.items() if test not in recorder.failed}
            answer.write_text(
                json.dumps({"seconds": seconds, "executed": executed, "failed": [*recorder.failed]})
            )

    started = time.monotonic()
    pid = in_a_child(copy, ["--maxfail=1000000", *test_files(suite)], recorder, Writer(), cpu=3600)
    status = os.waitpid(pid, 0)[1]
    if not answer.exists():
        sys.exit(f"the tests of {suite} did not run ({status}): see {copy}/output.txt")
    print(f"{suite}: recorded in {time.monotonic() - started:.0f} s", flush=True)


def recorded(suite: str) -> Record:
    """The durations and lines of a suite without a bug."""
    read = json.loads((HOME / f"{suite}.json").read_text())
    for test in read["failed"]:
        print(f"  fails without any bug, and is left out: {test}")
    executed = {
        file: {int(line): tests for line, tests in lines.items()} for file, lines in read["executed"].items()
    }
    return Record(suite, read["seconds"], executed, set(read["failed"]))


@dataclass
class Trial:
    """The search for a bug, in a child process."""

    mutant: Mutant
    suites: Sequence[Record]
    """The remaining suites, to run if the current tests do not find the bug."""
    copy: Path
    pid: int

    def end(self) -> str | None:
        """Return the test that found the bug, "" if no test found the bug, or None while the tests run."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # processes started by the tests
        found = self.copy / "found.txt"
        if found.exists():
            return found.read_text()
        status = os.waitstatus_to_exitcode(status)
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ""
        running = self.copy / "running.txt"
        how = "an end without time" if status < 0 else f"a hang, or the end of pytest ({status})"
        return f"{how} in {running.read_text()}" if running.exists() else f"the import ({status})"


def look_for(mutant: Mutant, suites: Sequence[Record], copy: Path, every_file: bool) -> Trial | None:
    """Plant a bug; start the tests of the first suite that can find the bug."""
    left = [*suites]
    while left:
        known = left.pop(0)
        tests = known.tests(mutant)
        files = sorted({test.partition("::")[0] for test in tests})
        if every_file:
            files = test_files(known.suite)
        if files:
            break
    else:
        return None
    for stale in (copy / "bmq").rglob("*.py.kept"):
        stale.replace(stale.with_suffix(""))
    for written in ("found.txt", "running.txt"):
        (copy / written).unlink(missing_ok=True)
    target = copy / mutant.path
    target.rename(f"{target}.kept")
    target.write_text(mutant.source(), encoding="utf-8")
    seconds = [known.seconds[test] for test in tests]
    pid = in_a_child(
        copy,
        files,
        Selection(tests, known, copy / "found.txt"),
        cpu=int(60 + 5 * sum(seconds)),
    )
    return Trial(mutant, left, copy, pid)


def run(area: str, mutants: Sequence[Mutant], jobs: int, every_file: bool) -> list[Mutant]:
    """Search the bugs of an area; return the undetected bugs."""
    suites = [recorded(suite) for suite in AREAS[area][1]]
    print(f"{area}: {len(mutants)} bugs, {sum(len(known.seconds) for known in suites)} tests", flush=True)
    free = [copy_tree(f"{area}-{number}") for number in range(jobs)]
    waiting: list[tuple[Mutant, Sequence[Record]]] = [(mutant, suites) for mutant in mutants]
    trials: list[Trial] = []
    survivors: list[Mutant] = []

    def ended(mutant: Mutant, found_by: str) -> None:
        how = f"found by {found_by}" if found_by else "NOT FOUND"
        print(f"  {mutant.name} {mutant.path}:{mutant.lines[0]} {how}", flush=True)
        if not found_by:
            survivors.append(mutant)

    while waiting or trials:
        while waiting and free:
            mutant, left = waiting.pop()
            trial = look_for(mutant, left, free[-1], every_file)
            if trial is None:
                ended(mutant, "")
            else:
                trials.append(trial)
                free.pop()
        for trial in [*trials]:
            test = trial.end()
            if test is None:
                continue
            trials.remove(trial)
            free.append(trial.copy)
            if test:
                ended(trial.mutant, test)
            else:
                waiting.append((trial.mutant, trial.suites))
        time.sleep(0.05)
    return survivors


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="only these bugs, by the names that an earlier run printed")
    parser.add_argument("--count", type=int, default=500, help="bugs in all the areas together (default 500)")
    parser.add_argument("--seed", default="1", help="what is drawn depends on it (default 1)")
    parser.add_argument("--area", action="append", choices=AREAS, help="only this one; may be given again")
    parser.add_argument("--jobs", type=int, default=1, help="bugs looked for at the same time (default 1)")
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="what the tests execute is known from an earlier run, and still true",
    )
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="run the simulation instead of the tests, for bugs on lines that it executes",
    )
    options = parser.parse_args()
    share = shares(options.count)
    drawn: dict[str, list[Mutant]] = {}
    if options.simulated and not options.recorded:
        (HOME / "simulation.json").unlink(missing_ok=True)
    for area in options.area or (SIMULATED if options.simulated else AREAS):
        planted = plant(area)
        if options.simulated:
            planted = executed_by_simulation(planted)
            share[area] = options.count // len(options.area or SIMULATED)
        drawn[area] = (
            [mutant for mutant in planted if mutant.name in options.names]
            if options.names
            else draw(planted, share[area], options.seed)
        )
    print(f"seed {options.seed}:", ", ".join(f"{len(mutants)} in {area}" for area, mutants in drawn.items()))
    gc.collect()
    gc.freeze()
    if options.simulated:
        import sqlalchemy  # noqa: F401  here so that no child has to import them
        import taskiq  # noqa: F401

        simulated(drawn, options.jobs)
        return
    suites = dict.fromkeys(suite for area, mutants in drawn.items() if mutants for suite in AREAS[area][1])
    for suite in suites:
        if not (options.recorded and (HOME / f"{suite}.json").exists()):
            record(suite)
    survivors = {
        area: run(area, mutants, options.jobs, options.recorded) for area, mutants in drawn.items() if mutants
    }
    for mutant in itertools.chain.from_iterable(survivors.values()):
        print(f"\n{mutant.name} {mutant.path}:{mutant.lines[0]}\n{mutant.diff()}")
    print(f"\n{'area':<14} {'bugs':>5} {'found':>5}")
    for area in survivors:
        number = len(drawn[area])
        print(f"{area:<14} {number:>5} {number - len(survivors[area]):>5}")
    number = sum(len(drawn[area]) for area in survivors)
    found = number - sum(map(len, survivors.values()))
    print(f"{'in all':<14} {number:>5} {found:>5}  {found / max(number, 1):.1%}")


if __name__ == "__main__":
    main()
