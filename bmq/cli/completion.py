# SPDX-License-Identifier: Apache-2.0
"""Candidates of a shell for the options and arguments of verbs.

A TAB must never hang or print. The answer takes one second at most. Without a broker, without permission, and
without an answer in time, the answer is empty.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

import typer

from bmq.cli.output import emit
from bmq.cli.target import read_contexts, target_of
from bmq.cli.verbs import VERBS

if TYPE_CHECKING:
    from bmq.admin import Admin

#: Maximum time in seconds for which a TAB waits for the broker.
PATIENCE = 1.0
# Characters of URIs at which bash cuts words (COMP_WORDBREAKS).
_BREAKS = ":="


# ---- candidates


def complete_contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return contexts that begin with the incomplete word."""
    with suppress(Exception):
        return sorted(each for each in read_contexts().entries if each.startswith(incomplete))
    return []


def names_of(*, queues: bool, domains: bool) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion with queues, with their applications behind ``?``, and with domains."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        queue, mark, _ = incomplete.partition("?")

        async def ask(admin: Admin) -> list[str]:
            if mark:
                apps = (await admin.queue(queue).depth()).apps
                return [f"{queue}?id={app.app_id}" for app in apps if app.app_id != "__default"]
            found = [*await admin.queues()] if queues else []
            if domains:
                found += [each.name for each in await admin.domains()]
            return found

        return _asked(ctx.params, ask, incomplete)

    return complete


def admin_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the next words of an admin command: the broker's keywords, and names that the broker has.

    Keywords need no broker. A word begun in small letters is completed in small letters.
    """
    from bmq.admin.commands import COMMANDS, without_encoding

    given = without_encoding(" ".join(ctx.params.get("words") or ()))
    following = [
        each.words[len(given)] for each in COMMANDS if len(each.words) > len(given) and each.begins(given)
    ]
    written = [each.lower() if incomplete.islower() else each for each in following if each[0] != "<"]
    found = [each for each in written if each.startswith(incomplete)]
    names = [each for each in following if each.startswith("<")]
    if names:
        found += _asked(ctx.params, lambda admin: _admin_names(admin, names, given), incomplete)
    return sorted(dict.fromkeys(found))


async def _admin_names(admin: Admin, kinds: list[str], given: list[str]) -> list[str]:
    """Return the names that may stand in the next place of a command."""
    found: list[str] = []
    for kind in dict.fromkeys(kinds):
        match kind:
            case "<domain>":
                found += [each.name for each in await admin.domains()]
            case "<cluster>":
                found += [each.name for each in await admin.clusters()]
            case "<queue>":
                domain = f"bmq://{given[2]}/"
                uris = await admin.queues()
                found += [uri.removeprefix(domain) for uri in uris if uri.startswith(domain)]
            case "<app>":
                depth = await admin.queue(f"bmq://{given[2]}/{given[4]}").depth()
                found += [*(app.app_id for app in depth.apps), "*"]
            case "<partition>":
                status = await admin.cluster_status(given[2])
                found += [str(each.id) for each in status.partitions]
            case _:
                """A number or a setting, which only the user knows."""
    return found


def _asked(
    options: dict[str, Any], question: Callable[[Admin], Awaitable[list[str]]], incomplete: str
) -> list[str]:
    """Ask the broker in a thread, which ends with the process if the broker does not answer."""
    found: list[str] = []

    async def ask() -> None:
        async with target_of("completion", options, timeout=PATIENCE, keyring=False).admin() as admin:
            found.extend(await question(admin))

    def run() -> None:
        with suppress(Exception, SystemExit):
            asyncio.run(ask())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    # A name with a control character would run commands in some shells and break lines in every shell.
    safe = [each for each in found if each.isprintable() and not set(each) & set(" \"'`$\\")]
    return sorted(each for each in safe if each.startswith(incomplete))


# ---- the shells


def chosen_verb() -> str | None:
    """Return the verb of the line; None while the user still writes the verb."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = line.split()[1:]
    if words and not line.endswith(" "):
        words.pop()
    return next((word for word in words if word in VERBS), None)


def answer_shell(run: Callable[[], int]) -> int:
    """Answer a shell's request for candidates; the command does not read from the terminal.

    Bash hands over ``bmq://d/q?id=x`` as five words, and puts a candidate instead of the last word. The
    words are joined first, and candidates lose the part in front of the last word.
    """
    sys.stdin = io.StringIO()
    if os.environ.get("_BMQ_COMPLETE") != "complete_bash":
        return run()
    current = _join_words()
    written = io.StringIO()
    with redirect_stdout(written):
        status = run()
    kept = current[: max(current.rfind(each) for each in _BREAKS) + 1]
    for candidate in written.getvalue().split("\n"):
        if candidate:
            emit(candidate.removeprefix(kept))
    return status


def _join_words() -> str:
    """Join the words of COMP_WORDS cut by bash at colons and equals signs; return the current word."""
    words = os.environ.get("COMP_WORDS", "").split()
    cursor = int(os.environ.get("COMP_CWORD") or 0)
    joined = re.sub(rf" ?([{_BREAKS}]+) ?", r"\1", " ".join(words[: cursor + 1])).split()
    current = joined[-1] if cursor < len(words) else ""
    os.environ["COMP_WORDS"] = " ".join(joined)
    os.environ["COMP_CWORD"] = str(len(joined) - bool(current))
    return current
