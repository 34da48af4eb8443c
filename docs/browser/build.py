# SPDX-License-Identifier: Apache-2.0
"""Python in the browser, for the built documentation.

``make playground`` calls this file and unpacks Pyodide and msgspec into a folder. MkDocs then adds Pyodide,
bmq and the scripts of ``docs/browser`` to the site. Without the folder the site has no run buttons.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: The folder of Pyodide's files, for MkDocs.
FOLDER = "BMQ_PYODIDE"
PYODIDE = "pyodide@314.0.7"
PYODIDE_HASH = (
    "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
)
#: bmq's one compiled dependency, built for this Pyodide.
MSGSPEC = "msgspec==0.22.0"
MSGSPEC_HASH = (
    "sha512-+OG0FceIC7dParogWOTgRjln5/iLtYqg6Zdar/PAtiuV6jUS0Wtp03wUtZyD32k6KsP20p+GaIGjY2cX9z+noA=="
)
PLATFORM = ("--platform", "pyemscripten_2026_0_wasm32", "--python-version", "3.14", "--abi", "cp314")
PIP_DOWNLOAD = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
WHEEL = "msgspec.whl"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
#: Parts of bmq without a use in a browser.
LEFT_OUT = ("admin", "arrow", "blocking", "cli", "console", "inbox", "otel", "spark")
#: Names in the browser, and the files of this folder.
PROGRAMS = {"cafe.py": "cafe.py", "desk.py": "desk.py"}
SCRIPTS = ("run.mjs", "playground.mjs", "worker.mjs", "browser.css")
TARGET = "assets/browser"


def unpack(folder: Path) -> None:
    """Fetch Pyodide with npm and msgspec with pip, check their hashes, and unpack what a page loads."""
    folder.mkdir(parents=True, exist_ok=True)
    if not all((folder / name).is_file() for name in FILES):
        with tarfile.open(fileobj=io.BytesIO(npm_package(PYODIDE, PYODIDE_HASH))) as archive:
            for name in FILES:
                member = archive.extractfile(f"package/{name}")
                assert member is not None, name
                (folder / name).write_bytes(member.read())
    if not (folder / WHEEL).is_file():
        (folder / WHEEL).write_bytes(wheel(MSGSPEC, MSGSPEC_HASH))


def npm_package(name: str, expected: str) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            ["npm", "pack", name, "--silent", "--pack-destination", place],
            check=True,
            stdout=subprocess.DEVNULL,
            shell=os.name == "nt",
        )
        return checked(name, next(Path(place).glob("*.tgz")).read_bytes(), expected)


def wheel(name: str, expected: str) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [*PIP_DOWNLOAD, *PLATFORM, "--dest", place, name],
            check=True,
        )
        return checked(name, next(Path(place).glob("*.whl")).read_bytes(), expected)


def checked(name: str, content: bytes, expected: str) -> bytes:
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != expected:
        raise SystemExit(f"{name} has another hash than expected: {found}, expected {expected}")
    return content


def library(pyodide: Path) -> bytes:
    """Pack bmq, its dependencies, and the programs of this folder."""
    import construct
    import google_crc32c

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:

        def add(folder: Path, name: str) -> None:
            for path in sorted(folder.rglob("*.py")):
                parts = path.relative_to(folder).parts
                if parts[0] not in LEFT_OUT or name != "bmq":
                    entry = zipfile.ZipInfo("/".join((name, *parts)))
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())

        add(ROOT / "bmq", "bmq")
        for package in (construct, google_crc32c):
            add(Path(package.__path__[0]), package.__name__)
        with zipfile.ZipFile(pyodide / WHEEL) as compiled:
            for name in compiled.namelist():
                archive.writestr(zipfile.ZipInfo(name), compiled.read(name))
        for name, source in PROGRAMS.items():
            archive.writestr(zipfile.ZipInfo(name), (Path(__file__).parent / source).read_bytes())
    return packed.getvalue()


def on_config(config: Any) -> Any:
    """Add the script that makes the run buttons, if the site gets Python."""
    from mkdocs.config.config_options import ExtraScriptValue

    if os.environ.get(FOLDER):
        config.extra_css.append(f"{TARGET}/browser.css")
        script = ExtraScriptValue(f"{TARGET}/run.mjs")
        script.type = "module"
        config.extra_javascript.append(script)
    return config


def on_post_build(config: Any) -> None:
    """Copy Pyodide, bmq and the scripts into the site."""
    if not (source := os.environ.get(FOLDER)):
        return
    target = Path(config.site_dir, TARGET)
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (target / name).write_bytes(Path(source, name).read_bytes())
    for name in SCRIPTS:
        (target / name).write_bytes((Path(__file__).parent / name).read_bytes())
    (target / "bmq.zip").write_bytes(library(Path(source)))


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
