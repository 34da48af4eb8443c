# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server for tests, if PostgreSQL is installed; data and socket are in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["PROGRAMS", "running"]


def _programs() -> Path | None:
    found = [Path(program).parent for program in (shutil.which("pg_ctl"),) if program]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in found if (each / "pg_ctl").exists()), None)


#: The folder of PostgreSQL's programs, outside of Debian's PATH; None without PostgreSQL.
PROGRAMS = _programs()


@contextmanager
def running() -> Generator[str, None, None]:
    """Run a server; yields the URL of an empty database.

    Raises:
        AssertionError: PostgreSQL is missing, or does not start; the text has the server's output.
    """
    assert PROGRAMS is not None
    programs = PROGRAMS
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root

    def run(program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [programs / program, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", check=False, user=user,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout.decode()

    folder = Path(tempfile.mkdtemp(prefix="bmq-pg-"))
    data = folder / "data"
    try:
        if user:
            shutil.chown(folder, user)
        run("initdb", "-D", data, "-U", "bmq", "-A", "trust", "--no-sync")
        settings = f"-k {folder} -c listen_addresses='' -c fsync=off"
        run("pg_ctl", "-D", data, "-o", settings, "-l", folder / "log", "-w", "start")
        try:
            yield f"postgresql+psycopg://bmq@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)
