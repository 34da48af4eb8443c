# SPDX-License-Identifier: Apache-2.0
"""``bmq domains``: domains as files under version control.

A broker reads the files of domains from the local disk, and an admin command makes the broker read a file
again. ``apply`` therefore writes only the folder of ``--config-dir``; without the option, the files have to
be in place already. After each command ``apply`` asks the broker for the settings in use, and reports a file
in the wrong folder.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import bmq
from bmq._words import several
from bmq.admin import Admin
from bmq.cli.domain_files import DomainFile, Settings, domain_folder, read_domains, running_settings
from bmq.cli.domain_plan import (
    DomainStep,
    Plan,
    change_lines,
    compare,
    make_plan,
    running_domain,
    shown_value,
)
from bmq.cli.files import replace_file
from bmq.cli.options import argument, option
from bmq.cli.output import BadInput, ExitStatus, confirmed, emit, emit_json, note
from bmq.cli.records import OUTPUT, Form, Records
from bmq.cli.target import BrokerTarget, target_of
from bmq.cli.verb import verb

#: Fields of a line of ``plan`` as CSV, of ``apply``, and of ``diff``.
FIELDS = ("name", "file", "action", "writes", "findings", "notes", "changes")
APPLIED = ("name", "done", "problems")
DIFFERENCE = ("name", "only", "changes")

#: Exit status of ``plan`` with differences.
_CHANGES = 2


def _plan_status(status: ExitStatus) -> ExitStatus:
    """Errors of ``plan`` have the status 1, because 2 means changes."""
    return ExitStatus.FAILED if status < _SIGNALS else status


_SIGNALS = 128
_FOLDER = Annotated[Path, argument("FOLDER", "Folder with one file for each name, or one such file.")]
_CONFIG_DIR = Annotated[
    Path | None,
    option("--config-dir -c FOLDER", "The broker's configuration on this machine, which apply writes."),
]


@verb("domains plan", on_error=_plan_status)
async def plan_changes(
    target: BrokerTarget,
    folder: _FOLDER,
    config_dir: _CONFIG_DIR = None,
    offline: bool = option(
        "--offline", "Ask no broker: check the files, and compare with --config-dir.", False
    ),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Compare files of domains with the broker, and show the differences with their consequences.

    The exit status is 0 without differences, 2 with differences, and 1 if a file is wrong, the broker would
    refuse a change, or the broker cannot be asked.

    [bold]Examples[/]

    $ bmq domains plan config/
    $ bmq domains plan config/ --output json | jq .summary
    """
    async with _planned(target, folder, config_dir, offline=offline) as (plan, _):
        _show(plan, output)
        if plan.by("refused", "invalid"):
            return ExitStatus.FAILED
        return _CHANGES if plan.by("change", "create") else ExitStatus.OK


@verb("domains apply")
async def apply(
    target: BrokerTarget,
    folder: _FOLDER,
    config_dir: _CONFIG_DIR = None,
    output: OUTPUT = Form.TABLE,
    yes: bool = option("--yes -y", "Do not ask first.", False),
) -> int:
    """Apply files of domains to the running broker, after showing the plan.

    The exit status is 0 if the brokers have all settings of the folder, and 1 otherwise.

    [bold]Examples[/]

    $ bmq domains apply config/ --config-dir /etc/bmqbrkr
    """
    async with _planned(target, folder, config_dir) as (plan, nodes):
        return await _apply(plan, nodes, config_dir, output, yes=yes)


# ---- comparing


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
    records = Records.of(output, DIFFERENCE)
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


def _read_side(path: Path) -> _ComparedSide | None:
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
    if "://" not in text and (side := _read_side(Path(text))) is not None:
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


#: The actions: function and purpose.
SUBCOMMANDS: Final = {
    "plan": (plan_changes, "Show the differences between files and the broker."),
    "apply": (apply, "Apply the differences to the running broker."),
    "diff": (diff, "Compare the domains of two folders, files or brokers."),
}


def domains() -> None:
    """Compare files of domains with a broker, apply the differences, or compare two folders or brokers.

    The files have the broker's own format. Each difference has a list of consequences for existing
    queues: expired or dropped messages, refused posts, refused changes.

    [bold]Examples[/]

    $ bmq domains plan config/
    $ bmq domains apply config/ --config-dir /etc/bmqbrkr
    $ bmq domains diff staging/domains production/domains
    """


def _read_files(folder: Path, config_dir: Path | None) -> list[DomainFile]:
    if config_dir is not None and not config_dir.is_dir():
        raise BadInput(f"--config-dir must be a folder that exists, not {config_dir}")
    return read_domains(folder)


@asynccontextmanager
async def _planned(
    target: BrokerTarget, folder: Path, config_dir: Path | None, *, offline: bool = False
) -> AsyncGenerator[tuple[Plan, dict[str, Admin]]]:
    """Connect to each address, because each node of a cluster has a separate configuration."""
    files = _read_files(folder, config_dir)
    async with AsyncExitStack() as stack:
        nodes: dict[str, Admin] = {}
        for uri in dict.fromkeys(each.strip() for each in target.uri.split(",") if each.strip()):
            if not offline:
                nodes[uri] = await stack.enter_async_context(replace(target, uri=uri).admin())
        whole = next(iter(nodes.values()), None)
        if len(nodes) > 1:
            whole = await stack.enter_async_context(target.admin())
        yield await make_plan(files, nodes, config_dir, whole), nodes


# ---- showing

_HEADS = {
    "none": "no change",
    "change": "change",
    "create": "new",
    "refused": "REFUSED by the broker",
    "invalid": "INVALID",
}


def _step_lines(step: DomainStep) -> list[str]:
    if step.action == "none" and not (step.notes or step.file.findings):
        return []
    lines = [f"{step.name}: {_HEADS[step.action]}"]
    lines += [f"    {finding}" for finding in step.file.findings]
    lines += [f"    {each}" for each in step.notes]
    for change in step.changes:
        lines += change_lines(change)
    if step.action == "create":
        lines.append("    the broker loads the domain")
    if step.writes and step.action in ("change", "create"):
        lines.append("    the broker's file is written")
    return lines


def _show(plan: Plan, output: Form) -> None:
    if output is Form.JSON:
        emit_json(
            {
                "summary": plan.summary,
                "brokers": plan.brokers,
                "domains": [_row(step) for step in plan.steps],
                "unmanaged": plan.unmanaged,
            }
        )
    elif output is Form.CSV:
        records = Records(output, FIELDS)
        for step in plan.steps:
            records.write(_row(step))
    else:
        for line in _plan_lines(plan):
            emit(line)


def _plan_lines(plan: Plan) -> list[str]:
    lines = [line for step in plan.steps for line in _step_lines(step)]
    if plan.unmanaged:
        lines.append(f"left alone, without a file: {', '.join(plan.unmanaged)}")
    counts = plan.summary
    parts = [f"{counts['change']} to change", f"{counts['create']} new", f"{counts['none']} without changes"]
    parts += [f"{counts[each]} {each}" for each in ("refused", "invalid") if counts[each]]
    return [*lines, f"{several(len(plan.steps), 'domain')}: {', '.join(parts)}"]


def _row(step: DomainStep) -> dict[str, object]:
    findings = [
        {"severity": each.severity, "where": each.where, "message": each.message}
        for each in step.file.findings
    ]
    values = step.name, str(step.file.path), step.action, step.writes, findings, step.notes, step.changes
    return dict(zip(FIELDS, values, strict=True))


# ---- applying


async def _apply(
    plan: Plan, nodes: dict[str, Admin], config_dir: Path | None, output: Form, *, yes: bool
) -> int:
    steps = plan.by("change", "create")
    left = plan.by("refused", "invalid")
    results = Records.of(output, APPLIED)
    if results is None or not yes:
        tell = emit if results is None else note  # stdout has records alone
        for line in _plan_lines(plan):
            tell(line)
    if steps and not yes and not confirmed(f"Apply {several(len(steps), 'change')}?"):
        return ExitStatus.FAILED
    failed = bool(left)
    for step in (*steps, *left):
        problems = (
            ["not applied: see the plan"] if step in left else await _apply_step(step, nodes, config_dir)
        )
        if results is not None:
            results.write({"name": step.name, "done": not problems, "problems": problems})
        elif not problems:
            emit(f"{step.name}: done")
        for problem in problems:
            failed = True
            note(f"bmq domains apply: {step.name}: {problem}")
    return ExitStatus.FAILED if failed else ExitStatus.OK


async def _apply_step(step: DomainStep, nodes: dict[str, Admin], config_dir: Path | None) -> list[str]:
    """Write the file, have each broker read the file, and compare; return the problems."""
    previous: bytes | None = None
    path = None
    if step.writes and config_dir is not None:
        path = domain_folder(config_dir) / f"{step.name}.json"
        try:
            previous = path.read_bytes() if path.exists() else None
            _write(path, step.file.content)
        except OSError as error:
            return [f"{path} cannot be written: {error.strerror}"]
    problems: list[str] = []
    refused = False
    for broker, admin in nodes.items():
        try:
            if "redirect" in step.file.settings:
                await admin.clear_caches()
                continue
            await admin.reconfigure(step.name)
            problems += await _difference(broker, admin, step)
        except bmq.errors.AdminError as error:
            refused = True
            problems.append(f"{broker} refused: {error.broker_message}")
        except bmq.Error as error:
            problems.append(f"{broker}: {error}")
    if refused and path is not None and len(nodes) == 1:
        # The broker keeps the settings: the file must not differ at the next start.
        try:
            _write(path, previous)
            problems.append(f"{path} has its previous content again")
        except OSError as error:
            problems.append(f"{path} keeps the refused content: {error.strerror}")
    return problems


async def _difference(broker: str, admin: Admin, step: DomainStep) -> list[str]:
    info = await running_domain(admin, step.name)
    if info is None:
        return [f"{broker} has no such domain: does the broker read the file?"]
    rest = compare(
        running_settings(info.configuration, info.cluster), step.file.settings, None, unknown=False
    )
    if not rest:
        return []
    first = rest[0]
    return [
        f"{broker} still has {first.path} {shown_value(first.before)} instead of {shown_value(first.after)}: "
        "the broker reads another file; copy the files to the broker's folder, or give --config-dir"
    ]


def _write(path: Path, content: bytes | None) -> None:
    """Replace a file at once: a broker never reads half a file. None deletes the file."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        replace_file(path, content, path.stat().st_mode & 0o777 if path.exists() else 0o644)
