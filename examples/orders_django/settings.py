# SPDX-License-Identifier: Apache-2.0
"""Settings for development, with a database in a file."""

import os
from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).parent
SECRET_KEY = os.environ.get("SECRET_KEY", "for development only")
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", BASE_DIR / "orders.sqlite3"),
        # Views and handlers wait for each other. A file serves several threads, in tests too.
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
        "TEST": {"NAME": BASE_DIR / "test.sqlite3"},
    }
}
BMQ_BROKER = os.environ.get("BMQ_BROKER_URI", "tcp://localhost:30114")
