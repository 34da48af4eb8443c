# SPDX-License-Identifier: Apache-2.0
"""Frequent mistakes: a missing await, code without an event loop, a second event loop, a copy."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.testing import BackgroundBroker, FaultProxy
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.sweeps import sweep

Holder = dataclasses.make_dataclass("Holder", ["held"])
#: The ways to duplicate an object.
COPIES: dict[str, Callable[[Any], object]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "asdict": lambda value: dataclasses.asdict(Holder(value)),
}


@sweep("way", COPIES)
async def test_no_object_of_a_session_can_be_copied(peer: Peer, way: str) -> None:
    async with opened(peer, read=True, write=True) as (session, queue):
        peer.connection.push(1, 2)
        batch = await queue.receive_many()
        typed = queue.typed(dict)
        live: list[object] = [bmq.connect(peer.uri), session, queue, queue.subscribe("a == 1"), batch]
        live += [batch[0], typed, typed.subscribe("a == 1"), queue.group("a")]
        for each in (*live, bmq.App(peer.uri), bmq.broker.Broker()):
            with pytest.raises(bmq.UsageError, match="cannot be copied or pickled") as refused:
                COPIES[way](each)
            assert "\n" not in str(refused.value)
            assert type(each).__name__ in str(refused.value)
        del refused
        gc.collect()
        await queue.post(b"1")  # the original is as before


def test_no_object_of_a_blocking_session_can_be_copied(bmq_background_broker: BackgroundBroker) -> None:
    with bmq.blocking.connect(bmq_background_broker.uri) as session:
        queue = session.open_queue(URI, read=True, write=True)
        posted = queue.post_nowait(b"1")
        message = queue.receive(timeout=10)
        consumer, typed = queue.subscribe("a == 1"), queue.typed(dict)
        for each in (session, queue, posted, message, consumer, typed, bmq_background_broker):
            for copied in COPIES.values():
                with pytest.raises(bmq.UsageError, match="cannot be copied or pickled"):
                    copied(each)
        gc.collect()
        queue.post(b"2")


async def test_a_session_that_was_not_awaited_says_so(peer: Peer) -> None:
    connecting: Any = bmq.connect(peer.uri)
    with pytest.raises(bmq.UsageError, match=r"use 'async with bmq.connect\(...\) as session' or"):
        _ = connecting.open_queue
    with pytest.raises(AttributeError, match="no attribute 'something'"):
        _ = connecting.something


async def test_with_and_for_name_their_asynchronous_forms(peer: Peer) -> None:
    connecting: Any = bmq.connect(peer.uri)
    with pytest.raises(bmq.UsageError, match="use 'async with'"), connecting:
        pass
    async with bmq.connect(peer.uri) as session:
        queue: Any = await session.open_queue(URI, read=True)
        consumer: Any = queue.subscribe("a == 1")
        typed = queue.typed(dict)
        values = typed.subscribe("a == 1")
        loops: list[Any] = [queue, consumer, typed, values, queue.group("a"), aiter(queue), aiter(typed)]
        loops += [each.batches() for each in (queue, consumer, typed, values)] + [session.events()]
        for each in loops:
            with pytest.raises(bmq.UsageError, match="use 'async for'"):
                list(each)
        admin, app = bmq.admin.connect(peer.uri), bmq.App(peer.uri)
        for other in (connecting, session, admin, app, bmq.broker.Broker()):
            with pytest.raises(bmq.UsageError, match="use 'async with'"):
                list(other)
        for each in (session, queue, consumer):
            with pytest.raises(bmq.UsageError, match="use 'async with'"), each:
                pass


@sweep(
    "entry",
    [
        lambda: bmq.connect("tcp://localhost:1")._start(),
        lambda: bmq.admin.connect("tcp://localhost:1").__aenter__(),
        lambda: bmq.App("tcp://localhost:1").__aenter__(),
        lambda: FaultProxy("tcp://localhost:1").start(),
        bmq.broker.Broker().start,
    ],
)
def test_another_kind_of_event_loop_is_named(entry: Callable[[], Any]) -> None:
    """As under trio, whose event loop drives coroutines without asyncio."""
    with pytest.raises(bmq.UsageError, match=r"no event loop of asyncio is running here.*trio"):
        entry().send(None)


#: Replaces the threads of Python, as gevent 26.9 and eventlet 0.41 do.
PATCHED = """
import _thread, asyncio
start = _thread.start_new_thread
def start_new_thread(*args, **kwargs): return start(*args, **kwargs)
def patch(): _thread.start_new_thread = start_new_thread
start_new_thread.__module__ = "{package}.thread"
def attempt(function):
    try: print(function())
    except Exception as error: print(f"{{type(error).__name__}} {{error}}")
{program}
"""


def patched(package: str, program: str) -> str:
    """Run a program that replaces the threads of Python, and return the output."""
    text = PATCHED.format(package=package, program=program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


BLOCKING = ["bmq.blocking.connect('tcp://localhost:1')", "bmq.testing.BackgroundBroker().start()"]


@pytest.mark.parametrize("package", ["gevent", "eventlet"])
@sweep("start", [*BLOCKING, "bmq.run(asyncio.sleep(0))"])
def test_replaced_threads_have_one_event_loop(package: str, start: str) -> None:
    program = f"""
patch()
import bmq, bmq.blocking, bmq.testing
async def main(): attempt(lambda: {start})
asyncio.run(main())
"""
    said = f"UsageError {package} has replaced the threads of Python, and an event loop"
    assert patched(package, program).startswith(said)


@pytest.mark.parametrize("package", ["gevent", "eventlet"])
@sweep("start", BLOCKING)
def test_threads_replaced_after_the_import_are_named(package: str, start: str) -> None:
    program = f"import bmq, bmq.blocking, bmq.testing; patch(); attempt(lambda: {start})"
    said = f"UsageError {package} replaced the threads of Python after bmq was imported"
    assert patched(package, program).startswith(said)


async def test_a_property_that_no_expression_can_read_is_noted_once(peer: Peer) -> None:
    async with opened(peer, write=True) as (_, queue):
        name = f"Order-Type-{uuid.uuid4()}"
        with pytest.warns(bmq.ExpressionWarning, match=f"can read the property '{name}'") as noted:
            await queue.post_many([bmq.PutMessage(b"1", {name: 1})] * 3)
        await queue.post(b"1", properties={name: 1})
        assert len(noted) == 1
