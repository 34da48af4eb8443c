# SPDX-License-Identifier: Apache-2.0
"""Plants protocol bugs in the embedded broker, one at a time, and counts those that the suite finds.

``python -m conformance.mutants [NAME...]`` needs some minutes. The broker runs as a process of its
own from a copy of the package with the bug; the suite runs from the unchanged package. A bug is found if a
case fails that passes without the bug.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import bmq
from conformance import Mismatch, Outcome, all_cases, run_suite
from conformance.bench import Address

PACKAGE = Path(bmq.__file__).parent
#: The broker under test, with a user beside anonymous clients.
BROKER = """
import asyncio, sys
from bmq.broker import Authentication, Broker

async def main():
    async with Broker(port=int(sys.argv[1]), auth=Authentication({"alice": "secret"}, anonymous=True)):
        await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Bug:
    """A bug: the file, the text, and the text in its place."""

    name: str
    file: str
    old: str
    new: str


_SESSION, _CLIENT, _QUEUE = "protocol/broker/session.py", "broker/_connected_client.py", "broker/_queue.py"

BUGS = (
    Bug("heartbeats are answered with requests", _SESSION, "event(HEARTBEAT_RSP)", "event(HEARTBEAT_REQ)"),
    Bug(
        "a disconnect is not answered",
        _SESSION,
        "self._respond(request, DisconnectResponse())",
        "pass",
    ),
    Bug(
        "a GUID of zeros is accepted",
        _SESSION,
        "[put for put in puts if put[PUT_GUID] == UNSET_GUID]:",
        "[put for put in puts if not put]:",
    ),
    Bug(
        "the correlation id is read from the wrong place",
        _SESSION,
        "int.from_bytes(field[CORRELATION_ID]",
        "int.from_bytes(field[4:7]",
    ),
    Bug(
        "messages are delivered before the answer to configureStream",
        _SESSION,
        "refusal = client.configure(body.q_id, body.stream_parameters, now)\n",
        "refusal = client.configure(body.q_id, body.stream_parameters, now)\n"
        "                self.backend.deliver(now)\n",
    ),
    Bug(
        "a GUID is forgotten with its message",
        _QUEUE,
        "if guid in store.messages or guid in store.remembered:",
        "if guid in store.messages:",
    ),
    Bug(
        "the quota is never enforced",
        _QUEUE,
        "status = store.full()\n",
        "status = 0\n",
    ),
    Bug(
        "the subscription of an application is ignored",
        _QUEUE,
        "pending &= ~bit",
        "pending |= bit",
    ),
    Bug(
        "broadcast reaches one consumer",
        _QUEUE,
        "for subscriber in app.routing.candidates(message):",
        "for subscriber in list(app.routing.candidates(message))[:1]:",
    ),
    Bug(
        "redelivered messages have no flag",
        "broker/_delivery.py",
        "push(message, subscriber.option, out_of_order=True)",
        "push(message, subscriber.option, out_of_order=False)",
    ),
    Bug(
        "delivery attempts are not counted",
        "broker/_delivery.py",
        "attempts.get(bit, limit) - 1",
        "attempts.get(bit, limit)",
    ),
    Bug(
        "delivery resumes after each confirmation",
        "broker/_routing.py",
        "self.low_messages = math.ceil(self.max_messages * _LOW_WATERMARK)",
        "self.low_messages = self.max_messages",
    ),
    Bug(
        "the lowest priority is served first",
        "broker/_routing.py",
        "sorted(levels, reverse=True)",
        "sorted(levels)",
    ),
    Bug(
        "the limit of bytes is ignored",
        "broker/_handle.py",
        "subscriber.messages >= subscriber.max_messages or subscriber.size >= subscriber.max_bytes",
        "subscriber.messages >= subscriber.max_messages",
    ),
    Bug(
        "old clients receive the new encoding",
        "broker/_handle.py",
        "if not self.new_properties:",
        "if not self:",
    ),
    Bug(
        "an invalid priority is accepted",
        _CLIENT,
        "if valid is not (consumer.consumer_priority_count > 0):",
        "if not parameters:",
    ),
    Bug(
        "a queue id may be used twice",
        _CLIENT,
        "if handle is not None and handle.queue is not queue:",
        "if handle is not None and not queue:",
    ),
    Bug(
        "messages do not expire",
        "broker/_storage.py",
        "int(now) - int(oldest.arrival) > ttl:",
        "int(now) - int(oldest.arrival) > ttl + 1000:",
    ),
    Bug(
        "aligned bodies have no padding",
        "wire/event.py",
        "pad = PADDING[len(body) & 3]",
        'pad = PADDING[len(body) & 3] if len(body) & 3 else b""',
    ),
    Bug(
        "a reader of a fanout queue needs no application",
        _CLIENT,
        "if queue.fanout and info.app_id == DEFAULT_APP_ID:",
        "if queue.fanout and not info:",
    ),
    Bug(
        "any password is accepted",
        "protocol/broker/settings.py",
        "if hmac.compare_digest(expected, password) and name in self.users:",
        "if name in self.users:",
    ),
    Bug(
        "the quota of the domain is not checked",
        _QUEUE,
        "status = store.full()\n",
        "status = store.usage.full()\n",
    ),
    Bug(
        "a domain takes any number of consumers",
        _CLIENT,
        "readers + wanted.read_count > config.max_consumers:",
        "readers > config.max_consumers:",
    ),
    Bug(
        "a GUID is remembered for five minutes in each domain",
        _QUEUE,
        "self.store.window = config.deduplication_time_ms / 1000",
        "self.store.window = 300",
    ),
    Bug(
        "answers in BER are given to no one",
        _SESSION,
        "self.codec = parse_features(identity.features).codec",
        "self.codec = Codec.JSON",
    ),
)


def plant(bug: Bug | None, folder: Path) -> Path:
    """Copy the package, and change the copy."""
    shutil.copytree(PACKAGE, folder / "bmq", ignore=shutil.ignore_patterns("__pycache__"))
    if bug is not None:
        path = folder / "bmq" / bug.file
        text = path.read_text(encoding="utf-8")
        if text.count(bug.old) != 1:
            raise SystemExit(
                f"{bug.name}: {bug.file} must contain the text once, not {text.count(bug.old)} times"
            )
        path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
    return folder


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def judge(bug: Bug | None) -> list[str]:
    """The numbers of the failed cases; ``all`` if the broker cannot be tested."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = plant(bug, Path(name)), free_port()
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-c", BROKER, str(port)]
        broker = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            for _ in range(200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            report = asyncio.run(
                run_suite(Address.parse(f"tcp://127.0.0.1:{port}"), all_cases(), user=b"alice:secret")
            )
        except (OSError, Mismatch):
            return ["all"]
        finally:
            broker.terminate()
            broker.wait()
    return [each.case.number for each in report.results if each.outcome is not Outcome.PASSED]


def main() -> int:
    """Judge every bug, and print the table."""
    chosen = [bug for bug in BUGS if not sys.argv[1:] or bug.name in sys.argv[1:]]
    known = judge(None)
    print(f"without a bug: {', '.join(known)}", flush=True)
    found = 0
    for bug in chosen:
        numbers = [number for number in judge(bug) if number not in known]
        found += bool(numbers)
        shown = ", ".join(numbers[:6]) + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")
        print(f"{'found    ' if numbers else 'NOT FOUND'} {bug.name}: {shown}", flush=True)
    print(f"{found} of {len(chosen)} found")
    return 0 if found * 10 >= len(chosen) * 9 else 1


if __name__ == "__main__":
    sys.exit(main())
