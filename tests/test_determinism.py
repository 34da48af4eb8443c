# SPDX-License-Identifier: Apache-2.0
"""No behaviour depends on hash seeds or addresses of objects: see also ``simulation/test_worlds.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bmq

PACKAGE = Path(bmq.__file__).parent


def test_cores_produce_the_same_output_under_every_hash_seed() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.determinism"],
            cwd=PACKAGE.parent,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (0, 1, 77)
    ]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(set(said)) == 1
