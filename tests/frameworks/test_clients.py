# SPDX-License-Identifier: Apache-2.0
"""The services of docs/guides/frameworks.md under the frameworks' own test clients, without a broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.test_servers import MODULE, PAGE, ROOT, SHOWN

(SUITE,) = re.findall(r"^## Tests\n.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
WITH_CLIENT = """\
        with TestClient(api) as client:  # runs the lifespan
            answer = client.post("/orders", json=order)
        assert answer.status_code == 202
"""
HANDLER = "@pytest.mark.asyncio\nasync def test_an_order_is_shipped"

AIOHTTP = """\
import pytest
from aiohttp.test_utils import TestClient, TestServer
from orders import ORDERS, SHIPPED, Order, worker
from service import api

from bmq.testing import BackgroundBroker, TestApp


@pytest.mark.asyncio
async def test_an_order_is_in_the_queue_before_the_response(monkeypatch):
    with BackgroundBroker(posts_kept=100) as broker:
        monkeypatch.setenv("BMQ_BROKER_URI", broker.uri)
        async with TestClient(TestServer(api)) as client:
            answer = await client.post("/orders", json={"number": 17, "address": "1 Main Street"})
            assert answer.status == 202
        broker.call(lambda inner: inner.assert_posted(ORDERS, count=1))


"""

DJANGO = """\
import django
import pytest
import service
from orders import ORDERS, SHIPPED, Order, worker

from bmq.testing import BackgroundBroker, TestApp

django.setup()


@pytest.mark.asyncio
async def test_an_order_is_in_the_queue_before_the_response(monkeypatch):
    from django.test import AsyncClient

    with BackgroundBroker(posts_kept=100) as broker:
        monkeypatch.setenv("BMQ_BROKER_URI", broker.uri)
        async with worker:
            order = {"number": 17, "address": "1 Main Street"}
            answer = await AsyncClient().post("/orders", order, content_type="application/json")
            assert answer.status_code == 202
        broker.call(lambda inner: inner.assert_posted(ORDERS, count=1))


"""


def suite(framework: str) -> str:
    """The page's tests, with the client of the framework."""
    if framework == "aiohttp":
        return AIOHTTP + SUITE[SUITE.index(HANDLER) :]
    if framework == "Django":
        return DJANGO + SUITE[SUITE.index(HANDLER) :]
    if framework == "Flask":
        assert WITH_CLIENT in SUITE
        with_client = WITH_CLIENT.replace(
            "with TestClient(api) as client", "with api.test_client() as client"
        )
        made = SUITE.replace(WITH_CLIENT, with_client)
        return made.replace("from fastapi.testclient import TestClient\n", "")
    module = "litestar.testing" if framework == "Litestar" else f"{framework.lower()}.testclient"
    return SUITE.replace("fastapi.testclient", module)


@pytest.mark.parametrize("framework", SHOWN)
def test_the_suite_of_the_page_passes_with_the_client_of_the_framework(
    framework: str, tmp_path: Path
) -> None:
    (tmp_path / "orders.py").write_text(MODULE)
    (tmp_path / "service.py").write_text(SHOWN[framework])
    (tmp_path / "test_service.py").write_text(suite(framework))
    environment = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
