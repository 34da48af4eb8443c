# SPDX-License-Identifier: Apache-2.0
"""The modules that an import loads: a profile of the start that does not depend on time."""

from __future__ import annotations

import subprocess
import sys

from bmq.testing import BackgroundBroker

PROGRAM = """
import sys
import functools  # bmq needs it, and newer interpreters start without it
from importlib.util import find_spec
def loading(statement):
    before = set(sys.modules)
    exec(statement, globals())
    return sorted(name for name in sys.modules if name not in before)
assert "typing" not in sys.modules
print(loading("import bmq"))
print([name for name in loading("import bmq._words") if name.startswith("bmq.client")])
unused = ("rich", "typer", "uvloop")
print([name for name in loading("bmq.connect; bmq.run") if name.split(".")[0] in unused])
print("bmq.client.stats" in sys.modules, "bmq.admin.results" in sys.modules)
import gc
from bmq.cli import script
sys.argv[1:] = ["post", "--quiet", "--broker", sys.argv[1], "bmq://bmq.test.mem.priority/startup", "hello"]
print(script(), gc.isenabled(), gc.get_freeze_count() > 10_000)
unused = ("rich", "tomllib", "getpass", "shlex", "bmq.cli.template", "bmq.cli.consoles")
print([name for name in unused if name in sys.modules])
"""


def test_an_import_loads_little() -> None:
    """In one process, because a start takes longer than all else here."""
    with BackgroundBroker() as broker:
        code = f"import sys; sys.path[:] = {sys.path!r}\n{PROGRAM}"
        program = [sys.executable, "-S", "-c", code, broker.uri]
        done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    printed = done.stdout.splitlines()
    assert printed[0] == "['bmq', 'bmq._version']"
    assert printed[1] == "[]", "the words of the command line load no client"
    assert printed[2] == "[]", "the client loads what most programs do not need"
    assert printed[3] == "False False"
    assert printed[4] == "0 True True", "the collector works during the verb, and not at the end"
    assert printed[5] == "[]", "bmq post loads what it does not need"
