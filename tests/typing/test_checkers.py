# SPDX-License-Identifier: Apache-2.0
"""The results of mypy and pyright, both strict, for correct and incorrect programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest

import bmq
from bmq.client.options import SessionFields

ROOT = Path(__file__).parents[2]
RIGHT = Path(__file__).with_name("right.py")
WRONG = Path(__file__).with_name("wrong.py")


def mypy(folder: Path) -> set[tuple[str, int]]:
    options = ["--config-file=", "--strict", "--no-error-summary", "--no-color-output", "--cache-dir=.cache"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *sorted(each.name for each in folder.glob("*.py"))],
        cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"MYPYPATH": str(ROOT)},
    )  # fmt: skip
    assert not run.stderr, run.stderr
    lines = re.findall(r"^([^:\n]+):(\d+): error", run.stdout, re.MULTILINE)
    return {(Path(name).name, int(line)) for name, line in lines}


def pyright(folder: Path) -> set[tuple[str, int]]:
    settings = {"include": ["."], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seen = json.loads(run.stdout)
    assert seen["summary"]["filesAnalyzed"] == 2, run.stdout
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in seen["generalDiagnostics"]
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_correct_programs_pass_and_wrong_programs_fail(
    checker: Callable[[Path], set[tuple[str, int]]], tmp_path: Path
) -> None:
    for program in (RIGHT, WRONG):
        shutil.copy(program, tmp_path)
    expected = {
        (WRONG.name, number)
        for number, line in enumerate(WRONG.read_text(encoding="utf-8").splitlines(), 1)
        if line.endswith("# wrong")
    }
    assert checker(tmp_path) == expected


def test_the_keywords_of_connect_are_the_fields_of_the_options() -> None:
    assert get_type_hints(SessionFields) == get_type_hints(bmq.SessionOptions)
