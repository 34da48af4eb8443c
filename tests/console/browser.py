# SPDX-License-Identifier: Apache-2.0
"""The page in a headless Chromium: run by ``make browser``, if installed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

import bmq
from bmq.console import Console, Embedded, RemoteBroker
from tests.console.chromium import Page, browse

ORDERS = "bmq://bmq.test.mem.priority/orders"
PRICES = "bmq://bmq.test.mem.fanout/prices"
SCRIPT = "<img src=x onerror=alert(1)>"
AXE = Path(os.environ.get("BMQ_AXE", "build/axe/package/axe.min.js"))
At = Callable[[str], str]


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with browse() as page:
        await page.size(1280, 900)
        yield page


@pytest.fixture
async def console(broker: bmq.broker.Broker) -> AsyncIterator[Console]:
    async with Console(Embedded(broker), interval=0.1) as console:
        yield console


def at(console: Console, uri: str) -> str:
    return f"{console.url}#/queue/{quote(uri, safe='')}"


def said(text: str) -> str:
    return f"document.body.innerText.includes({text!r})"


async def accessible(page: Page) -> None:
    """Check the rules of accessibility, in light and dark; ``make browser`` fetches axe-core."""
    source = await asyncio.to_thread(AXE.read_text)
    await page.js(source + ";0")
    found = "found.violations.map((each) => [each.id, each.nodes.map((node) => node.html)])"
    for scheme in ("light", "dark"):
        await page.scheme(scheme)
        assert await page.js(f"axe.run(document).then((found) => {found})") == []


async def test_queues_as_they_change(page: Page, console: Console, session: bmq.Session) -> None:
    await page.open(console.url)
    await page.until(said("This broker has no queues yet"))
    queue = await session.open_queue(ORDERS, write=True)
    await queue.post_many([b"order"] * 1234)
    await page.until("document.querySelector('#queues tbody tr td:nth-child(2)')?.innerText === '1,234'")
    await page.until("document.querySelector('#queues path.line.depth').getAttribute('d').includes('L')")
    other = await session.open_queue(PRICES, write=True)
    await other.post(b"17")
    await page.until("document.querySelectorAll('#queues tbody tr').length === 2")
    names = "[...document.querySelectorAll('#queues td a')].map((each) => each.innerText).join()"
    await page.until(f"{names} === 'prices,orders'")  # the same problem, once both have been asked about
    await page.click("[data-sort=messages]")
    await page.until(f"{names} === 'orders,prices'")
    await page.type("#filter", "fanout")
    await page.until(f"{names} === 'prices'")
    await page.click("#queues td a")
    await page.until(said("Application foo has no consumers"))
    await page.until(said("foo (1)"))
    assert page.complaints == []
    assert {urlsplit(url).netloc for url in page.asked_for} == {urlsplit(console.url).netloc}


async def test_the_page_shows_the_content_of_messages(
    page: Page, console: Console, session: bmq.Session
) -> None:
    queue = await session.open_queue(ORDERS, write=True)
    await queue.post(b'{"id":123456789012345678901,"a":[1,{}]}', properties={"big": 2**62 + 1})
    await queue.post(SCRIPT.encode(), properties={"name": SCRIPT})
    await queue.post(bytes(range(256)))
    await queue.post_many([b"more"] * 30)
    await page.open(at(console, ORDERS))
    await page.until(said("0 – 24 of 33"))
    await page.click("#look")
    await page.until(said("123456789012345678901"))
    shown = await page.js("[...document.querySelectorAll('.inside pre')].map((each) => each.innerText)")
    assert shown[0] == '{\n  "id": 123456789012345678901,\n  "a": [\n    1,\n    {}\n  ]\n}'
    assert shown[1] == SCRIPT
    assert shown[2].startswith("000000  00 01 02")
    assert len(shown) == 25
    text = await page.text()
    assert "4611686018427387905" in text
    assert text.count(SCRIPT) == 2
    await page.click(".inside .segments button:nth-child(3)")
    await page.until("document.querySelector('.inside pre').innerText.startsWith('000000  7b 22 69 64')")
    await page.click("#messages .pager button:last-child")
    await page.until(said("25 – 32 of 33"))
    assert page.complaints == []


async def test_consumers_and_the_routing_table(page: Page, console: Console, session: bmq.Session) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    slow = await queue.subscribe("CustomerId >= 1000", priority=5, max_unconfirmed_messages=1).open()
    await queue.subscribe('OrderType == "EXPRESS"', priority=10).open()
    for _ in range(2):
        await queue.post(b"o", properties={"CustomerId": 1234})
    await slow.receive(20)
    await page.open(at(console, ORDERS))
    await page.until(said("1 of 1 (full)"))
    rows = "[...document.querySelectorAll('#routing tbody tr')].map((each) => each.innerText)"
    first, second = await page.js(rows)
    assert "EXPRESS" in first
    assert "CustomerId >= 1000" in second
    assert "shop" in await page.js("document.querySelector('#clients tbody').innerText")
    await page.click("#routing .property, #routing div > button")
    await page.until("document.querySelector('#routing .property')")
    await page.type("#routing .property input", "CustomerId")
    await page.js("document.querySelector('#routing .property select').value = 'int64'")
    await page.type("#routing .property input:nth-of-type(2)", "2000")
    await page.click("#try")
    await page.until(said("The message waits: the matching consumers are full"))
    assert page.complaints == []


async def test_the_page_posts_a_message(
    page: Page, console: Console, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    await session.open_queue(ORDERS, write=True)
    await page.open(at(console, ORDERS))
    await page.click("#post")
    await page.type("#posting textarea", '{"id": 7')
    await page.click("#posting input[value=json]")
    await page.click("#posting .primary")
    await page.until(said("This is not JSON"))
    await page.type("#posting textarea", "}")
    await page.click("#posting .properties button")
    await page.type("#posting .property input", "CustomerId")
    await page.type("#posting .property input:nth-of-type(2)", "grün")
    await page.click("#posting .primary")
    await page.until(said("Accepted: "))
    (stored,) = broker.queues[ORDERS].messages
    assert (stored.payload, dict(stored.properties)) == (b'{"id": 7}', {"CustomerId": "grün"})
    assert stored.guid in await page.text()
    await page.click("#posting [data-close]")
    await page.until(f"document.querySelector('td.guid')?.innerText === {stored.guid!r}")
    assert page.complaints == []


async def test_the_page_asks_before_purging(
    page: Page, console: Console, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    queue = await session.open_queue(PRICES, write=True)
    await queue.post_many([b"17"] * 3)
    await page.open(at(console, PRICES))
    await page.until(said("bar (3)"))
    await page.js(
        "[...document.querySelectorAll('.segments button')].find((b) => b.innerText === 'bar (3)').click()"
    )
    await page.click("#purge")
    await page.until(said("Delete 3 messages?"))
    assert f"{PRICES} for the application bar" in await page.text()
    await page.click("#asking [data-close]")
    await page.until("!document.querySelector('#asking').open")
    assert broker.queues[PRICES].apps["bar"].pending == 3
    await page.click("#purge")
    await page.click("#asking .danger")
    await page.until(said("3 deleted"))
    assert {name: app.pending for name, app in broker.queues[PRICES].apps.items()} == {
        "foo": 3,
        "bar": 0,
        "baz": 3,
    }
    assert page.complaints == []


async def test_the_page_reports_a_lost_broker(
    page: Page, console: Console, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    await (await session.open_queue(ORDERS, write=True)).post(b"order")
    await session.close()
    await page.open(console.url)
    await page.until("document.querySelector('#queues tbody tr')")
    await broker.stop()
    await page.until(said("No answer from the broker, trying again"))
    assert await page.js("document.querySelectorAll('#queues tbody tr').length") == 1
    await broker.start()
    await page.until("document.querySelector('#banner').hidden")


async def test_page_asks_before_taking_messages(
    page: Page, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    queue = await session.open_queue(ORDERS, write=True)
    await queue.post(b"order 66")
    async with Console(RemoteBroker(broker.uri), interval=0.1) as console:
        await page.open(at(console, ORDERS))
        await page.until("document.querySelector('td.guid')")
        await page.click("#look")
        await page.until(said("Take these messages for a moment?"))
        assert broker.queues[ORDERS].pushed == 0
        await page.click("#asking .danger")
        await page.until(said("order 66"))
    assert len(broker.queues[ORDERS]) == 1
    assert broker.queues[ORDERS].unconfirmed == 0


@pytest.mark.parametrize("width", [390, 800, 1280])
async def test_light_and_dark_at_every_width(
    page: Page, console: Console, session: bmq.Session, width: int
) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    await queue.subscribe("CustomerId >= 1000 && exists(OrderType)", priority=5).open()
    await queue.post(b"o" * 300, properties={"CustomerId": 1})
    await page.size(width, 900)
    for url in (console.url, at(console, ORDERS)):
        await page.open(url)
        await page.until("document.querySelector('#queues tbody tr')")
        await page.until("location.hash.includes('queue') ? document.querySelector('td.guid') : true")
        assert await page.js("document.documentElement.scrollWidth") <= width
    grounds = []
    for scheme in ("light", "dark"):
        await page.scheme(scheme)
        grounds.append(await page.js("getComputedStyle(document.documentElement).backgroundColor"))
    await page.click("#theme")  # from auto to light, whatever the system says
    grounds.append(await page.js("getComputedStyle(document.documentElement).backgroundColor"))
    assert grounds[0] == grounds[2] != grounds[1]


async def test_problems_links_and_keys(page: Page, console: Console, session: bmq.Session) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    await queue.subscribe("CustomerId >= 1000").open()
    await queue.post(b"x", properties={"CustomerId": 7})
    await (await session.open_queue(PRICES, write=True)).post(b"17")
    await page.open(console.url)
    await page.until("document.querySelectorAll('#queues tbody .badge.critical').length === 2")
    await accessible(page)
    await page.click("#problems button")
    await page.until("document.querySelectorAll('#queues tbody tr').length === 1")
    assert await page.js("location.hash") == "#/?only=unmatched"
    link = await page.js("location.href")
    await page.open("about:blank")
    await page.open(link)
    await page.until("document.querySelectorAll('#queues tbody tr').length === 1")
    for key, text in (("j", "j"), ("Enter", "\r")):
        await page.press(key, text)
    await page.until(said("Critical: Nothing matches"))
    await page.until(said("What to do:"))
    await accessible(page)
    await page.press("c", "c")
    await page.until(said("The cluster is healthy"))
    await accessible(page)
    assert page.complaints == []


async def test_a_dead_letter_is_posted_again(
    page: Page, console: Console, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    dead = await session.open_queue(f"{ORDERS}.dead", write=True)
    properties = {"bmq_dead_queue": ORDERS, "bmq_dead_guid": "0" * 32, "bmq_dead_error": SCRIPT}
    await dead.post(b"order", properties=properties)
    await page.open(at(console, f"{ORDERS}.dead"))
    await page.until(said(f"from orders: {SCRIPT}"))
    await page.click("td > button.quiet")
    await page.click("button.edit")
    await page.type("#posting textarea", " 66")
    await page.click("#posting .primary")
    await page.until(said("the dead letter is deleted"))
    (stored,) = broker.queues[ORDERS].messages
    assert stored.payload == b"order 66"
    assert len(broker.queues[f"{ORDERS}.dead"]) == 0
    assert page.complaints == []


async def test_all_dead_letters_are_posted_again_until_the_first_failure(
    page: Page, console: Console, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    dead = await session.open_queue(f"{ORDERS}.dead", write=True)
    for number, origin in enumerate((ORDERS, ORDERS, ORDERS, "bmq://no.such.domain/orders")):
        properties = {"bmq_dead_queue": origin, "bmq_dead_guid": f"{number + 1:032X}", "bmq_dead_error": "e"}
        await dead.post(b"%d" % number, properties=properties)
    await page.open(at(console, f"{ORDERS}.dead"))
    await page.until("document.querySelector('#whole')?.innerText === 'Post all again (4)'")
    await accessible(page)
    await page.click("#whole")
    await page.until(said("Post all again: 4 dead letters?"))
    assert len(broker.queues[f"{ORDERS}.dead"]) == 4, "the page asks first"
    await page.click("#asking .danger")
    await page.until(said("Stopped at message 4 of 4"))
    assert "3 dead letters posted again before; the others are unchanged" in await page.text()
    assert [each.payload for each in broker.queues[ORDERS].messages] == [b"0", b"1", b"2"]
    assert len(broker.queues[f"{ORDERS}.dead"]) == 1
    await page.size(390, 900)
    assert await page.js("document.documentElement.scrollWidth") <= 390


async def test_the_page_reports_a_lost_console(page: Page, broker: bmq.broker.Broker) -> None:
    first = Console(Embedded(broker), interval=0.1)
    async with first:
        await page.open(first.url)
        await page.until("document.querySelector('#status.up')")
    await page.until("document.querySelector('#status.down')")
    async with Console(Embedded(broker), interval=0.1, port=urlsplit(first.url).port or 0):
        await page.until("document.querySelector('#status.up')")


async def test_the_page_works_with_a_token(page: Page, broker: bmq.broker.Broker) -> None:
    async with Console(Embedded(broker), host="0.0.0.0", interval=0.1) as console:
        url = console.url.replace("0.0.0.0", "127.0.0.1")
        await page.open(url.partition("#")[0])
        await page.until(said("the request needs a token"))
        await page.open("about:blank")
        await page.open(url)
        await page.until("document.querySelector('#status.up')")
        assert "token" not in await page.js("location.href")
