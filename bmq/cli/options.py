# SPDX-License-Identifier: Apache-2.0
"""Options and arguments of verbs, and their candidates for a shell.

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
from collections.abc import Callable, Coroutine
from contextlib import redirect_stdout, suppress
from typing import Annotated, Any

import typer

from bmq.cli.output import emit
from bmq.cli.target import read_contexts, target_of
from bmq.cli.verbs import VERBS

#: Maximum time in seconds for which a TAB waits for the broker.
PATIENCE = 1.0
# Characters of URIs at which bash cuts words (COMP_WORDBREAKS).
_BREAKS = ":="
_QUEUES = ("QUEUE", "SOURCE", "DESTINATION")


def option(form: str, text: str, default: Any = ..., **more: Any) -> Any:
    """Return the declaration of an option, as the default of a parameter or in ``Annotated``.

    Args:
        form: the names and the name of the value, as in the help: ``--interval -i SECONDS``.
        text: the help.
        default: the value without the option.
        more: further arguments of ``typer.Option``.
    """
    words = form.split()
    names = [each for each in words if each.startswith("-")]
    return typer.Option(default, *names, metavar=" ".join(words[len(names) :]) or None, help=text, **more)


def argument(form: str, text: str, default: Any = ..., **more: Any) -> Any:
    """Return the declaration of an argument, as the default of a parameter or in ``Annotated``.

    Args:
        form: the name of the value, as in the help; names of queues and domains have candidates.
        text: the help.
        default: the value without the argument.
        more: further arguments of ``typer.Argument``.
    """
    words = form.strip("[].").split("|")
    queues, domains = any(word in _QUEUES for word in words), "DOMAIN" in words
    if queues or domains:
        more["autocompletion"] = _names_of(queues=queues, domains=domains)
    return typer.Argument(default, metavar=form, help=text, show_default=False, **more)


def is_queue(form: str | None) -> bool:
    """Whether a value of this form is the URI of a queue, and never a domain."""
    words = (form or "").strip("[].").split("|")
    return words[0] in _QUEUES and "DOMAIN" not in words


# ---- candidates


def complete_contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return contexts that begin with the incomplete word."""
    with suppress(Exception):
        return sorted(each for each in read_contexts().entries if each.startswith(incomplete))
    return []


def _names_of(*, queues: bool, domains: bool) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion with queues, with their applications behind ``?``, and with domains."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return _asked(lambda: _ask(ctx.params, incomplete, queues=queues, domains=domains), incomplete)

    return complete


async def _ask(options: dict[str, Any], incomplete: str, *, queues: bool, domains: bool) -> list[str]:
    queue, mark, _ = incomplete.partition("?")
    found: list[str] = []
    async with target_of("completion", options, timeout=PATIENCE, keyring=False).admin() as admin:
        if mark:
            apps = (await admin.queue(queue).depth()).apps
            return [f"{queue}?id={app.app_id}" for app in apps if app.app_id != "__default"]
        if queues:
            found += await admin.queues()
        if domains:
            found += [each.name for each in await admin.domains()]
    return found


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
        found += _asked(lambda: _admin_names(ctx.params, names, given), incomplete)
    return sorted(dict.fromkeys(found))


async def _admin_names(options: dict[str, Any], kinds: list[str], given: list[str]) -> list[str]:
    """Return the names that may stand in the next place of a command."""
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


def _asked(ask_broker: Callable[[], Coroutine[Any, Any, list[str]]], incomplete: str) -> list[str]:
    """Ask the broker in a thread, which ends with the process if the broker does not answer."""
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception, SystemExit):
            found.extend(asyncio.run(ask_broker()))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    # A name with a control character would run commands in some shells and break lines in every shell.
    safe = [each for each in found if each.isprintable() and not set(each) & set(" \"'`$\\")]
    return sorted(each for each in safe if each.startswith(incomplete))


# ---- the options of the broker

_PANEL = "Broker"


def _text(form: str, text: str, **more: Any) -> tuple[Any, Any]:
    return Annotated[str | None, option(form, text, rich_help_panel=_PANEL, **more)], None


_TIME_LIMIT = option(
    "--timeout SECONDS",
    "Time limit for the connection, and for each request.",
    min=0.001,
    rich_help_panel=_PANEL,
)
#: The options of verbs with a broker: annotation and default, by parameter.
BROKER_OPTIONS: dict[str, tuple[Any, Any]] = {
    "broker": _text("--broker -b NAME|URI", "URI of the broker, or the name of a context."),
    "timeout": (Annotated[float, _TIME_LIMIT], 10.0),
    "user": _text("--user NAME", "User name (BMQ_USER); the password comes from BMQ_PASSWORD or a prompt."),
    "password_file": _text("--password-file FILE", "File that contains the password."),
    "ca": _text("--ca FILE", "File with trusted certificates, for tcps://."),
    "cert": _text("--cert FILE", "File with this client's certificate."),
    "key": _text("--key FILE", "File with the key of the certificate."),
    "server_name": _text("--server-name NAME", "Name in the broker's certificate."),
    "context": _text(
        "--context NAME",
        "Name of a context (BMQ_CONTEXT), as listed by bmq contexts.",
        autocompletion=complete_contexts,
    ),
}


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
