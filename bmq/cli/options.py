# SPDX-License-Identifier: Apache-2.0
"""The options and arguments of verbs, declared in a line each."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["argument", "option"]


def option(form: str, text: str, **more: Any) -> Any:
    """Return the declaration of an option.

    Args:
        form: the names and the name of the value, as in the help: ``--interval -i SECONDS``.
        text: the help.
        more: further arguments of ``typer.Option``.
    """
    words = form.split()
    names = [each for each in words if each.startswith("-")]
    return typer.Option(*names, metavar=" ".join(words[len(names) :]) or None, help=text, **more)


def argument(form: str, text: str, **more: Any) -> Any:
    """Return the declaration of an argument.

    Args:
        form: the name of the value, as in the help.
        text: the help.
        more: further arguments of ``typer.Argument``.
    """
    return typer.Argument(metavar=form, help=text, show_default=False, **more)
