# SPDX-License-Identifier: Apache-2.0
"""``bmq new``: a project from the files in ``bmq/cli/projects``; the files are programs with tests."""

from __future__ import annotations

import json
import keyword
import re
import shlex
import sys
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from bmq._version import __version__
from bmq.cli.output import BadInput, emit, note, printable
from bmq.cli.verb import argument, option, verb

_TEMPLATES: Final = Path(__file__).with_name("projects")
# Placeholders of the templates. The placeholders are valid names, so that linters, type checkers and pytest
# can read the templates unchanged.
_PROJECT: Final = "bmq-new-project"
_MODULE: Final = "bmq_new_module"
_VERSION: Final = "bmq.new.version"
#: Prefix of the template of a file whose name begins with a dot.
_DOT: Final = "dot_"
#: Packages that a project imports or installs, beside those of the standard library.
_TAKEN: Final = frozenset(
    {"bmq", "construct", "google", "hatchling", "orjson", "pip", "pyarrow", "pyspark", "pytest"}
    | {"pytest_asyncio", "rich", "setuptools", "src", "test", "tests", "typer", "wheel", "wheels"}
)


class Kind(StrEnum):
    """The kinds of projects."""

    SERVICE = "service"
    PIPELINE = "pipeline"
    TEST = "test"


_NEXT: Final = {
    Kind.SERVICE: ".venv/bin/bmq run {module}.app",
    Kind.PIPELINE: ".venv/bin/python -m {module}.job --help",
    Kind.TEST: "docker compose up --wait broker",
}


@verb("new", broker=False)
def new(
    kind: Kind = argument("service|pipeline|test", "The kind of project."),
    name: str = argument("NAME", "Name of the project: letters, digits, '-', '_', '.'."),
    directory: Path | None = option(
        "--directory -d DIR", "Folder of the project; by default NAME.", show_default=False
    ),
) -> None:
    """Create a project that runs: a program, its tests, a container file, and a workflow for GitHub Actions.

    A service is an app of workers with a typed handler, retries, dead letters and a simulation. A pipeline is
    a job of Spark from queue to queue. A test project has integration tests for the embedded broker and for a
    broker in Docker. The command prints the names of the files, and refuses a folder with files.

    [bold]Examples[/]

    $ bmq new service shop-orders

    $ bmq new pipeline prices --directory jobs/prices

    $ bmq new test shop-tests --directory .
    """
    module = module_of(name)
    folder = Path(name) if directory is None else directory
    _check_empty(folder)
    made = files(kind, name, module)
    for path, text in made.items():
        _write(folder / path, text)
    emit(*(printable(str(folder / path)) for path in made))
    where = "" if folder == Path() else f"cd {printable(str(folder))} && "
    steps = [".venv/bin/pip install --find-links wheels --editable '.[test]'", ".venv/bin/pytest"]
    if source := _source():
        steps.insert(0, f".venv/bin/pip wheel --no-deps --wheel-dir wheels {printable(source)}")
    note(f"next: {where}python3 -m venv .venv && {' && '.join(steps)}")
    note(f"then: {_NEXT[kind].format(module=module)}")


def _source() -> str:
    """Return the quoted path that bmq was installed from, or nothing if bmq comes from a package index.

    A package index may not have bmq: the project installs a wheel made from the same path.
    """
    try:
        recorded = distribution("bmq").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    address: str = json.loads(recorded)["url"] if recorded else ""
    url = urlsplit(address)
    return shlex.quote(url2pathname(url.path)) if url.scheme == "file" else ""


def module_of(name: str) -> str:
    """Return the name of a project's package.

    Raises:
        BadInput: the name cannot be used for a project.
    """
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", name):
        raise BadInput(
            "NAME must be of up to 64 letters of ASCII, digits, '-', '_' and '.', begin with a letter, and "
            "end with a letter or a digit, for example shop-orders; --directory names the folder; got "
            f"{printable(repr(name))}"
        )
    module = re.sub(r"[-_.]+", "_", name).lower()
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _TAKEN:
        raise BadInput(f"NAME must be free, such as my-{name.lower()}: Python or the project has {module}")
    return module


def files(kind: Kind, name: str, module: str) -> dict[Path, str]:
    """Return the texts of a project's files by their path in the project, sorted.

    Args:
        kind: the kind of project.
        name: the name of the project.
        module: the name of the package.
    """
    texts: dict[Path, str] = {}
    for root in (_TEMPLATES / "common", _TEMPLATES / kind):
        for path in root.rglob("*"):
            parts = path.relative_to(root).parts
            if path.is_dir() or any(part == "__pycache__" or part.startswith(".") for part in parts):
                continue  # caches of the tools that read the templates
            renamed = [part.replace(_MODULE, module) for part in parts]
            target = Path(
                *("." + part.removeprefix(_DOT) if part.startswith(_DOT) else part for part in renamed)
            )
            texts[target] = _filled(path.read_text(encoding="utf-8"), name, module)
    return dict(sorted(texts.items()))


def _filled(text: str, name: str, module: str) -> str:
    """Return the text of a template with the project's names, and without the license of bmq."""
    first, _, rest = text.partition("\n")
    if "SPDX-License-Identifier" in first:
        text = rest
    return text.replace(_PROJECT, name).replace(_MODULE, module).replace(_VERSION, __version__)


def _check_empty(folder: Path) -> None:
    """Refuse a folder with files; a new repository counts as empty."""
    there = sorted(each.name for each in folder.iterdir() if each.name != ".git") if folder.is_dir() else []
    if there:
        shown = printable(f"{folder} has files already, such as {there[0]}")
        raise BadInput(f"{shown}: name another folder with --directory")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Mode x fails if another program has created the file meanwhile.
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"cannot write {printable(str(path))}: {error.strerror}") from None
