# SPDX-License-Identifier: Apache-2.0
"""Visit every state of the model: ``python -m tests.groups.model members=2 buckets=1 messages=2 cuts=1``."""

from __future__ import annotations

import sys
from typing import Any

from tests.groups.model.world import Limits, explore


def main(arguments: list[str]) -> None:
    """Print the number of states; a violation is an exception with the steps."""
    given = dict(argument.split("=") for argument in arguments)
    numbers: dict[str, Any] = {name: int(value) for name, value in given.items()}
    limits = Limits(**numbers)
    print(f"{limits}: {explore(limits)} states, every guarantee holds")


if __name__ == "__main__":
    main(sys.argv[1:])
