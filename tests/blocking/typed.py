# SPDX-License-Identifier: Apache-2.0
"""Generate the typed classes for threads from those of asyncio.

    python -m tests.blocking.typed

Typed classes have no waiting of their own: a method converts values, and calls the method of the queue, the
consumer or the group. The classes for threads are therefore those of asyncio without ``async`` and ``await``.
The classes that do wait for the event loop are written by hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import bmq

PACKAGE = Path(bmq.__file__).parent
SOURCE, TARGET = PACKAGE / "client" / "typed.py", PACKAGE / "blocking" / "_typed.py"
#: Above this line the target is written by hand.
MARK = "# Below: generated from bmq/client/typed.py by tests/blocking/typed.py.\n"

#: What is written here for a text there, in this order.
CHANGES = [
    (r"    def __await__\(self\) -> .*\n        return .*\n\n", ""),
    (r"``async with`` \(or ``await``\)", "``with``"),
    (r"async (def|for|with) ", r"\1 "),
    (r"await ", ""),
    (r"__a(iter|next|enter|exit)__", r"__\1__"),
    (r" \| AsyncIterable\[T\]", ""),
    (r", from an iterable or an async iterable", ""),
    (r"AsyncIterator", "Iterator"),
    (r"Cancelling the call", "Interrupting the call"),
    (r"<bmq\.Typed", "<bmq.blocking.Typed"),
    (r":(meth|class|attr):`bmq\.((groups|typed)\.)?", r":\1:`"),
]


def generated() -> str:
    """Return the module for threads, made anew."""
    head, mark, _ = TARGET.read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{TARGET.name} has no line {MARK!r}"
    text = SOURCE.read_text(encoding="utf-8")
    classes = text[text.index("@live\nclass TypedQueue(") : text.index("\n\ndef untyped(")]
    for there, here in CHANGES:
        classes = re.sub(there, here, classes)
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    run = subprocess.run(
        command, input=head + mark + "\n\n" + classes, capture_output=True, text=True, check=True
    )
    return run.stdout


if __name__ == "__main__":
    TARGET.write_text(generated(), encoding="utf-8")
