# SPDX-License-Identifier: Apache-2.0
"""A loader: receives readings in batches and stores each reading once in a database, despite crashes.

    bmq broker --port 30114 &
    READINGS=postgresql+psycopg://me@localhost/weather bmq run loader --dir examples/batch_loader
    bmq post bmq://bmq.test.mem.priority/readings '{"sensor": "roof", "celsius": 21.5}'

Without READINGS the database is an SQLite file. A batch is one transaction, confirmed after the commit. If
the process dies in between, the broker delivers the batch again, with the same GUIDs. The GUID is the table's
key, so no reading is stored twice.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Engine, Float, MetaData, String, Table, create_engine
from sqlalchemy.dialects import postgresql, sqlite

import bmq

READINGS = "bmq://bmq.test.mem.priority/readings"
DEAD = "bmq://bmq.test.mem.priority/readings.dead"

metadata = MetaData()
table = Table(
    "readings",
    metadata,
    Column("guid", String(32), primary_key=True),
    Column("sensor", String),
    Column("celsius", Float),
)

app = bmq.App()


@dataclass
class Reading:
    sensor: str
    celsius: float


@app.on_startup
def open_database() -> None:
    app.state.engine = create_engine(os.environ.get("READINGS", "sqlite:///readings.db"))
    metadata.create_all(app.state.engine)


@app.on_shutdown
def close_database() -> None:
    app.state.engine.dispose()


@app.batch_consumer(
    READINGS,
    max_messages=500,
    max_wait=0.2,
    retry=bmq.Backoff(every=1, factor=2, cap=60, retries=None, give_up_after=3600, then=bmq.DeadLetter(DEAD)),
)
def load(readings: list[Reading], messages: list[bmq.Message]) -> None:
    rows = [
        {"guid": message.guid, "sensor": reading.sensor, "celsius": reading.celsius}
        for reading, message in zip(readings, messages, strict=True)
    ]
    store(app.state.engine, rows)  # runs in a thread; the batch is confirmed on return


def store(engine: Engine, rows: list[dict[str, Any]]) -> None:
    """Insert the new rows, in one transaction."""
    dialect = postgresql if engine.dialect.name == "postgresql" else sqlite
    with engine.begin() as connection:
        connection.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    bmq.run(app.run())
