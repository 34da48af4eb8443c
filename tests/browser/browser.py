# SPDX-License-Identifier: Apache-2.0
"""The site with Python in it, in a headless Chromium: run by ``make browser``, which builds the site."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.browser import ROOT
from tests.console.chromium import Page, browse

SITE = ROOT / "site"
LOADED = 120  # seconds for Pyodide, on a busy machine


@pytest.fixture
async def site() -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_static("/", SITE)
    runner = web.AppRunner(application)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with browse() as page:
        await page.size(1280, 1000)
        yield page


async def test_the_playground(page: Page, site: str) -> None:
    await page.open(f"{site}start/playground.html")
    await page.click("#playground button")
    await page.until("Number(document.querySelector('.books td')?.textContent) > 5", LOADED)
    await page.click('[aria-label="cut the link of the bar"]')
    await page.until("document.querySelector('[aria-label=bar]').dataset.state === 'reconnecting'", 60)
    await page.click('[aria-label="repair the link of the bar"]')
    await page.click('[aria-label="Kill the broker"]')
    await page.until("document.querySelector('[aria-label=shop]').dataset.state === 'reconnecting'", 60)
    await page.click('[aria-label="Start the broker"]')
    await page.click(".controls input[type=checkbox]")
    await page.until("document.querySelector('.verdict').textContent.includes('none lost')", 60)
    await page.size(390, 1600)
    await page.until("document.documentElement.scrollWidth <= 390")
    assert not page.complaints
    assert all(url.startswith((site, "data:")) for url in page.asked_for)


async def test_a_program_of_the_tutorial(page: Page, site: str) -> None:
    await page.open(f"{site}start/tutorial/1-a-message.html")
    await page.until("document.querySelectorAll('.bmq-run button').length === 2")
    assert not any(url.endswith(".wasm") for url in page.asked_for)  # loaded by the first click only
    await page.click(".bmq-run button")
    await page.until("document.querySelector('.bmq-run + pre').textContent.includes('ordered cake')", LOADED)
    await page.js("document.querySelectorAll('.bmq-run button')[1].click()")
    await page.until("document.querySelectorAll('.bmq-run + pre')[1].textContent.includes('booked cake')", 60)
    await page.js("document.querySelectorAll('.bmq-run button')[1].click()")
    await page.until("document.querySelectorAll('.bmq-run [role=status]')[1].textContent === 'ended'", 60)
    assert not page.complaints
