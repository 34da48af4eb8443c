# SPDX-License-Identifier: Apache-2.0
"""``python -m bmq``: runs the ``bmq`` command."""

import sys

from bmq.cli import script

if __name__ == "__main__":
    sys.exit(script())
