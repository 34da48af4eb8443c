# SPDX-License-Identifier: Apache-2.0
"""The service's name and password at the broker. Without BMQ_USER, connections are anonymous."""

from __future__ import annotations

import os

import bmq


def from_environment() -> bmq.Credentials:
    """Read the password for each connection: it may change while the program runs."""
    return bmq.Credentials.basic(os.environ["BMQ_USER"], os.environ["BMQ_PASSWORD"])


credentials = from_environment if "BMQ_USER" in os.environ else None
