# SPDX-License-Identifier: Apache-2.0
"""Tags: their encoding, the matches of filters, and the complement."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bmq.errors import InvalidExpression, InvalidProperty, UsageError
from bmq.subscriptions import (
    CmqTags,
    Expression,
    P,
    PulsarTags,
    TagFilter,
    complement,
    plan,
    pulsar_properties,
    tag,
    tag_name,
    tag_properties,
    tags_of,
    with_pulsar_tags,
)
from bmq.wire.properties import encode_properties, first_properties
from tests.sweeps import sweep


def properties_of(tags: set[str]) -> dict[str, Any]:
    return {**tag_properties(tags), "other": 1}


def takes(selector: TagFilter, tags: set[str]) -> bool:
    """Whether the subscriptions, evaluated as a broker does, take a message with these tags."""
    message = properties_of(tags)
    return any(each is None or each.matches(message) for each in selector.subscriptions())


class TestEncoding:
    @sweep(
        "tag, name",
        [
            ("urgent", "t.urgent"),
            ("", "t."),
            ("high-priority", "t.high__2dpriority"),
            ("grünkohl-eintopf", "t.gr__c3__bcnkohl__2deintopf"),
            ("紧急", "t.__.57Sn5oCl"),
            ("__.", "t.__5f_."),
            ("a__b", "t.a__5f_b"),
            ("__2d", "t.__5f_2d"),
            ('x" || true', "t.__.eCIgfHwgdHJ1ZQ"),
        ],
    )
    def test_names(self, tag: str, name: str) -> None:
        assert tag_name(tag) == name
        assert tags_of({name: True}) == {tag}

    @given(st.text(max_size=21))
    @example("\udcff")
    def test_every_text_is_a_name_an_expression_can_hold_and_comes_back(self, text: str) -> None:
        name = tag_name(text)
        assert tags_of({name: True}) == {text}
        assert Expression(f"exists({name})").matches(tag_properties([text]))
        encode_properties(tag_properties([text]), new=True)

    @given(st.text("abz_25f.", max_size=12))
    @example("__.w6Q")
    @example("__.w6R")  # not the only way to write ä in base 64, but the wrong one
    @example("__.w")
    @example("__.w6Q=")
    @example("a" * 118)
    def test_foreign_name_is_a_tag_only_if_a_filter_could_select_it(self, rest: str) -> None:
        found = tags_of({f"t.{rest}": True})
        assert [tag_name(each) for each in found] == ([f"t.{rest}"] if found else [])

    @pytest.mark.parametrize("count", [0, 20], ids=["few", "many"])
    @given(
        tags=st.sets(st.sampled_from(["a", "b", "ä", "紧急", "x y"])),
        any_of=st.sets(st.sampled_from(["a", "ä", "z", "d"])),
        all_of=st.sets(st.sampled_from(["b", "紧急", "d"])),
    )
    def test_a_filter_matches_received_and_outgoing_messages_alike(
        self, count: int, tags: set[str], any_of: set[str], all_of: set[str]
    ) -> None:
        message = properties_of(tags) | {f"other{number}": number for number in range(count)} | {"t.d": b""}
        area = encode_properties(message, new=True)
        wanted = TagFilter(any_of=any_of, all_of=all_of)
        for _ in range(3):
            assert wanted.matches(first_properties(area, True)) is wanted.matches(message)

    def test_an_unreadable_message_has_no_tags(self) -> None:
        area = encode_properties(tag_properties({"a"}), new=True)
        broken = first_properties(area[:6] + b"\xff" + area[7:], True)
        assert not TagFilter(any_of=["a"]).matches(broken)
        assert TagFilter().matches(broken)

    def test_misuse(self) -> None:
        with pytest.raises(
            TypeError, match=r"tags is a collection of strings, not one string: write \{'urgent'\}"
        ):
            tag_properties("urgent")
        with pytest.raises(TypeError, match="a tag must be a str, not 1"):
            tag_properties([1])  # type: ignore[list-item]
        with pytest.raises(InvalidProperty, match=r"a property name of 118 characters.* up to 117"):
            tag_properties(["x" * 118])
        with pytest.raises(InvalidProperty, match="a property name of 119 characters"):
            TagFilter(any_of=["-" * 87])
        with pytest.raises(InvalidProperty, match="half of a surrogate pair"):
            tag_name("\ud800")


U, C, E = "urgent", "compressed", "eu"

#: (number, any_of, all_of, tags of the message, match)
PULSAR: list[tuple[int, set[str], set[str], set[str], bool]] = [
    (1, set(), set(), set(), True),
    (2, set(), set(), {U}, True),
    (3, {U, C}, set(), {U}, True),
    (4, {U, C}, set(), {C}, True),
    (5, {U, C}, set(), {U, C}, True),
    (6, {U, C}, set(), {"low"}, False),
    (7, {U, C}, set(), set(), False),
    (8, set(), {U, C}, {U, C}, True),
    (9, set(), {U, C}, {U, "uncompressed"}, False),
    (10, set(), {U, C}, {U}, False),
    (11, set(), {U, C}, {U, C, "extra"}, True),
    (12, set(), {U}, set(), False),
    (13, {U}, {E}, {U, E}, True),
    (14, {U}, {E}, {U}, False),
    (15, {U}, {E}, {E}, False),
    (16, {E}, {E}, {E}, True),
    (18, {"Urgent"}, set(), {U}, False),
]

APPLE = {"apple", "imac", "iphone", "macbook"}
TEN = {f"m{i}" for i in range(10)}

#: (number, tags of the subscriber, tags of the message, match)
CMQ: list[tuple[int, set[str], set[str], bool]] = [
    (1, {"apple"}, set(), False),
    (2, set(), APPLE, True),
    (3, set(), set(), True),
    (4, {"apple"}, APPLE, True),
    (5, {"xiaomi"}, APPLE, False),
    (6, {"imac", "xiaomi"}, APPLE, True),
    (7, set(), APPLE, True),
    (8, {"m3", "x", "y", "z"}, TEN, True),
    (9, {"w", "x", "y", "z"}, TEN, False),
    (10, {"apple"}, {"Apple"}, False),
    (11, {"s1", "s2", "s3", "s4", "s5", "s6"}, {"s6"}, True),
]


class TestPulsar:
    @sweep("row", PULSAR, ids=lambda row: f"row {row[0]}")
    @pytest.mark.statement("5.2", "5.3")
    def test_truth_table(self, row: tuple[int, set[str], set[str], set[str], bool]) -> None:
        _, any_of, all_of, tags, match = row
        wanted = TagFilter(any_of=any_of, all_of=all_of)
        assert wanted.matches_tags(tags) is match
        assert wanted.matches(properties_of(tags)) is match
        assert takes(wanted, tags) is match
        # The same, with consumer and producer as they were written for Pulsar.
        metadata = {f"anytag{i}": each for i, each in enumerate(sorted(any_of))}
        metadata |= {f"alltag{i}": each for i, each in enumerate(sorted(all_of))}
        message = with_pulsar_tags({**pulsar_properties(tags), "other": 1})
        migrated = TagFilter.from_pulsar(metadata)
        assert any(each is None or each.matches(message) for each in migrated.subscriptions()) is match
        # And with plain properties, without ``t.`` properties.
        plain = PulsarTags(any_of=any_of, all_of=all_of, keys=[f"tag{i}" for i in range(4)])
        message = {f"tag{i}": tag for i, tag in enumerate(tags)}
        assert any(each is None or each.matches(message) for each in plain.subscriptions()) is match

    @pytest.mark.statement("5.1")
    def test_row_17_the_key_has_to_start_with_tag(self) -> None:
        wanted = TagFilter(any_of=[U])
        assert not wanted.matches(with_pulsar_tags({"color": U}))
        assert not wanted.matches(with_pulsar_tags({"Tag": U}))
        assert wanted.matches(with_pulsar_tags({"tag_color": U}))

    @pytest.mark.statement("5.6")
    def test_consumer_metadata_that_is_no_filter_is_ignored(self) -> None:
        metadata = {"anytag": "a", "anytag2": "b", "alltagX": "c", "tag": "d", "name": "e"}
        assert TagFilter.from_pulsar(metadata) == TagFilter(any_of=["a", "b"], all_of=["c"])


KEYS = ("tag0", "tag1", "tagA", "tag_priority")
VALUES = st.sampled_from(["urgent", "compressed", "late", "eu"])


class TestPulsarAsItIs:
    """Plain properties, as Pulsar's producers set them, without ``t.`` properties."""

    @given(
        st.sets(VALUES, max_size=4),
        st.sets(VALUES, max_size=3),
        st.dictionaries(st.sampled_from([*KEYS, "tagZ", "other"]), VALUES | st.integers(0, 1)),
    )
    @example({"urgent", "compressed"}, set(), {"tagA": "compressed"})
    @example(set(), {"urgent", "compressed"}, {"tag0": "urgent", "tag1": "uncompressed"})
    @pytest.mark.statement("5.1")
    def test_subscriptions_match_the_same_messages_as_pulsar(
        self, any_of: set[str], all_of: set[str], message: dict[str, Any]
    ) -> None:
        wanted = PulsarTags(any_of=any_of, all_of=all_of, keys=KEYS)
        values = {message[key] for key in KEYS if key in message}
        expected = (not any_of or bool(any_of & values)) and all_of <= values
        assert wanted.matches(message) is expected
        if len(all_of) == 3 and any_of and not any_of & all_of:
            with pytest.raises(InvalidExpression, match=r"one expression (must test all of them|has room)"):
                wanted.subscriptions()
            return
        taken = [each is None or each.matches(message) for each in wanted.subscriptions()]
        assert any(taken) is expected

    @pytest.mark.statement("5.4")
    def test_mismatch_is_reported_with_a_remedy(self) -> None:
        with pytest.raises(InvalidExpression, match=r"too many operators.*\n.*with_pulsar_tags"):
            PulsarTags(all_of={"a", "b", "c", "d"}, keys=KEYS).subscriptions()
        with pytest.raises(InvalidExpression, match="1320 ways"):
            PulsarTags(all_of={"a", "b", "c"}, keys=[f"tag{i}" for i in range(12)]).subscriptions()
        with pytest.raises(UsageError, match="begin with 'tag'"):
            PulsarTags(any_of={"a"}, keys=["Tag0"])
        with pytest.raises(UsageError, match="no name was given"):
            PulsarTags(any_of={"a"}, keys=[])
        with pytest.raises(UsageError, match="collection of names"):
            PulsarTags(any_of={"a"}, keys="tag0")
        with pytest.raises(InvalidExpression, match="escapes"):
            PulsarTags(any_of={'a"b'}, keys=KEYS)

    def test_the_rest_is_a_catch_all(self) -> None:
        wanted = PulsarTags(any_of=["urgent"], keys=KEYS)
        assert wanted.keys == KEYS
        rest = complement(wanted)
        assert rest == wanted.complement()
        assert rest.catch_all
        assert rest.may_discard({"tag0": "late"})
        assert not rest.may_discard({"tag1": "urgent"})
        assert complement(PulsarTags(keys=KEYS)).subscriptions() == []
        (never,) = PulsarTags(all_of={"a", "b"}, keys=["tag0"]).subscriptions()
        assert never is not None
        assert not never.matches({"tag0": "a", "tag1": "b", "tag": "a"}), "more values than names"


class TestCmq:
    @sweep("row", CMQ, ids=lambda row: f"row {row[0]}")
    @pytest.mark.statement("6.2")
    def test_truth_table(self, row: tuple[int, set[str], set[str], bool]) -> None:
        _, subscriber, tags, match = row
        wanted = CmqTags(*subscriber)
        assert wanted.matches_tags(tags) is match
        assert takes(wanted, tags) is match


class TestBudget:
    @pytest.mark.statement("5.4")
    def test_more_than_five_all_tags_are_an_error_with_alternatives(self) -> None:
        wanted = TagFilter(all_of=["a", "b", "c", "d", "e", "f"])
        with pytest.raises(InvalidExpression) as caught:
            wanted.subscriptions()
        message = str(caught.value)
        assert message.startswith("too many operators (11), max allowed operators: 10\n")
        for way in (
            "application subscription",
            "one tag for the combination",
            "tp % K == 0",
            "in the application",
        ):
            assert way in message
        assert isinstance(caught.value, UsageError)
        assert wanted.matches_tags({"a", "b", "c", "d", "e", "f", "g"})
        with pytest.raises(InvalidExpression, match="expression is too long"):
            TagFilter(any_of=["c" * 60], all_of=["a" * 60]).subscriptions()


tag_sets = st.sets(st.sampled_from([*"abcdefgh", "a-b", "x" * 50, "y" * 50]), max_size=8)


class TestComplement:
    @given(tag_sets, st.sets(st.sampled_from([*"abxyz", "y" * 50]), max_size=4), tag_sets)
    @pytest.mark.statement("5.7")
    def test_filter_and_complement_are_disjoint_and_complete(
        self, any_of: set[str], all_of: set[str], tags: set[str]
    ) -> None:
        wanted = TagFilter(any_of=any_of, all_of=all_of)
        try:
            wanted.subscriptions()
        except InvalidExpression:
            return
        rest, message = wanted.complement(), properties_of(tags)
        taken = takes(wanted, tags)
        assert taken is wanted.matches_tags(tags)
        assert rest.may_discard(message) is not taken
        if rest.catch_all:
            assert rest.expressions == ()
            assert rest.subscriptions() == [None]
            assert rest.reason
        else:
            assert any(each.matches(message) for each in rest.expressions) is not taken

    def test_too_many_any_tags_leave_a_catch_all(self) -> None:
        wanted = TagFilter(any_of=["a", "b", "c", "d", "e", "f"])
        rest = wanted.complement()
        assert rest.catch_all
        assert "too many operators" in rest.reason
        assert rest.subscriptions() == [None]
        assert not rest.may_discard(properties_of({"f", "z"}))
        assert rest.may_discard(properties_of({"z"}))
        assert rest.may_discard(None)

    @sweep(
        "selector, expressions",
        [
            (tag("a") | ~tag("b"), ["!exists(t.a)&&exists(t.b)"]),
            (P.x.exists(), ["!exists(x)"]),
            ("exists(a) && exists(b)", ["!(exists(a)&&exists(b))"]),
        ],
        ids=str,
    )
    def test_filter_of_exists_alone_has_an_exact_complement(
        self, selector: Any, expressions: list[str]
    ) -> None:
        assert [each.text for each in complement(selector).expressions] == expressions

    @sweep("selector", ["x == 1", P.x > 3, P.flag, tag("a") & (P.x == 1)], ids=str)
    def test_filter_that_can_fail_has_no_exact_complement(self, selector: Any) -> None:
        rest = complement(selector)
        assert rest.catch_all
        assert "neither the filter nor its negation matches" in rest.reason
        # The negation would not do: on a message without x neither takes it.
        (wanted,) = plan(selector)
        assert not wanted.matches({"y": 1})
        assert not Expression(f"!({wanted.text})").matches({"t.a": True})
        assert rest.may_discard({"y": 1})


@sweep("wanted", [TagFilter(any_of=["a"], all_of=["b"]), CmqTags("a", "b"), CmqTags()])
def test_tag_filters_are_values_and_can_be_pickled(wanted: TagFilter) -> None:
    twin = pickle.loads(pickle.dumps(wanted))
    assert (twin, type(twin), hash(twin)) == (wanted, type(wanted), hash(wanted))
    assert pickle.loads(pickle.dumps(wanted.complement())) == wanted.complement()
    other = TagFilter(any_of=["b", "a", "b"])
    assert (other, other.subscriptions()) == (
        TagFilter(any_of={"a", "b"}),
        TagFilter(any_of=("a", "b")).subscriptions(),
    )
    assert wanted != TagFilter(any_of=["c"])
