# SPDX-License-Identifier: Apache-2.0
"""``bmq domains diff``: the domains of two folders, files or brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import bmq
from bmq.admin import Admin
from bmq.cli.domain_changes import change_lines, compare
from bmq.cli.domain_files import Settings, read_domains, running_settings
from bmq.cli.domain_plan import running_domain
from bmq.cli.messages import BadInput
from bmq.cli.options import argument, option
from bmq.cli.output import emit, note
from bmq.cli.records import OUTPUT, Form, Records
from bmq.cli.status import ExitStatus
from bmq.cli.target import target_of
from bmq.cli.verb import verb

__all__ = ["DIFFERENCE", "diff"]

#: Fields of a record: a domain that differs.
DIFFERENCE = ("name", "only", "changes")


@dataclass
class _ComparedSide:
    """A side of the comparison."""

    name: str
    domains: dict[str, Settings] = field(default_factory=dict[str, Settings])
    #: The broker of the side; absent for files.
    admin: Admin | None = None


@verb("domains diff", broker=False)
async def diff(
    before: str = argument("A", "Folder or file, tcp://HOST:PORT, or a broker's name."),
    after: str = argument("B", "As for A."),
    output: OUTPUT = Form.TABLE,
    timeout: float = option("--timeout SECONDS", "Time limit for each request.", 10.0, min=0.001),
) -> int:
    """Compare the configurations of domains of two folders, files or running brokers.

    A difference is shown with the consequences of changing A to B. Default values count as given. A broker
    shows loaded domains, and the domains named by side A or B.

    The exit status is 0 without differences, and 1 with differences.

    [bold]Examples[/]

    $ bmq domains diff staging/domains production/domains
    $ bmq domains diff tcp://localhost:30114 config/
    $ bmq domains diff staging production --output json
    """
    one, two = await _read(before, timeout), await _read(after, timeout)
    try:
        for side, other in ((one, two), (two, one)):
            await _complete(side, other)
    finally:
        for side in (one, two):
            if side.admin is not None:
                await side.admin.close()
    # A broker drops unknown members.
    unknown = one.admin is None and two.admin is None
    records = None if output is Form.TABLE else Records(output, DIFFERENCE)
    different = False
    for name in sorted({*one.domains, *two.domains}):
        left, right = one.domains.get(name), two.domains.get(name)
        changes = [] if left is None or right is None else compare(left, right, None, unknown=unknown)
        if left is not None and right is not None and not changes:
            continue
        different = True
        only = one.name if right is None else two.name if left is None else None
        if records is not None:
            records.write({"name": name, "only": only, "changes": changes})
            continue
        emit(f"{name}: only in {only}" if only is not None else f"{name}:")
        for change in changes:
            for line in change_lines(change):
                emit(line)
    return ExitStatus.FAILED if different else ExitStatus.OK


def _read_files(path: Path) -> _ComparedSide | None:
    """Read a folder or a file; return no domains for a broker."""
    if not path.exists():
        return None
    side = _ComparedSide(str(path))
    for file in read_domains(path):
        for finding in file.findings:
            note(f"bmq domains diff: {file.path}: {finding}")
        if not file.valid:
            raise BadInput(f"{file.path} is not a valid file of a domain")
        side.domains[file.name] = file.settings
    return side


async def _read(text: str, timeout: float) -> _ComparedSide:
    if "://" not in text and (side := _read_files(Path(text))) is not None:
        return side
    if "://" not in text and ("/" in text or text.endswith(".json")):
        raise BadInput(f"{text} does not exist")
    target = target_of("domains diff", {"broker": text}, timeout=timeout)
    admin = await target.admin()
    return _ComparedSide(text, {}, admin)


async def _complete(side: _ComparedSide, other: _ComparedSide) -> None:
    """Ask a broker for the loaded domains, and for the domains of the second side."""
    if side.admin is None:
        return
    loaded = [each.name for each in await side.admin.domains()]
    for name in dict.fromkeys([*loaded, *other.domains]):
        try:
            info = await running_domain(side.admin, name)
        except bmq.errors.AdminError as error:
            note(f"bmq domains diff: {side.name} does not show {name}: {error.broker_message}")
            continue
        if info is not None and info.name == name:
            side.domains[name] = running_settings(info.configuration, info.cluster)
