# SPDX-License-Identifier: Apache-2.0
"""A traceback of an error ends with the address of the error's page, if the package has one."""

from __future__ import annotations

import copy
import pickle
import traceback
from email.message import Message
from importlib import metadata

import pytest

import bmq
from bmq import _version


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Message()
    found["Project-URL"] = "Source, https://example.org/bmq"
    found["Project-URL"] = "Documentation, https://example.org/docs/"
    monkeypatch.setattr(metadata, "metadata", lambda name: found)
    monkeypatch.setattr(_version, "_site", _version._site.__wrapped__)


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.usefixtures("site")
def test_a_traceback_ends_with_the_page_of_the_error() -> None:
    error = bmq.OpenQueueError("refused")
    assert printed(error).endswith(
        "refused\ncause and remedy: https://example.org/docs/api/OpenQueueError.html\n"
    )
    assert str(error) == "refused"


@pytest.mark.usefixtures("site")
def test_foreign_notes_are_kept() -> None:
    error = bmq.TimedOut("late")
    error.add_note("while shipping")
    error.add_note("order 7")
    lines = printed(error).splitlines()[-3:]
    assert lines == [
        "cause and remedy: https://example.org/docs/api/TimedOut.html",
        "while shipping",
        "order 7",
    ]
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(again) == "late"
        assert printed(again).count("cause and remedy") == 1


def test_without_an_address_there_is_no_note() -> None:
    assert _version.page("api/Error") == ""
    assert printed(bmq.UsageError("wrong")).endswith("wrong\n")
