# SPDX-License-Identifier: Apache-2.0
"""The name and password for the broker. Without BMQ_USER, connections are
anonymous.
"""

from __future__ import annotations

import os

import bmq


def from_environment() -> bmq.Credentials:
    """Return the present password: it may change while the program runs."""
    return bmq.Credentials.basic(
        os.environ["BMQ_USER"], os.environ["BMQ_PASSWORD"]
    )


credentials = from_environment if "BMQ_USER" in os.environ else None
