# SPDX-License-Identifier: Apache-2.0
"""The options and arguments of verbs, declared in a line each."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

from bmq.cli import context_file

__all__ = ["BROKER_OPTIONS", "JSON_FLAG", "argument", "complete_contexts", "option"]


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
        form: the name of the value, as in the help.
        text: the help.
        default: the value without the argument.
        more: further arguments of ``typer.Argument``.
    """
    return typer.Argument(default, metavar=form, help=text, show_default=False, **more)


_PANEL = "Broker"


def complete_contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return contexts that begin with the incomplete word."""
    with suppress(Exception):
        return sorted(each for each in context_file.read().entries if each.startswith(incomplete))
    return []


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
JSON_FLAG = Annotated[bool, option("--json -j", "The same as --output json.")]
