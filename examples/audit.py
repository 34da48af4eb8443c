# SPDX-License-Identifier: Apache-2.0
"""An audit: which messages of an outbox were posted, and never handled?

    python examples/audit.py --database postgresql+psycopg://localhost/shop --outbox shop --consumer billing

A broker can lose a message after its acknowledgement, and a delayed message stays in its delay queue while no
mover runs. Neither producer nor consumer is told. The audit compares the rows of an outbox (``outbox.py``)
with the inbox of the consumer (``bmq.inbox``): a row that was posted long ago must be in the inbox, under the
GUID derived from its number. For a delayed message, a mover derives the GUID at the destination.

The exit status is 1 if messages are missing, for a scheduled job with an alarm. Post a missing row again by
clearing ``posted_at``: the inbox handles each GUID once. SQLAlchemy is required.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import JSON, Engine, bindparam, create_engine, text

from bmq.conventions import DESTINATION, DUE, derived_guid

BATCH = 500
POSTED = text(
    "SELECT id, properties FROM outbox WHERE posted_at < :until AND id > :after ORDER BY id LIMIT :most"
).columns(properties=JSON)
ARRIVED = text("SELECT guid FROM bmq_inbox WHERE consumer = :consumer AND guid IN :guids").bindparams(
    bindparam("guids", expanding=True)
)


def arrival(outbox: str, number: int, properties: dict[str, Any]) -> str:
    """Return the GUID under which the consumer receives a row."""
    guid = derived_guid(outbox, "outbox", str(number))
    if DUE in properties and DESTINATION in properties:
        return derived_guid(guid, str(properties[DESTINATION]), "due", str(properties[DUE]))
    return guid


def missing(engine: Engine, outbox: str, consumer: str, *, until: datetime, after: int = 0) -> list[int]:
    """Return the numbers of posted rows that the consumer has not handled.

    Args:
        engine: the database with both tables.
        outbox: name of the outbox.
        consumer: the consumer in the inbox: the URI of its queue, or its name.
        until: rows posted later may be under way, and delayed messages until their due time.
        after: number of the latest row of the previous audit without a missing row.
    """
    found: list[int] = []
    now = datetime.now(UTC).timestamp() * 1000
    with engine.connect() as connection:
        while True:
            wanted = {"until": until, "after": after, "most": BATCH}
            rows = connection.execute(POSTED, wanted).all()
            if not rows:
                return found
            after = rows[-1].id
            properties: list[dict[str, Any]] = [row.properties or {} for row in rows]
            due = [row for row, each in zip(rows, properties, strict=True) if each.get(DUE, 0) < now]
            guids = {arrival(outbox, row.id, row.properties or {}): row.id for row in due}
            arrived = connection.execute(ARRIVED, {"consumer": consumer, "guids": list(guids)})
            here = {row.guid for row in arrived}
            found += [number for guid, number in guids.items() if guid not in here]


def main() -> int:
    parser = argparse.ArgumentParser(description="Posted messages that were never handled")
    parser.add_argument("--database", required=True, help="SQLAlchemy's URL of the database")
    parser.add_argument("--outbox", required=True, help="name of the outbox")
    parser.add_argument("--consumer", required=True, help="URI of the consumer's queue, or its name")
    parser.add_argument("--after", type=int, default=0, help="number of a row: audit later rows")
    parser.add_argument("--patience", type=float, default=300, help="seconds until a message is missing")
    given = parser.parse_args()
    until = datetime.now(UTC) - timedelta(seconds=given.patience)
    engine = create_engine(given.database)
    numbers = missing(engine, given.outbox, given.consumer, until=until, after=given.after)
    for number in numbers:
        print(f"row {number} was posted, and never handled")
    return 1 if numbers else 0


if __name__ == "__main__":
    sys.exit(main())
