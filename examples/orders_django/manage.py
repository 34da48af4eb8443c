# SPDX-License-Identifier: Apache-2.0
"""Orders with Django: plain views post to a queue, and a management command ships the orders.

    bmq broker --port 30114 &
    cd examples/orders_django
    python manage.py migrate
    python manage.py worker &
    python manage.py runserver
    curl -X PUT --json '{"customer": 7, "address": "1 Main Street"}' localhost:8000/orders/1

In production, run `gunicorn --threads 16 wsgi` instead of the development server.
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
