# SPDX-License-Identifier: Apache-2.0
"""``python -m conformance``: runs the command."""

import sys

from conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
