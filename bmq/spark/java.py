# SPDX-License-Identifier: Apache-2.0
"""Checks the Java installation before Spark starts: Spark's own error is long."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from bmq.errors import StateError

__all__ = ["check_java"]

_NEEDED = 17


def check_java() -> int:
    """Return the major version of the Java installation that Spark will use.

    Raises:
        StateError: Java is missing, or too old; the error says which version to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = f"install Java {_NEEDED} (such as the package openjdk-{_NEEDED}-jre-headless)"
    if java is None:
        raise StateError(f"Spark runs on Java, and PATH has no 'java': {advice}")
    try:
        run = subprocess.run(
            [java, "-version"],
            capture_output=True, text=True, encoding="utf-8", errors="replace", check=False, timeout=60,
        )  # fmt: skip
    except OSError:
        raise StateError(f"Spark runs on Java, and JAVA_HOME={home} has no 'bin/java': {advice}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    version = int(found[1]) if found else 0
    if version < _NEEDED:
        raise StateError(
            f"Spark needs Java {_NEEDED} or newer, and {java} is Java {version or '?'}: {advice}"
        )
    return version
