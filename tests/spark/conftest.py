"""A broker for every module; Spark sessions are shared by all of them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator

import pytest

from tests.spark.brokers import DOMAIN, BrokerThread

# Workers start python3 from PATH, whatever interpreter the driver runs in, unless they are told.
os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    broker = BrokerThread()
    yield broker
    broker.close()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of this test's own."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"bmq://{DOMAIN}/{name[:40]}-{next(_numbers)}"


_numbers = itertools.count(1)
