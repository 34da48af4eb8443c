# SPDX-License-Identifier: Apache-2.0
"""The console and the nodes of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from bmq.console import Console
from tests.console.conftest import Serve
from tests.fakes.cluster import DOMAIN, ORDERS, OTHER, RecordedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RecordedCluster]:
    with RecordedCluster() as cluster:
        yield cluster


async def _live(http: aiohttp.ClientSession, console: Console) -> dict[str, Any]:
    """Return the first line with figures or trouble."""
    async with http.get(console.url + "api/live") as response:
        while True:
            line: dict[str, Any] = json.loads(await response.content.readline())
            if line["error"] != "not yet queried":
                return line


async def test_figures_come_from_the_primary(
    serve: Serve, http: aiohttp.ClientSession, cluster: RecordedCluster
) -> None:
    console = await serve(cluster.uris("proxy", "node1", "node0"))
    live = await _live(http, console)
    assert (live["error"], live["gap"]) == ("", "")
    assert {each["uri"]: (each["messages"], each["consumers"]) for each in live["queues"]} == {
        ORDERS: (6, 1),
        OTHER: (3, 0),
    }
    async with http.get(console.url + "api/queue", params={"uri": ORDERS}) as response:
        words = (await response.json())["words"]
    assert "1 client has it open" in words[0]
    assert "behind node2" in words[1]


async def test_an_empty_queue_stays_in_the_list(
    serve: Serve, http: aiohttp.ClientSession, cluster: RecordedCluster
) -> None:
    # A real broker leaves empty queues out of the contents of a domain.
    changed = []
    for name in ("node0", "node1", "node2"):
        answer = cluster[name].answers[f"DOMAINS DOMAIN {DOMAIN} INFOS"]
        content = answer["domainInfo"]["capacityMeter"], answer["domainInfo"]["storageContent"]
        changed.append((content[1], content[1]["storages"]))
        content[1]["storages"] = [each for each in content[1]["storages"] if each["queueUri"] != OTHER]
    live = await _live(http, await serve(cluster.uris("node0", "node1", "node2")))
    for content, storages in changed:
        content["storages"] = storages
    figures = {each["uri"]: each for each in live["queues"]}
    assert (figures[ORDERS]["messages"], figures[ORDERS]["mode"]) == (6, "priority")
    assert (figures[OTHER]["messages"], figures[OTHER]["mode"]) == (0, "priority")


async def test_the_page_shows_that_figures_cover_one_node(
    serve: Serve, http: aiohttp.ClientSession, cluster: RecordedCluster
) -> None:
    console = await serve(cluster.uris("node1"))
    assert "node0 is the primary of some queues" in (await _live(http, console))["gap"]
    async with http.get(console.url + "api/queue", params={"uri": ORDERS}) as response:
        words = (await response.json())["words"]
    assert words[0].startswith("node1 is not the primary of this queue (node0 is)")
    body = {"uri": ORDERS, "properties": []}
    async with http.post(console.url + "api/route", json=body) as response:
        assert response.status == 409
        assert "node0 is" in (await response.json())["error"]


async def test_contents_are_not_taken_where_readers_elsewhere_are_unknown(
    serve: Serve, http: aiohttp.ClientSession, cluster: RecordedCluster
) -> None:
    console = await serve(cluster.uris("node1"))
    body = {"uri": OTHER, "app": "", "guids": ["40000000000001AB61F733AC52BFF885"]}
    async with http.post(console.url + "api/contents", json=body) as response:
        assert response.status == 409
        assert "node1 is not the primary" in (await response.json())["error"]
