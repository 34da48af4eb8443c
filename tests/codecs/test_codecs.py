# SPDX-License-Identifier: Apache-2.0
"""Values become payloads and properties, and values again; other values are refused."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bmq
from bmq.codecs import Shape, codec_for, register
from tests.codecs.kinds import ORDER, Address, Everything, Grade, Order, OrderDict, OrderModel, OrderStruct
from tests.sweeps import sweep


class Received:
    """A message as a codec sees it."""

    def __init__(self, data: bytes, properties: dict[str, Any] | None = None) -> None:
        self.data = data
        self.properties: Any = properties or {}


EVERYTHING = Everything(
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), date(2026, 1, 2), time(3, 4), UUID(int=5), 0.5, (2, "y"), (1,),
)  # fmt: skip
EVERYTHING.tree = dataclasses.replace(
    EVERYTHING, row=(), names={"a": [1]}, size="M", either="s", anything=[{}]
)
NOTED = Order(7, False, Address("x", 2), note="n")
INT32_SEVEN = bmq.PropertyValue(bmq.PropertyType.INT32, 7)


# ---- there and back


@sweep(
    "of, value, properties",
    [
        (Order, ORDER, {"CustomerId": 7, "express": True, "grade": "gold"}),
        (Order, NOTED, {"CustomerId": 7, "express": False, "grade": "tin", "note": "n"}),
        (OrderStruct, OrderStruct(7, "n"), {"CustomerId": 7}),
        (OrderModel, OrderModel(customer=7, remark="n"), {"CustomerId": INT32_SEVEN}),
        (OrderDict, {"customer": 7}, {"CustomerId": 7}),
        (OrderDict, {"customer": 7, "note": "n"}, {"CustomerId": 7, "note": "n"}),
        (dict, {"a": [1, None, "x"]}, {}),
        (list[Order], [ORDER, ORDER], {}),
        (dict[str, int], {"a": 1}, {}),
        (dict[int, str], {1: "a"}, {}),
        (set[str], {"a"}, {}),
        (str, "text", {}),
        (Everything, EVERYTHING, {}),
    ],
    ids=str,
)
def test_a_value_survives_a_round_trip_with_its_property_fields(
    of: Any, value: Any, properties: dict[str, Any]
) -> None:
    shape = Shape(of)
    data, own = shape.encode(value)
    assert own == {"bmq_content_type": "application/json"} | properties
    json.loads(data)
    assert shape.decode(Received(data, own)) == value
    assert shape.decode(Received(data)) == value, "what says nothing is decoded by the default"


def test_json_payload_is_plain_json() -> None:
    assert json.loads(Shape(Order).encode(ORDER)[0]) == {
        "customer": 7, "express": True, "address": {"street": "Main Street", "number": 1},
        "grade": "gold", "note": None,
    }  # fmt: skip
    assert json.loads(Shape(OrderModel).encode(OrderModel(customer=1, remark="r"))[0])["remark"] == "r"


@sweep("of", [Order, OrderStruct, dict[str, int]], ids=str)
def test_messagepack_encodes_all_types_of_msgspec(of: Any) -> None:
    value = {Order: ORDER, OrderStruct: OrderStruct(7)}.get(of, {"a": 1})
    shape = Shape(of, "application/msgpack")
    data, properties = shape.encode(value)
    assert properties["bmq_content_type"] == "application/msgpack"
    assert msgspec.msgpack.decode(data) == msgspec.to_builtins(value)
    assert shape.decode(Received(data, properties)) == value


@settings(max_examples=25)
@given(
    st.builds(
        Order,
        customer=st.integers(-(2**63), 2**63 - 1),
        express=st.booleans(),
        address=st.builds(Address, street=st.text(), number=st.integers(0, 10**9)),
        grade=st.sampled_from(Grade),
        note=st.none() | st.text(),
    )
)
def test_msgspec_reads_dataclasses_on_request(order: Order) -> None:
    """Each codec reads the other's output, with equal results."""
    usual, other = Shape(Order), Shape(Order, bmq.codecs.MsgspecJson(Order))
    for written in (usual.encode(order), other.encode(order)):
        assert written[1]["bmq_content_type"] == "application/json"
        for shape in (usual, other):
            assert shape.decode(Received(*written)) == order


def test_values_unknown_to_msgspec_are_reported() -> None:
    shape = Shape(Order, bmq.codecs.MsgspecJson(Order))
    with pytest.raises(bmq.Undecodable, match=r"Expected `int`, got `str` - at `\$.customer`"):
        shape.decode(Received(b'{"customer": "7", "express": true, "address": {"street": "x"}}', {}))
    with pytest.raises(bmq.UsageError, match="msgspec has no JSON for"):
        bmq.codecs.MsgspecJson(Order | OrderStruct)
    with pytest.raises(AttributeError, match="no attribute 'MsgspecXml'"):
        _ = bmq.codecs.MsgspecXml  # type: ignore[attr-defined]


def test_content_type_of_a_message_overrides_the_queues_default() -> None:
    json_text, properties = Shape(OrderStruct).encode(OrderStruct(7))
    packed = Shape(OrderStruct, "application/msgpack")
    assert packed.decode(Received(json_text, properties)) == OrderStruct(7)
    said = {"bmq_content_type": "Application/JSON; charset=utf-8"}
    assert packed.decode(Received(json_text, said)) == OrderStruct(7)


# ---- codecs of one's own


class Reversed:
    content_type = "text/x-reversed"

    def __init__(self, of: type) -> None:
        assert of is str

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


@pytest.fixture
def reversed_text() -> Iterator[None]:
    register("text/x-reversed", Reversed)
    yield
    from bmq.codecs import _codec

    del _codec._made_by["text/x-reversed"]


def test_a_codec_can_be_registered_or_given(reversed_text: None) -> None:
    for codec in ("text/x-reversed", Reversed(str)):
        data, properties = Shape(str, codec).encode("abc")
        assert data == b"cba"
        assert Shape(str).decode(Received(data, properties)) == "abc"


def test_unregistered_content_type_is_an_error_with_the_registered_ones() -> None:
    with pytest.raises(bmq.UsageError, match="no codec for 'text/nothing'; known types: application/json, "):
        codec_for(str, "text/nothing")
    for wrong in ("Text/X", "text", "text/x; charset=utf-8"):
        with pytest.raises(bmq.UsageError, match="media type in lower case"):
            register(wrong, Reversed)


# ---- what cannot be decoded


@sweep(
    "data, why",
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"customer": 7, "express": true}', "Object missing required field `address`"),
        ({"customer": "7"}, r"Expected `int`, got `str` - at `\$.customer`"),
        ({"customer": True}, r"Expected `int`, got `bool` - at `\$.customer`"),
        ({"address": {"street": None}}, r"Expected `str`, got `null` - at `\$.address.street`"),
        ({"grade": "lead"}, r"Invalid enum value 'lead' - at `\$.grade`"),
    ],
)
def test_mismatch_is_reported_with_its_place(data: bytes | dict[str, Any], why: str) -> None:
    if isinstance(data, dict):
        data = json.dumps({"customer": 7, "express": True, "address": {"street": "x"}, **data}).encode()
    with pytest.raises(bmq.Undecodable, match=why) as caught:
        Shape(Order).decode(Received(data, {"bmq_content_type": "application/json"}))
    assert caught.value.content_type == "application/json"
    assert str(caught.value).startswith("not a value of Order (application/json): ")


@pytest.mark.parametrize("of", [OrderStruct, OrderModel], ids=str)
def test_libraries_report_invalid_fields_in_their_own_words(of: Any) -> None:
    with pytest.raises(bmq.Undecodable, match="customer"):
        Shape(of).decode(Received(b'{"customer": "seven"}'))


def test_an_unknown_or_impossible_content_type_is_undecodable() -> None:
    with pytest.raises(bmq.Undecodable, match="no codec for 'image/png'") as caught:
        Shape(Order).decode(Received(b"", {"bmq_content_type": "image/png"}))
    assert caught.value.content_type == "image/png"
    with pytest.raises(bmq.Undecodable, match="bmq_content_type is 7, which is not text"):
        Shape(Order).decode(Received(b"", {"bmq_content_type": 7}))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.content_type) == (str(caught.value), "image/png")


def test_a_check_in_the_type_makes_a_message_undecodable() -> None:
    @dataclass
    class Positive:
        number: int

        def __post_init__(self) -> None:
            if self.number <= 0:
                raise ValueError(f"{self.number} is not positive")

    with pytest.raises(bmq.Undecodable, match="0 is not positive"):
        Shape(Positive).decode(Received(b'{"number": 0}'))


# ---- what cannot be encoded


def test_a_value_of_another_type_is_not_posted() -> None:
    with pytest.raises(bmq.InvalidPayload, match="a value must be Order, not dict"):
        Shape(Order).encode({"customer": 7})  # type: ignore[arg-type]
    with pytest.raises(bmq.InvalidPayload, match="dict cannot be encoded as application/json"):
        Shape(dict).encode({"x": object()})


@pytest.mark.parametrize(
    ("of", "value", "why"),
    [
        (Order, Order("7", True, Address("x")), "Order.customer must be int, not str"),  # type: ignore[arg-type]
        (Order, Order(True, True, Address("x")), "Order.customer must be int, not bool"),
        (Order, Order(7, 1, Address("x")), "Order.express must be bool, not int"),  # type: ignore[arg-type]
        (OrderDict, {"customer": 7, "note": b"x"}, "OrderDict.note must be str, not bytes"),
    ],
)
def test_a_property_field_of_another_type_is_not_posted(of: Any, value: Any, why: str) -> None:
    with pytest.raises(bmq.InvalidPayload, match=why):
        Shape(of).encode(value)


# ---- types that cannot be used are refused when the program starts


def kind(name: str, /, **fields: Any) -> Any:
    """Make a dataclass; a property's field has ``(type, name of the property)``."""
    made = {
        each: Annotated[given[0], bmq.Property(given[1])] if isinstance(given, tuple) else given
        for each, given in fields.items()
    }
    return dataclasses.make_dataclass(name, made.items())


Cat, Dog = kind("Cat", name=str), kind("Dog", name=str)


@sweep(
    "of, why",
    [
        (
            kind("WithFloat", price=(float, None)),
            "WithFloat.price cannot be a property: a property must be bool, int",
        ),
        (kind("Twice", a=(int, "x"), b=(int, "x")), "Twice has two fields for the same property: x, x"),
        (kind("Mixed", a=(int | str, None)), "Mixed.a cannot be a property"),
        (kind("Reserved", bmq_x=(int, None)), "Reserved.bmq_x: names that begin with bmq_ are reserved"),
        (kind("BadName", a=(int, "_x")), "BadName.a cannot be a property: .*_x"),
        (Cat | Dog, "no JSON for .*Cat .* unions may not contain more than one dataclass"),
        (
            kind("Unknown", of=Received),
            "no JSON for .*Unknown.*: type .*Received'> is not supported. Possible types",
        ),
        (complex, "no JSON for <class 'complex'>: type <class 'complex'> is not supported"),
        (bytes, "bytes are posted and received unchanged"),
    ],
    ids=str,
)
def test_an_unsupported_type_is_refused(of: Any, why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        Shape(of)


# ---- filters are checked against the type


@sweep(
    "selector",
    [
        None, "", "!express", "express == true", 'grade == "gold"', "exists(note)", "CustomerId + 1 > 7",
        bmq.P.express, bmq.TagFilter(any_of=["x"]), 'bmq_content_type == "application/json"',
        bmq.Expression("CustomerId % 2 == 0"),
    ],
    ids=str,
)  # fmt: skip
def test_filters_matching_the_type_are_accepted(selector: Any) -> None:
    Shape(Order).check(selector)
    Shape(dict).check("whatever == 1")


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("CustomrId == 7", "Order has no property CustomrId: did you mean CustomerId?"),
        ("colour == 7", "Order has no property colour; it has CustomerId, express, grade, note"),
        ('CustomerId == "7"', "`==` compares an integer with a string: an error, and no match"),
        ("express && CustomerId", "this side of `&&` is an integer, not a condition"),
        ("-grade == 1", "the operand of `-` is a string, not an integer"),
        ("!CustomerId", "the operand of `!`, which binds tightly, is an integer"),
        (bmq.P("grade") == 1, "compares a string with an integer"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::bmq.ExpressionWarning")
def test_filters_contradicting_the_type_are_refused(selector: Any, why: str) -> None:
    with pytest.raises(bmq.InvalidExpression) as caught:
        Shape(Order).check(selector)
    assert why in str(caught.value)
    assert "^" in str(caught.value).splitlines()[-1], "a caret shows where"


def test_a_binary_property_cannot_be_selected_on() -> None:
    with pytest.raises(bmq.InvalidExpression, match="raw of WithBytes is binary"):
        Shape(kind("WithBytes", raw=(bytes, None)), "application/msgpack").check("exists(raw)")


# ---- CloudEvents


def test_a_cloud_event_travels_in_binary_mode() -> None:
    shape = Shape(bmq.CloudEvent[Order])
    event = bmq.CloudEvent(
        data=ORDER, type="order.placed", source="/shop", id="1", subject="7",
        time=datetime(2026, 1, 2, tzinfo=UTC), extensions={"partitionkey": "7", "retry": 2},
    )  # fmt: skip
    data, properties = shape.encode(event)
    assert json.loads(data)["customer"] == 7
    assert properties == {
        "bmq_content_type": "application/json", "CustomerId": 7, "express": True, "grade": "gold",
        "ce_specversion": "1.0", "ce_id": "1", "ce_source": "/shop", "ce_type": "order.placed",
        "ce_subject": "7", "ce_time": "2026-01-02T00:00:00+00:00", "ce_partitionkey": "7", "ce_retry": 2,
    }  # fmt: skip
    assert shape.decode(Received(data, properties)) == event


def test_cloud_event_has_a_unique_id_and_the_required_attributes() -> None:
    one, two = (bmq.CloudEvent(data=1, type="t", source="s") for _ in range(2))
    assert one.id != two.id
    with pytest.raises(bmq.UsageError, match="source of an event must not be empty"):
        bmq.CloudEvent(data=1, type="t", source="")
    for name in ("Upper", "with-dash", "id"):
        with pytest.raises(bmq.UsageError, match="an extension's name"):
            bmq.CloudEvent(data=1, type="t", source="s", extensions={name: 1})


@sweep(
    "properties, why",
    [
        ({}, "ce_specversion is missing"),
        ({"ce_specversion": "0.3"}, "version '0.3'"),
        ({"ce_specversion": "1.0", "ce_id": "1"}, "the event has no source, type"),
        ({"ce_specversion": "1.0", "ce_id": 1}, "ce_id is not text"),
        (
            {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "s", "ce_type": "t", "ce_time": "noon"},
            "noon",
        ),
    ],
)
def test_messages_other_than_cloud_events_are_undecodable(properties: dict[str, Any], why: str) -> None:
    with pytest.raises(bmq.Undecodable, match=why):
        Shape(bmq.CloudEvent[dict]).decode(Received(b"{}", properties))  # type: ignore[type-arg]


def test_filters_select_cloud_events_by_attribute() -> None:
    shape = Shape(bmq.CloudEvent[Order])
    shape.check('ce_type == "order.placed" && CustomerId == 7')
    shape.check('ce_partitionkey == "7"')
    with pytest.raises(bmq.InvalidExpression, match="compares a string with an integer"):
        shape.check("ce_type == 7")
    with pytest.raises(bmq.InvalidExpression, match=r"CloudEvent\[Order\] has no property Customer"):
        shape.check("Customer == 7")
