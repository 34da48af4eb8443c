# SPDX-License-Identifier: Apache-2.0
"""The grammar of queue URIs, and errors that name the wrong part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import InvalidURI
from bmq.wire.uri import QueueUri
from tests.sweeps import sweep


@sweep(
    "text, domain, tier, queue, app_id",
    [
        ("bmq://bmq.test.mem.priority/orders", "bmq.test.mem.priority", "", "orders", ""),
        ("bmq://d/q", "d", "", "q", ""),
        ("bmq://my.domain/q?id=app1", "my.domain", "", "q", "app1"),
        ("bmq://my.domain.~tst/q", "my.domain", "tst", "q", ""),
        ("bmq://my.domain.~dev-1/q?id=a_b.c-d", "my.domain", "dev-1", "q", "a_b.c-d"),
        ("bmq://d../..", "d..", "", "..", ""),
        ("bmq://d/" + "q" * 64, "d", "", "q" * 64, ""),
        ("bmq://d/q?id=__default", "d", "", "q", "__default"),
    ],
)
def test_uris_of_the_grammar_are_parsed(text: str, domain: str, tier: str, queue: str, app_id: str) -> None:
    uri = QueueUri.parse(text)
    assert (uri.domain, uri.tier, uri.queue, uri.app_id) == (domain, tier, queue, app_id)
    assert str(uri) == text
    assert uri.canonical == text.partition("?")[0]
    assert uri.qualified_domain == text.removeprefix("bmq://").partition("/")[0]


@sweep(
    "text, message",
    [
        ("", 'it must start with "bmq://"'),
        ("BMQ://d/q", 'it must start with "bmq://"'),
        ("tcp://localhost:30114", 'it must start with "bmq://"'),
        ("bmq://", "the domain is missing"),
        ("bmq://.~t/q", "the domain is missing"),
        ("bmq://a b/q", "the domain 'a b' must consist of letters, digits"),
        ("bmq://d:30114/q", "the domain 'd:30114' must consist"),
        ("bmq://d?id=a", "the domain 'd\\?id=a' must consist"),
        ("bmq://d.~/q", "the tier '' must consist of letters, digits and '-'"),
        ("bmq://d.~t.u/q", "the tier 't.u' must consist"),
        ("bmq://d", "the queue name is missing"),
        ("bmq://d/?id=a", "the queue name is missing"),
        ("bmq://d/q/r", "the queue name 'q/r' must consist of letters, digits, '-', '_' and '.'"),
        ("bmq://d/q\n", r"the queue name 'q\\n' must consist"),
        ("bmq://d/٣", "the queue name '٣' must consist"),
        ("bmq://d/" + "q" * 65, "the queue name has 65 characters; at most 64 are allowed"),
        ("bmq://d/q?", r"the only possible query is \?id=APPID, not ''"),
        ("bmq://d/q?id", r"the only possible query is \?id=APPID, not 'id'"),
        ("bmq://d/q?ID=a", r"the only possible query is \?id=APPID, not 'ID=a'"),
        ("bmq://d/q?id=", "the appId '' must consist of letters, digits, '-', '_' and '.'"),
        ("bmq://d/q?id=a&id=b", "the appId 'a&id=b' must consist"),
        ("bmq://d/q?id=a/b", "the appId 'a/b' must consist"),
    ],
)
def test_the_error_names_the_invalid_part(text: str, message: str) -> None:
    with pytest.raises(InvalidURI, match=message) as caught:
        QueueUri.parse(text)
    assert repr(text) in str(caught.value)
    assert "The form is bmq://DOMAIN[.~TIER]/QUEUE[?id=APPID]" in str(caught.value)


@given(st.text(max_size=30) | st.text(alphabet="bmq:/.~?id=aZ-_", max_size=30).map(lambda t: "bmq://" + t))
def test_any_text_is_a_uri_that_reads_back_or_an_error(text: str) -> None:
    try:
        uri = QueueUri.parse(text)
    except InvalidURI:
        return
    assert str(uri) == text
    assert QueueUri.parse(str(uri)) == uri


@sweep("value", [None, b"bmq://d/q", 7, ["bmq://d/q"]])
def test_a_uri_is_text(value: Any) -> None:
    with pytest.raises(InvalidURI, match=f"a queue URI must be a str, not {type(value).__name__}"):
        QueueUri.parse(value)
