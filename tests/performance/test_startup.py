# SPDX-License-Identifier: Apache-2.0
"""The modules that an import loads, and the memory that reading maps: neither depends on time."""

from __future__ import annotations

import subprocess
import sys

from bmq.testing import BackgroundBroker

PROGRAM = """
import sys
import functools  # bmq needs it, and newer interpreters start without it
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
    assert done.stdout.splitlines() == [
        "['bmq', 'bmq._version']",
        "[]",  # the words of the command line load no client
        "[]",  # the client loads nothing that most programs do not need
        "False False",
        "0 True True",  # the collector works during the verb, and not at the end
        "[]",  # bmq post loads nothing that it does not need
    ]


# The blocks that the C library has mapped one by one, before and after an allocation as asyncio makes it for
# each read. Other C libraries than glibc count nothing.
ALLOCATING = """
import ctypes
import bmq.client.channel

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks".split()]
    _fields_ += [(f"rest{n}", ctypes.c_size_t) for n in range(6)]

count = getattr(ctypes.CDLL(None), "mallinfo2", None)
if count is None:
    print(0)
else:
    count.restype = Info
    before = count().hblks
    block = bytes(256 * 1024)
    print(count().hblks - before)
"""


def test_a_receive_buffer_is_not_mapped_for_each_read() -> None:
    ran = subprocess.run([sys.executable, "-c", ALLOCATING], capture_output=True, text=True, check=True)
    assert ran.stdout == "0\n"
