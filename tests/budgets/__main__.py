# SPDX-License-Identifier: Apache-2.0
"""Count the cost of a message on each path, and compare the counts with the budgets.

python -m tests.budgets                    # the counts of this interpreter, beside their budgets
python -m tests.budgets --calls "post alone"    # the called functions, with the calls a message
python -m tests.budgets --write            # write the counts of this interpreter into budgets.toml
python -m tests.budgets --json             # only the counts, for the tests
"""

from __future__ import annotations

import argparse
import gc
import json

from tests.budgets.bench import run
from tests.budgets.measures import MEASURES
from tests.budgets.paths import PATHS, runs_here
from tests.budgets.table import BUDGETS, Row, costs, read, rows, write


def counted() -> dict[str, dict[str, float]]:
    """Return the costs of each path, by measure and path."""
    found: dict[str, dict[str, float]] = {}
    gc.freeze()  # a scan of every module takes longer than a path
    for name, (path, _, _) in PATHS.items():
        if not runs_here(name):
            continue
        for measure, cost in costs(name, run(path)).items():
            found.setdefault(measure, {})[name] = cost
    return {measure: found[measure] for measure in MEASURES if measure in found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", metavar="PATH", choices=PATHS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.calls:
        path, count, _ = PATHS[arguments.calls]
        for name, calls in run(path, names=True).by_name.most_common():
            print(f"{calls / count:8.2f} {name}")
        return
    found = counted()
    if arguments.json:
        print(json.dumps(found))
    elif arguments.write:
        write(found)
    else:
        for row in rows(read(BUDGETS), found):
            print(_line(row))


def _line(row: Row) -> str:
    return f"{row.measure:12} {row.path:40} {row.count:10g} of {row.budget:10g}  {row.problem}"


if __name__ == "__main__":
    main()
