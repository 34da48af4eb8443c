# SPDX-License-Identifier: Apache-2.0
"""The modules that an import loads: a profile of the start that does not depend on time."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
def loading(statement):
    before = set(sys.modules)
    exec(statement, globals())
    return sorted(name for name in sys.modules if name not in before)
assert "typing" not in sys.modules
print(loading("import bmq"))
print([name for name in loading("import bmq.admin.words") if name.startswith("bmq.client")])
unused = ("construct", "rich", "typer", "uvloop")
print([name for name in loading("bmq.connect; bmq.run") if name.split(".")[0] in unused])
print("bmq.client.stats" in sys.modules, "bmq.admin.results" in sys.modules)
"""


def test_an_import_loads_little() -> None:
    """In one process, because a start takes longer than all else here."""
    program = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{PROGRAM}"]
    printed = subprocess.run(
        program, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert printed[0] == "['bmq', 'bmq._version']"
    assert printed[1] == "[]", "the words of the command line load no client"
    assert printed[2] == "[]", "the client loads what most programs do not need"
    assert printed[3] == "False False"
