# SPDX-License-Identifier: Apache-2.0
"""The application behind :func:`bmq.cli.main`. Only the module of the chosen verb is imported."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from bmq._version import __version__
from bmq.cli.verbs import VERBS

_DESCRIPTION = """Tools for BlazingMQ.

[bold]Which broker[/]: [cyan]--broker[/] takes a URI or a name, [cyan]--context[/] a name; without them
BMQ_CONTEXT, then BMQ_BROKER_URI, then the context in use, then tcp://localhost:30114 is used.

[bold]Exit status[/]: 0 done; 1 partly done, or a check failed; 2 wrong usage; 3 no broker or no answer;
4 refused by the broker; 130 and 143 interrupted (a service ends
with 0 after SIGTERM); 141 the reader of the output has gone.
"""


def flowing(text: str) -> str:
    """Return help text with separate lines only for paragraphs and examples."""
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if lines and lines[-1] and line and not line.startswith("$ ") and not lines[-1].startswith("$ "):
            lines[-1] += " " + line
        else:
            lines.append(line)
    return "\n".join(lines)


def _stub() -> None:
    """Placeholder for the verbs that are not chosen."""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bmq {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _group(function: Callable[..., Any], actions: dict[str, tuple[Callable[..., Any], str]]) -> typer.Typer:
    """Return a verb with actions."""
    group = typer.Typer(help=flowing(function.__doc__ or ""), no_args_is_help=True, rich_markup_mode="rich")
    for name, (action, summary) in actions.items():
        group.command(name, short_help=summary, help=flowing(action.__doc__ or ""))(action)
    return group


def run_app(arguments: list[str], *, completing: bool) -> int:
    """Run the command line, and return the exit status.

    Args:
        arguments: arguments without the program's name.
        completing: True if the shell asks for candidates.
    """
    app = typer.Typer(
        name="bmq",
        help=flowing(_DESCRIPTION),
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    if completing:
        from bmq.cli.completion import chosen_verb

        chosen = chosen_verb()
    else:
        chosen = next((word for word in arguments if word in VERBS), None)
    # The other verbs appear only in the help, in mistakes, and in candidates for the shell.
    needed = arguments[:1] if not completing and arguments and arguments[0] in VERBS else VERBS
    for verb in needed:
        module, summary = VERBS[verb]
        function: Callable[..., Any] = _stub
        if ((completing and chosen is None) or verb == chosen) and verb != "broker":
            imported = importlib.import_module(module)
            function = getattr(imported, verb)
            if hasattr(imported, "SUBCOMMANDS"):
                app.add_typer(_group(function, imported.SUBCOMMANDS), name=verb, short_help=summary)
                continue
        app.command(verb, short_help=summary, help=flowing(function.__doc__ or ""))(function)

    def run() -> int:
        try:
            app(args=arguments, prog_name="bmq")
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # typer and rich end with status 1
                raise BrokenPipeError from end
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        return 0

    if completing:
        from bmq.cli.completion import answer_shell

        return answer_shell(run)
    return run()
