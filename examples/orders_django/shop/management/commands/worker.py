# SPDX-License-Identifier: Apache-2.0
"""``python manage.py worker``."""

import logging
from typing import Any

from django.core.management.base import BaseCommand

import bmq
from shop.worker import app


class Command(BaseCommand):
    """Runs the handlers until SIGTERM or Ctrl-C; after the signal, running handlers finish."""

    help = "Handle the messages of all queues until SIGTERM or Ctrl-C."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the app."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        bmq.run(app.run())
