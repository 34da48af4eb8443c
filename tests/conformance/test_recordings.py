# SPDX-License-Identifier: Apache-2.0
"""Recordings of conversations, and their replay."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.cli.test_going_on import ended, process

started_as = partial(process, module="conformance")


@asynccontextmanager
async def recording_at(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A command that announces its readiness, and its address."""
    async with started_as(*arguments) as started:
        assert started.stdout is not None
        line = (await asyncio.wait_for(started.stdout.readline(), 60)).decode()
        assert " ready on tcp://" in line
        yield started, line.split()[-1]


@pytest.fixture
def uri() -> Iterator[str]:
    """A broker that runs while the command does."""
    with BackgroundBroker() as broker:
        yield broker.uri


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


async def test_a_recording_can_be_replayed(uri: str, bmq_queue_uri: str, tmp_path: Path) -> None:
    recording = str(tmp_path / "conversation.ndjson")
    async with recording_at("record", recording, "--broker", uri) as (recorder, address):
        async with bmq.connect(address) as session:
            queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
            await queue.post(b"hello", properties={"x": 1})
            async with await queue.receive(60):
                pass
        recorder.send_signal(signal.SIGTERM)
        status, _, err = await ended(recorder)
        assert status == 0
        assert "of 1 connections" in err

    async with process("decode", "--file", recording, "--brief") as decoder:
        status, out, _ = await ended(decoder)
    assert status == 0
    for words in ("clientIdentity", "openQueueResponse", "PUT", "ACK", "PUSH", "CONFIRM", "disconnect"):
        assert words in out

    async with recording_at("replay", recording, "--as", "broker") as (player, address):
        async with bmq.connect(address) as session:
            queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
            ack = await queue.post(b"hello", properties={"x": 1})
            async with await queue.receive(60) as message:
                assert (message.guid, message.data, dict(message.properties)) == (
                    ack.guid,
                    b"hello",
                    {"x": 1},
                )
        status, out, _ = await ended(player)
        assert status == 0
        assert "MISSING" not in out

    async with recording_at("replay", recording, "--as", "broker", "--timeout", "0.5") as (player, address):
        async with bmq.connect(address, reconnect=False) as session:
            await session.close()
        status, out, _ = await ended(player)
        assert status == 1
        assert "MISSING   1 x openQueue" in out


async def test_a_recording_on_a_full_disk_passes_traffic_on(
    uri: str, bmq_queue_uri: str, tmp_path: Path
) -> None:
    """The first failure is told at once, and no client suffers."""
    recording = tmp_path / "conversation.ndjson"
    words = shlex.join([sys.executable, "-m", "conformance", "record", str(recording), "--broker", uri])
    started = await asyncio.create_subprocess_shell(
        f"ulimit -f 32; exec {words}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert started.stdout is not None
    assert started.stderr is not None
    address = (await asyncio.wait_for(started.stdout.readline(), 60)).decode().split()[-1]
    async with bmq.connect(address, reconnect=False) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
        for number in range(40):
            await queue.post(b"x" * 2000, properties={"n": number})
        told = await asyncio.wait_for(started.stderr.readline(), 60)
        assert b"traffic is passed on and not recorded" in told
        for number in range(40):
            async with await queue.receive(60) as message:
                assert message.properties["n"] == number
    started.send_signal(signal.SIGTERM)
    status, _, err = await ended(started)
    assert (status, len(err.splitlines())) == (1, 1), err
    async with process("decode", "--file", str(recording), "--brief") as decoder:
        assert "clientIdentity" in (await ended(decoder))[1]


async def test_recording_is_private_and_ends_on_signal(uri: str, tmp_path: Path) -> None:
    """Recordings contain payloads, and passwords on request. An existing file loses its permissions."""
    recording = tmp_path / "conversation.ndjson"
    before = os.umask(0o022)
    try:
        for number, status, options in ((signal.SIGINT, 130, []), (signal.SIGTERM, 0, ["--force"])):
            async with recording_at("record", str(recording), "--broker", uri, *options) as (recorder, _):
                assert recording.stat().st_mode & 0o777 == 0o600
                recorder.send_signal(number)
                assert (await ended(recorder))[0] == status
            recording.chmod(0o644)
        async with started_as("record", str(recording), "--broker", uri) as refused:
            status, _, err = await ended(refused)
            assert (status, "--force" in err) == (2, True)
    finally:
        os.umask(before)


async def test_replay_plays_the_client(uri: str, bmq_queue_uri: str, tmp_path: Path) -> None:
    recording = str(tmp_path / "conversation.ndjson")
    async with recording_at("record", recording, "--broker", uri) as (recorder, address):
        async with bmq.connect(address) as session:
            queue = await session.open_queue(bmq_queue_uri, write=True)
            await queue.post(b"hello")
        recorder.send_signal(signal.SIGTERM)
        await ended(recorder)
    async with started_as("replay", recording, "--broker", uri) as player:
        status, out, _ = await ended(player)
    assert status == 0
    assert "expected  1 x ACK" in out
    async with started_as("replay", recording, "--broker", uri, "--connection", "7") as player:
        status, _, err = await ended(player)
    assert status == 2
    assert "its connections: 1" in err


async def test_recording_has_no_credentials_by_default(tmp_path: Path) -> None:
    async with bmq.broker.Broker(auth={"operator": "open sesame"}) as broker:
        for option, there in ([], False), (["--with-credentials", "--force"], True):
            recording = tmp_path / "conversation.ndjson"
            async with recording_at("record", str(recording), "--broker", broker.uri, *option) as (
                recorder,
                address,
            ):
                credentials = bmq.Credentials.basic("operator", "open sesame")
                async with bmq.connect(address, credentials=credentials):
                    pass
                recorder.send_signal(signal.SIGTERM)
                assert (await ended(recorder))[0] == 0
            # The password travels as base64 in JSON, and the recording has that as hexadecimal digits.
            assert (b"operator:open sesame".hex() in _unpacked(recording)) is there
        async with started_as("record", str(recording), "--broker", broker.uri) as recorder:
            status, _, err = await ended(recorder)
            assert status == 2
            assert "--force" in err


def _unpacked(recording: Path) -> str:
    found = ""
    for line in recording.read_text().splitlines():
        data = bytes.fromhex(json.loads(line).get("hex", ""))
        if b'"data":"' in data:
            found += base64.b64decode(data.partition(b'"data":"')[2].partition(b'"')[0]).hex()
    return found
