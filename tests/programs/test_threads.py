# SPDX-License-Identifier: Apache-2.0
"""The command ``bmq run --threads N``: all threads handle messages, and SIGTERM waits for the handlers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import bmq
from bmq.cli.threads import sharing
from bmq.testing import BackgroundBroker
from tests.cli.test_run import start

QUEUE = "bmq://bmq.test.mem.priority/two-threads"
APP = """
import asyncio, pathlib, threading
import bmq

app = bmq.App({uri!r})
released = pathlib.Path(__file__).with_name("released")

def say(text):
    # One call for the text and the end of the line: both threads write.
    print(text + "\\n", end="", flush=True)

@app.on_startup
def begin():
    say("begun")

@app.on_shutdown
def end():
    say("ended")

@app.consumer({queue!r}, max_unconfirmed_messages=1)
async def handle(message):
    say(f"{{threading.get_ident()}} has {{message.data.decode()}}")
    while not released.exists():
        await asyncio.sleep(0.01)
    say(f"handled {{message.data.decode()}}")
"""


def test_both_threads_finish_their_messages_after_a_signal(tmp_path: Path) -> None:
    with BackgroundBroker() as broker:
        (tmp_path / "shop.py").write_text(APP.format(uri=broker.uri, queue=QUEUE))
        with start(tmp_path, "shop", "--threads", "2") as process:
            assert process.stderr is not None
            assert process.stdout is not None
            errors = ""
            while errors.count("is ready and receives messages") < 2:
                line = process.stderr.readline()
                assert line, errors
                errors += line

            async def post() -> None:
                async with bmq.connect(broker.uri) as session:
                    queue = await session.open_queue(QUEUE, write=True)
                    await queue.post_many([b"one", b"two"])

            asyncio.run(post())
            output = [process.stdout.readline() for _ in range(4)]
            # The handlers hold a message each, and go on only after the signal.
            process.send_signal(signal.SIGTERM)
            (tmp_path / "released").touch()
            rest, errors_of_the_end = process.communicate(timeout=60)
        assert (process.returncode, errors_of_the_end) == (0, "")
        assert output[:2] == ["begun\n"] * 2
        threads, texts = zip(*(line.split(" has ") for line in output[2:]), strict=True)
        assert len(set(threads)) == 2
        assert sorted(texts) == ["one\n", "two\n"]
        assert sorted(rest.splitlines()) == ["ended", "ended", "handled one", "handled two"]
        assert broker.call(lambda embedded: embedded.queues[QUEUE].messages) == []
    assert errors.startswith("bmq run: shop in 2 threads, until Ctrl-C\n")
    assert errors.count("the threads share one core: this Python has a GIL") == (sharing() is not None)
