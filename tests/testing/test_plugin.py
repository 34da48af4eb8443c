# SPDX-License-Identifier: Apache-2.0
"""The fixtures, in a user's test suite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.broker import Broker
from bmq.testing import BackgroundBroker, FaultProxy, fresh_queue_uri
from tests.sweeps import sweep

ROOT = Path(__file__).parents[2]

#: Runs pytest as if pytest-asyncio were not installed.
WITHOUT_ASYNCIO = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pytest_asyncio" else find(name, *rest)
import pytest
sys.exit(pytest.main([*sys.argv[1:], "-p", "no:asyncio"]))
"""


class Suite:
    """A user's suite in a directory of its own, run in a process of its own."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(
        self, code: str, *arguments: str, ini: str = "asyncio_mode = auto", script: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        if ini and "fixture_loop_scope" not in ini:
            ini += "\nasyncio_default_fixture_loop_scope = function"
        (self.directory / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{ini}\n")
        (self.directory / "test_it.py").write_text(code)
        start = ["-c", script] if script else ["-m", "pytest"]
        return subprocess.run(
            [sys.executable, *start, "-q", "-rs", "-p", "no:cacheprovider", *arguments],
            cwd=self.directory, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return Suite(tmp_path, monkeypatch)


ROUND_TRIP = """
import pytest

{mark}
async def test_round_trip(bmq_broker, bmq_session, bmq_queue_uri):
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"x")
    message = await queue.receive(timeout=10)
    assert message.data == b"x"
    message.confirm()
"""


class TestModes:
    @pytest.mark.parametrize(
        ("mark", "ini"),
        [
            ("", "asyncio_mode = auto"),
            ("@pytest.mark.asyncio", "asyncio_mode = strict"),
            *(
                (
                    "",
                    f"asyncio_mode = auto\nasyncio_default_fixture_loop_scope = {scope}\n"
                    f"asyncio_default_test_loop_scope = {scope}",
                )
                for scope in ("module", "session")
            ),
        ],
        ids=["auto", "strict", "module", "session"],
    )
    def test_fixtures_work_in_every_mode(self, suite: Suite, mark: str, ini: str) -> None:
        run = suite.run(ROUND_TRIP.format(mark=mark), ini=ini)
        assert "1 passed" in run.stdout, run.stdout

    def test_fixtures_on_another_loop_than_the_test_are_refused(self, suite: Suite) -> None:
        run = suite.run(ROUND_TRIP.format(mark="@pytest.mark.asyncio(loop_scope='module')"))
        assert run.returncode == 1
        assert "set asyncio_default_fixture_loop_scope = 'module'" in run.stdout

    @pytest.mark.parametrize("how", ["missing", "inactive"])
    def test_missing_pytest_asyncio_is_reported_by_each_test_and_other_tests_run(
        self, suite: Suite, how: str
    ) -> None:
        code = "def test_other(): pass\n" + "".join(
            f"async def test_{number}({fixture}): pass\n"
            for number, fixture in enumerate(("bmq_broker", "bmq_broker", "bmq_session", "bmq_connect"))
        )
        how_run = {"script": WITHOUT_ASYNCIO} if how == "missing" else {}
        run = suite.run(code, "-p", "no:asyncio", ini="", **how_run)
        assert "1 passed, 4 errors" in run.stdout, run.stdout
        assert run.stdout.count("needs the plugin pytest-asyncio, which is not active") == 4
        assert "AssertionError" not in run.stdout

    def test_the_background_broker_needs_no_event_loop(self, suite: Suite) -> None:
        code = (
            "import asyncio, bmq\n\n"
            "def test_it(bmq_background_broker):\n"
            "    async def main():\n"
            "        async with bmq.connect(bmq_background_broker.uri) as session:\n"
            "            queue = await session.open_queue('bmq://bmq.test.mem.priority/q', write=True)\n"
            "            await queue.post(b'x')\n"
            "            return queue.uri\n"
            "    uri = asyncio.run(main())\n"
            "    assert bmq_background_broker.call(lambda broker: broker.posted(uri)[0].payload) == b'x'\n"
        )
        run = suite.run(code, ini="", script=WITHOUT_ASYNCIO)
        assert "1 passed" in run.stdout, run.stdout


class TestNamedBroker:
    def test_fixtures_and_code_under_test_use_the_broker_of_the_environment(
        self, suite: Suite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = ROUND_TRIP.format(mark="") + (
            "    import os\n"
            "    assert bmq_broker.uri == os.environ['BMQ_BROKER_URI']\n"
            "    with pytest.raises(AttributeError, match='unset BMQ_BROKER_URI'):\n"
            "        bmq_broker.restart\n\n"
            "import bmq, os\n\n"
            "async def test_through_the_proxy(bmq_proxy, bmq_session):\n"
            "    async with bmq.connect():\n"
            "        assert bmq_proxy.accepted == 2\n\n"
            "async def test_afterwards(bmq_broker):\n"
            "    assert os.environ['BMQ_BROKER_URI'] == bmq_broker.uri\n"
        )
        with BackgroundBroker() as broker:
            monkeypatch.setenv("BMQ_BROKER_URI", broker.uri)
            run = suite.run(code)
        assert "3 passed" in run.stdout, run.stdout

    def test_unsupported_fixtures_skip_with_a_reason(
        self, suite: Suite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BMQ_BROKER_URI", "tcp://127.0.0.1:1")
        run = suite.run("async def test_it(bmq_domain): pass\n")
        assert "1 skipped" in run.stdout
        assert "creates a domain" in run.stdout


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever BMQ_BROKER_URI says: these tests look into the broker."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


@pytest.mark.usefixtures("embedded")
class TestFixtures:
    async def test_bmq_domain_creates_domains(
        self, bmq_domain: Callable[..., str], bmq_new_queue_uri: Callable[..., str], bmq_session: bmq.Session
    ) -> None:
        domain = bmq_domain("fanout", app_ids=["billing", "audit"], subscriptions={"billing": "paid == 1"})
        uri = bmq_new_queue_uri(domain)
        assert uri.startswith(f"bmq://{domain}/test_bmq_domain_creates_domains")
        writer = await bmq_session.open_queue(uri, write=True)
        billing = await bmq_session.open_queue(f"{uri}?id=billing", read=True)
        audit = await bmq_session.open_queue(f"{uri}?id=audit", read=True)
        await writer.post(b"free")
        await writer.post(b"paid", properties={"paid": 1})
        assert (await billing.receive(timeout=10)).data == b"paid"
        assert [(await audit.receive(timeout=10)).data for _ in range(2)] == [b"free", b"paid"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"mode": "topic"}, "use one of: priority, fanout, broadcast"),
            ({"ttl": 5}, "unknown setting ttl of a domain; known names: .*message_ttl"),
        ],
    )
    async def test_impossible_domains_are_refused(
        self, bmq_domain: Callable[..., str], arguments: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(bmq.UsageError, match=sentence):
            bmq_domain(**arguments)

    async def test_a_session_may_bypass_the_proxy(
        self, bmq_proxy: FaultProxy, bmq_broker: Broker, bmq_connect: Callable[..., Any]
    ) -> None:
        await bmq_connect(bmq_broker.uri)
        assert bmq_proxy.accepted == 0
        await bmq_connect(process_name="other")
        assert bmq_proxy.accepted == 1


class TestOptions:
    @pytest.fixture
    def bmq_broker_options(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
        return {"auth": {"me": "secret"}}

    async def test_the_broker_has_the_users_of_its_options(self, bmq_connect: Callable[..., Any]) -> None:
        with pytest.raises(bmq.AuthenticationError):
            await bmq_connect(credentials=bmq.Credentials("BASIC", b"me:wrong"))


class TestBackgroundBroker:
    def test_background_broker_can_be_restarted_and_not_started_twice(self) -> None:
        broker = BackgroundBroker()
        for _ in range(2):
            broker.start()
            with pytest.raises(bmq.StateError, match="is running"):
                broker.start()
            broker.stop()
            with pytest.raises(bmq.StateError, match="not running"):
                broker.call(lambda inner: inner.uri)
        broker.stop()


@sweep("hint", ["test_x[a-1]", "", "ü", "x" * 300])
def test_queue_names_are_legal_and_different(hint: str) -> None:
    one, two = fresh_queue_uri("d.e", hint), fresh_queue_uri("d.e", hint)
    assert one != two
    assert str(bmq.QueueUri.parse(one)) == one
