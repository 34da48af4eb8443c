"""A loader: takes readings by the batch and puts them into SQLite, each once, whatever happens.

    bmq broker --port 30114 &
    bmq run loader --dir examples/batch_loader
    bmq post bmq://bmq.test.mem.priority/readings '{"sensor": "roof", "celsius": 21.5}'

A batch is one transaction, and is confirmed after its commit. When the process dies in between, the broker
delivers the batch again; the GUID of a message is the same then, and is the table's key, so nothing is there
twice. Other databases have the same: INSERT ... ON CONFLICT DO NOTHING in PostgreSQL.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from dataclasses import dataclass

import bmq

READINGS = "bmq://bmq.test.mem.priority/readings"
DEAD = "bmq://bmq.test.mem.priority/readings.dead"

app = bmq.App()


@dataclass
class Reading:
    sensor: str
    celsius: float


@app.on_startup
def open_database() -> None:
    # The handler runs in a thread of its own.
    app.state.database = sqlite3.connect(os.environ.get("READINGS", "readings.db"), check_same_thread=False)
    with app.state.database as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS readings (guid TEXT PRIMARY KEY, sensor TEXT, celsius REAL)"
        )


@app.on_shutdown
def close_database() -> None:
    app.state.database.close()


@app.batch_consumer(
    READINGS,
    max_messages=500,
    max_wait=0.2,
    retry=bmq.ExponentialDecay(give_up_after=3600, then=bmq.DeadLetter(DEAD)),
)
def load(readings: list[Reading], messages: list[bmq.Message]) -> None:
    rows = [
        (message.guid, reading.sensor, reading.celsius)
        for reading, message in zip(readings, messages, strict=True)
    ]
    store(app.state.database, rows)  # confirmed when this returns


def store(database: sqlite3.Connection, rows: list[tuple[str, str, float]]) -> None:
    """Insert what is not there yet, in one transaction."""
    with database:
        database.executemany("INSERT INTO readings VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rows)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    bmq.run(app.run())
