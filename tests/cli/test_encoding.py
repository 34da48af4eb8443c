# SPDX-License-Identifier: Apache-2.0
"""Output takes every character, also where the encoding of the system has few."""

from __future__ import annotations

import io
import sys

import pytest

from bmq import cli
from bmq.cli import main


def redirect(monkeypatch: pytest.MonkeyPatch, encoding: str) -> io.BytesIO:
    """Redirect standard output to a file with an encoding."""
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding=encoding, write_through=True))
    return file


@pytest.mark.parametrize(
    ("windows", "chosen", "expected"),
    [
        (True, "", "Łódź"),
        (True, "cp1252", r"\u0141ód\u017a"),
        (False, "", r"\u0141ód\u017a"),
    ],
)
def test_a_character_outside_the_encoding_is_no_error(
    monkeypatch: pytest.MonkeyPatch, windows: bool, chosen: str, expected: str
) -> None:
    monkeypatch.setattr(cli, "_WINDOWS", windows)
    monkeypatch.setenv("PYTHONIOENCODING", chosen)
    file = redirect(monkeypatch, "cp1252")
    assert main(["check", 'city == "Łódź"']) == 0
    encoding = "utf-8" if windows and not chosen else "cp1252"
    assert expected in file.getvalue().decode(encoding)


@pytest.mark.parametrize("output", ["json", "csv"])
@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-16"])
@pytest.mark.parametrize("chosen", ["", "cp1252"])
def test_data_for_programs_is_utf8_whatever_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, output: str, encoding: str, chosen: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", chosen)
    file = redirect(monkeypatch, encoding)
    assert main(["check", 'city == "Łódź \U0001f600"', "--output", output]) == 0
    assert "Łódź \U0001f600" in file.getvalue().decode("utf-8")
