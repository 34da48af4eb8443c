# SPDX-License-Identifier: Apache-2.0
"""Completion of queues, domains, applications and admin commands in the shell, from the broker.

A TAB must never hang or print. The answer takes one second at most. Without a broker, without permission, and
without an answer in time, the answer is empty.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from typing import Any

import typer

from bmq.cli.verbs import VERBS

__all__ = ["admin_words", "answer_shell", "chosen_verb", "domains", "queues", "queues_or_domains"]

#: Maximum time in seconds for which a TAB waits for the broker.
PATIENCE = 1.0
# Characters of URIs at which bash cuts words (COMP_WORDBREAKS).
_BREAKS = ":="


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return queues and, behind ``?``, applications with the incomplete word as the beginning."""
    return _candidates(ctx, incomplete, lambda uris, domains: uris)


def domains(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return domains that begin with the incomplete word."""
    return _candidates(ctx, incomplete, lambda uris, domains: domains)


def queues_or_domains(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return queues, applications and domains that begin with the incomplete word."""
    return _candidates(ctx, incomplete, lambda uris, domains: [*uris, *domains])


def admin_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the next words of an admin command: the broker's keywords, and names that the broker has.

    Keywords need no broker. A word begun in small letters is completed in small letters.
    """
    from bmq.admin.commands import COMMANDS, without_encoding

    given = without_encoding(" ".join(ctx.params.get("words") or ()))
    following = [
        each.words[len(given)]
        for each in COMMANDS
        if len(each.words) > len(given) and replace(each, words=each.words[: len(given)]).matches(given)
    ]
    written = [each.lower() if incomplete.islower() else each for each in following if each[0] != "<"]
    keywords = [each for each in written if each.startswith(incomplete)]
    names = [each for each in following if each.startswith("<")]
    if not names:
        return sorted({*keywords})
    found = _asked(lambda: _admin_names(ctx.params, names, given))
    return sorted({*keywords, *(each for each in found if each.startswith(incomplete))})


async def _admin_names(options: dict[str, Any], kinds: list[str], given: list[str]) -> list[str]:
    """Return the names that may stand in the next place of a command."""
    from bmq.cli.target import target_of

    found: list[str] = []
    async with target_of("completion", options, timeout=PATIENCE, keyring=False).admin() as admin:
        for kind in dict.fromkeys(kinds):
            match kind:
                case "<domain>":
                    found += [each.name for each in await admin.domains()]
                case "<cluster>":
                    found += [each.name for each in await admin.clusters()]
                case "<queue>":
                    domain = f"bmq://{given[2]}/"
                    found += [
                        uri.removeprefix(domain) for uri in await admin.queues() if uri.startswith(domain)
                    ]
                case "<app>":
                    depth = await admin.queue(f"bmq://{given[2]}/{given[4]}").depth()
                    found += [*(app.app_id for app in depth.apps), "*"]
                case "<partition>":
                    status = await admin.cluster_status(given[2])
                    found += [str(each.id) for each in status.partitions]
                case _:
                    """A number or a setting, which only the user knows."""
    return found


def _candidates(
    ctx: typer.Context, incomplete: str, choose: Callable[[list[str], list[str]], list[str]]
) -> list[str]:
    async def candidates() -> list[str]:
        uris, names = await _ask(ctx.params, incomplete)
        begun = [each for each in uris if each.startswith(incomplete)]
        return [each for each in choose(begun, names) if each.startswith(incomplete)]

    return sorted(_asked(candidates))


def _asked(ask_broker: Callable[[], Coroutine[Any, Any, list[str]]]) -> list[str]:
    """Ask the broker in a thread, which ends with the process if the broker does not answer."""
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception, SystemExit):
            found.extend(asyncio.run(ask_broker()))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    # A name with a control character would run commands in some shells and break lines in every shell.
    return [each for each in found if each.isprintable() and not set(each) & set(" \"'`$\\")]


async def _ask(options: dict[str, Any], incomplete: str) -> tuple[list[str], list[str]]:
    """Return URIs of queues, or of the applications of one queue, and names of domains."""
    from bmq.cli.target import target_of

    queue, mark, _ = incomplete.partition("?")
    async with target_of("completion", options, timeout=PATIENCE, keyring=False).admin() as admin:
        if mark:
            apps = (await admin.queue(queue).depth()).apps
            return [f"{queue}?id={app.app_id}" for app in apps if app.app_id != "__default"], []
        return list(await admin.queues()), [each.name for each in await admin.domains()]


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
    from bmq.cli.output import emit

    kept = current[: max(current.rfind(each) for each in _BREAKS) + 1]
    for candidate in written.getvalue().split("\n"):
        if candidate:
            emit(candidate.removeprefix(kept))
    return status


def _join_words() -> str:
    """Join the words of COMP_WORDS cut by bash at colons and equals signs; return the current word."""
    words = os.environ.get("COMP_WORDS", "").split()
    cursor = int(os.environ.get("COMP_CWORD") or 0)
    joined: list[str] = []
    place = 0
    glue = False
    for index, word in enumerate(words):
        separator = not word.strip(_BREAKS)
        if joined and (separator or glue):
            joined[-1] += word
        else:
            joined.append(word)
        glue = separator
        if index == cursor:
            place = len(joined) - 1
    current = ""
    if cursor >= len(words):
        place = len(joined)
    else:
        current = joined[place]
    os.environ["COMP_WORDS"] = " ".join(joined)
    os.environ["COMP_CWORD"] = str(place)
    return current
