# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: a broker, sessions and a proxy for each test.

pytest loads the plugin automatically if bmq is installed. Fixtures with an event loop work with
pytest-asyncio, in both of its modes; :func:`bmq_background_broker` works without. If the environment variable
BMQ_BROKER_URI names a broker, the fixtures use the named broker instead of an embedded broker.

=========================  ============================================================================
``bmq_broker``             a broker: embedded and new, or the broker in BMQ_BROKER_URI
``bmq_broker_options``     override it to return keyword arguments for :class:`bmq.broker.Broker`
``bmq_connect``            ``await bmq_connect(**options)`` makes a session, closed after the test
``bmq_session``            a session with the broker
``bmq_queue_uri``          the URI of a queue for this test alone, in ``bmq.test.mem.priority``
``bmq_new_queue_uri``      ``bmq_new_queue_uri(domain)`` makes more URIs, in any domain
``bmq_domain``             ``bmq_domain(mode, **settings)`` makes a domain and returns its name
``bmq_proxy``              a fault-injecting proxy in front of the broker, used by sessions
``bmq_background_broker``  an embedded broker on a separate thread, for tests without an event loop
``bmq_simulation``         a simulation; the test runs for 20 seeds: ``@pytest.mark.bmq_seeds(100)``
=========================  ============================================================================
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

# Nothing else here: every run of pytest imports this module.
if TYPE_CHECKING:
    from bmq.broker import Broker
    from bmq.client.session import Session
    from bmq.testing._background import BackgroundBroker
    from bmq.testing._proxy import FaultProxy
    from bmq.testing._simulation import Simulation

_VARIABLE = "BMQ_BROKER_URI"
_DOMAIN = "bmq.test.mem.priority"
_POSTS_KEPT = 10_000
#: The numbers of the domains of ``bmq_domain``, in the whole run: brokers may be shared by tests.
_domain_numbers = itertools.count(1)
_SEEDS = 20
#: The names of the fixtures that need an event loop.
_async_names: set[str] = set()


def _async_fixture(function: Callable[..., Any]) -> Any:
    """Make a fixture of an async generator; without pytest-asyncio, no test gets as far as the fixture."""
    _async_names.add(function.__name__)
    if importlib.util.find_spec("pytest_asyncio") is not None:
        import pytest_asyncio

        return pytest_asyncio.fixture(function)
    return pytest.fixture(function)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Explain to each test with an async fixture that pytest-asyncio is missing or inactive."""
    needed = sorted(_async_names.intersection(getattr(item, "fixturenames", ())))
    active = sys.modules.get("pytest_asyncio.plugin")
    if needed and (active is None or not item.config.pluginmanager.is_registered(active)):
        pytest.fail(
            f"{needed[0]} needs the plugin pytest-asyncio, which is not active: pip install pytest-asyncio, "
            "and run without -p no:asyncio (or use bmq_background_broker, which needs no event loop)",
            pytrace=False,
        )


def _check_loop(request: pytest.FixtureRequest) -> None:
    """Refuse a test on another event loop than its fixtures: the test would wait for ever."""
    marker = request.node.get_closest_marker("asyncio")
    if marker is None:
        return
    own = marker.kwargs.get("loop_scope") or request.config.getini("asyncio_default_test_loop_scope")
    fixtures = request.config.getini("asyncio_default_fixture_loop_scope") or "function"
    if own != fixtures and fixtures != "fixture-scope":
        pytest.fail(
            f"this test runs on the event loop of its {own}, and {request.fixturename} runs on the loop of "
            f"the {fixtures}: set asyncio_default_fixture_loop_scope = {own!r}",
            pytrace=False,
        )


class NamedBroker:
    """The broker in BMQ_BROKER_URI: only an address.

    Attributes:
        uri: the address for clients.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"bmq_broker is the broker named by {_VARIABLE}, at {self.uri}; only an embedded broker has "
            f"{name!r}: unset {_VARIABLE}, or skip this test"
        )


@pytest.fixture
def bmq_broker_options() -> Mapping[str, Any]:
    """Keyword arguments for the embedded broker; override the fixture in a module or a conftest.py."""
    return {}


@_async_fixture
async def bmq_broker(
    request: pytest.FixtureRequest, bmq_broker_options: Mapping[str, Any]
) -> AsyncIterator[Broker | NamedBroker]:
    """A broker: embedded and new for this test, or the broker in BMQ_BROKER_URI."""
    _check_loop(request)
    named = os.environ.get(_VARIABLE)
    if named:
        if bmq_broker_options:
            pytest.skip(
                f"needs a broker with {', '.join(bmq_broker_options)}, and {_VARIABLE} names another broker"
            )
        yield NamedBroker(named)
        return
    from bmq.broker import Broker

    options: dict[str, Any] = {"posts_kept": _POSTS_KEPT, **bmq_broker_options}
    async with Broker(**options) as broker:
        yield broker


@_async_fixture
async def bmq_proxy(
    bmq_broker: Broker | NamedBroker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FaultProxy]:
    """A fault-injecting proxy in front of the broker, used by ``bmq_session`` and ``bmq_connect``."""
    from bmq.testing._proxy import FaultProxy

    async with FaultProxy(bmq_broker.uri) as proxy:
        if os.environ.get(_VARIABLE):
            # The variable would take the place of missing addresses, also in the code under test.
            monkeypatch.setenv(_VARIABLE, proxy.uri)
        yield proxy


@pytest.fixture
def _bmq_entrance(request: pytest.FixtureRequest) -> Broker | NamedBroker | FaultProxy:
    """The proxy, or without one the broker: a fixture with a coroutine cannot ask for another fixture."""
    proxied = "bmq_proxy" in request.fixturenames
    entrance: Broker | NamedBroker | FaultProxy = request.getfixturevalue(
        "bmq_proxy" if proxied else "bmq_broker"
    )
    return entrance


@_async_fixture
async def bmq_connect(
    _bmq_entrance: Broker | NamedBroker | FaultProxy,
) -> AsyncIterator[Callable[..., Awaitable[Session]]]:
    """Make sessions: ``await bmq_connect(**options)``; each is closed after the test.

    The address may be the first argument. The default is the proxy's address if the test uses ``bmq_proxy``,
    otherwise the broker's.
    """
    from bmq.client.connect import connect

    sessions: list[Session] = []

    async def open_session(uri: str | None = None, **options: Any) -> Session:
        session = await connect(uri or _bmq_entrance.uri, **options)
        sessions.append(session)
        return session

    yield open_session
    for session in reversed(sessions):
        await session.close()


@_async_fixture
async def bmq_session(bmq_connect: Callable[..., Awaitable[Session]]) -> AsyncIterator[Session]:
    """A session with the broker, through the proxy if the test uses ``bmq_proxy``."""
    yield await bmq_connect()


@pytest.fixture
def bmq_new_queue_uri(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Make URIs of queues for this test alone: ``bmq_new_queue_uri(domain)``."""
    from bmq.testing._names import fresh_queue_uri

    def new(domain: str = _DOMAIN) -> str:
        return fresh_queue_uri(domain, request.node.name)

    return new


@pytest.fixture
def bmq_queue_uri(bmq_new_queue_uri: Callable[..., str]) -> str:
    """The URI of a queue for this test alone, in ``bmq.test.mem.priority``."""
    return bmq_new_queue_uri()


@pytest.fixture
def bmq_domain(bmq_broker: Broker | NamedBroker) -> Callable[..., str]:
    """Make domains: ``bmq_domain("fanout", app_ids=["billing"], message_ttl=60)`` returns a name.

    The mode is "priority", "fanout" or "broadcast". The settings are fields of
    :class:`bmq.broker.DomainConfig`, by default as in ``bmq.test.mem.<mode>``. The broker in BMQ_BROKER_URI
    takes no new domains: the test is skipped.
    """
    if isinstance(bmq_broker, NamedBroker):
        pytest.skip(f"creates a domain, which is impossible with the broker named by {_VARIABLE}")
    broker = bmq_broker
    from bmq.testing._names import domain_like

    def make(mode: str = "priority", **settings: Any) -> str:
        config = domain_like(mode, next(_domain_numbers), settings)
        broker.add_domain(config)
        return config.name

    return make


@pytest.fixture
def bmq_background_broker(bmq_broker_options: Mapping[str, Any]) -> Iterator[BackgroundBroker]:
    """An embedded broker on a separate thread, for tests without an event loop; ``.uri`` is the address."""
    from bmq.testing._background import BackgroundBroker

    options: dict[str, Any] = {"posts_kept": _POSTS_KEPT, **bmq_broker_options}
    with BackgroundBroker(**options) as broker:
        yield broker


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "bmq_seeds(count): run the test with this number of seeds of bmq_simulation"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with a simulation once for each seed."""
    if "bmq_simulation" in metafunc.fixturenames:
        from bmq.testing._simulation import seeds_to_run

        marker = metafunc.definition.get_closest_marker("bmq_seeds")
        seeds = seeds_to_run(1, marker.args[0] if marker is not None else _SEEDS)
        metafunc.parametrize("bmq_simulation", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


@pytest.fixture
def bmq_simulation(request: pytest.FixtureRequest) -> Simulation:
    """A simulation, for a plain test function, run once for each of 20 seeds.

    ``@pytest.mark.bmq_seeds(100)`` changes the number, and the environment variable BMQ_SIM_SEED chooses a
    single seed.
    """
    from bmq.testing._simulation import Simulation

    return Simulation(request.param)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the description of a simulation to the report of a failure."""
    report = yield
    simulation = getattr(item, "funcargs", {}).get("bmq_simulation")
    if simulation is not None and report.when == "call" and report.failed:
        report.sections.append(("Simulation", simulation.report()))
    return report
