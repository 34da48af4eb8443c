# SPDX-License-Identifier: Apache-2.0
"""AsyncAPI documents of apps, validated with the official schema of AsyncAPI 3.0."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import msgspec
import pydantic
import pytest

import bmq
import bmq.asyncapi
from tests.sweeps import sweep

DOMAIN = "bmq://bmq.test.mem.priority/"
ORDERS = DOMAIN + "orders"
SCHEMA = Path(__file__).parent.parent / "data" / "asyncapi" / "3.0.0.json"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


class Size(enum.Enum):
    """Sizes of parcels."""

    SMALL = "s"
    LARGE = "l"


@dataclass
class Line:
    """One article of an order."""

    sku: str
    count: int = 1


@dataclass
class Order:
    customer: Annotated[int, bmq.Property("CustomerId")]
    express: Annotated[bool, bmq.Property]
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    size: Size = Size.SMALL
    parent: Order | None = None


class Row(TypedDict):
    id: int
    pair: tuple[int, str]
    kind: NotRequired[Literal["a", "b"]]
    counts: NotRequired[dict[str, int]]


@dataclass
class Total:
    cents: int


@dataclass
class Parcel:
    region: Annotated[str, bmq.Property("Region")]
    weight: int


class Ask(msgspec.Struct):
    """A question for a price."""

    sku: Annotated[str, msgspec.Meta(min_length=1, description="Article number")]


class Address(pydantic.BaseModel):
    """Where parcels go."""

    code: Annotated[str, pydantic.Field(pattern=r"\d{5}")]


def everything() -> bmq.App:
    """An app with all kinds of registrations."""
    app = bmq.App("tcp://one.example:30114,tcps://[::1]:4000")
    dead = bmq.DeadLetter(ORDERS + ".dead")
    router = bmq.Router(DOMAIN)

    @router.consumer(
        "orders",
        expression="express && CustomerId > 1000",
        priority=5,
        concurrency=8,
        retry=bmq.Backoff(every=5, retries=3, then=dead, no_retry=(ValueError, KeyError)),
        quarantine=dead,
        timeout=30,
        rate=100,
    )
    async def ship_express(order: Order) -> None:
        """Ship an order at once.

        The carrier prints the label.
        """

    @router.consumer("orders", key="CustomerId", ack=bmq.AckPolicy.MANUAL)
    async def ship(order: Order) -> None: ...

    @router.batch_consumer("rows", codec="application/msgpack", max_messages=10, max_wait=2)
    async def load(rows: list[Row]) -> None: ...

    @router.consumer("addresses", retry=bmq.Backoff(every=1, durable=True))
    async def move(address: Address) -> None: ...

    @router.consumer("events")
    async def event(event: bmq.CloudEvent[Order]) -> None: ...

    @router.consumer("raw")
    async def raw(message: bmq.Message, region: Annotated[str, bmq.Property("Region")]) -> None: ...

    @router.responder("prices")
    async def price(message: bmq.Message) -> bytes:
        """Answer with a price."""
        return b""

    @router.responder("totals")
    async def total(question: Ask) -> Total:
        return Total(1)

    @router.consumer("placed")
    @router.publish_to("lines")
    async def split(order: Order) -> AsyncIterator[Line]:
        yield Line("a")

    app.include(router)
    app.sweeper(ORDERS)
    app.mover(DOMAIN + "later")
    part = bmq.App("tcp://two.example")
    part.consumer("bmq://bmq.test.mem.fanout/news?id=foo")(print_news)
    app.include(part)
    return app


async def print_news(news: int | list[str] | None) -> None:
    """Print news."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return bmq.asyncapi.document(everything(), title="Shop", version="2.0", description="A shop.")


def test_a_document_is_valid(validator: jsonschema.Draft7Validator, document: dict[str, Any]) -> None:
    assert [error.message for error in validator.iter_errors(document)] == []
    assert [*validator.iter_errors(bmq.asyncapi.document(bmq.App()))] == []
    text = json.dumps(document)
    assert json.loads(text) == document
    again = bmq.asyncapi.document(everything(), title="Shop", version="2.0", description="A shop.")
    assert json.dumps(again) == text, "equal apps have equal documents"
    again["operations"]["ship"]["action"] = "sell"
    assert [*validator.iter_errors(again)], "the schema is in use"
    found = re.findall(r'"\$ref": "#/([^"]+)"', text)
    assert len(found) > 50
    for reference in found:
        place: Any = document
        for part in reference.split("/"):
            place = place[part]


def test_each_class_of_a_union_of_results_is_a_message_with_its_own_properties(
    validator: jsonschema.Draft7Validator,
) -> None:
    app = bmq.App()

    @app.consumer(DOMAIN + "placed")
    @app.publish_to(DOMAIN + "out")
    async def split(order: Order) -> AsyncIterator[Parcel | Total | list[int] | bytes | None]:
        yield Total(1)

    @app.responder(DOMAIN + "asked")
    async def answer(question: Ask) -> Parcel | Total:
        return Total(1)

    made = bmq.asyncapi.document(app)
    assert [*validator.iter_errors(made)] == []
    output, reply = made["operations"]["split.output"], made["operations"]["answer"]["reply"]
    names = [each["$ref"].rpartition("/")[2] for each in output["messages"]]
    assert names == ["Parcel", "Total", "list", "bytes"]
    assert [each["$ref"].rpartition("/")[2] for each in reply["messages"]] == ["Parcel", "Total", "problem"]
    messages = made["components"]["messages"]
    assert messages["Parcel"]["headers"]["properties"] == {"Region": {"type": "string"}}
    assert messages["Parcel"]["payload"] == {"$ref": "#/components/schemas/Parcel"}
    assert "headers" not in messages["Total"]
    assert messages["list"]["payload"] == {"type": "array", "items": {"type": "integer"}}
    assert messages["bytes"]["contentType"] == "application/octet-stream"


def test_queues_are_channels_of_the_brokers_of_their_app(document: dict[str, Any]) -> None:
    assert document["servers"] == {
        "broker": {"host": "one.example:30114", "protocol": "bmq"},
        "broker-2": {"host": "[::1]:4000", "protocol": "bmqs"},
        "broker-3": {"host": "two.example:30114", "protocol": "bmq"},
    }
    found = {
        each["address"]: [ref["$ref"] for ref in each.get("servers", [])]
        for each in document["channels"].values()
    }
    names = (
        *("orders", "orders.dead", "rows", "addresses", "addresses.delayed", "events", "raw"),
        *("prices", "totals", "placed", "lines", "later"),
    )
    expected: dict[Any, list[str]] = {
        DOMAIN + name: ["#/servers/broker", "#/servers/broker-2"] for name in names
    }
    assert found == expected | {"bmq://bmq.test.mem.fanout/news?id=foo": ["#/servers/broker-3"], None: []}


def test_handlers_are_operations_with_their_options(document: dict[str, Any]) -> None:
    operations = document["operations"]
    assert operations["ship_express"] == {
        "action": "receive",
        "channel": {"$ref": "#/channels/bmq.test.mem.priority.orders"},
        "title": "ship_express",
        "summary": "Ship an order at once.",
        "description": "The carrier prints the label.",
        "messages": [{"$ref": "#/channels/bmq.test.mem.priority.orders/messages/Order"}],
        "x-bmq": {
            "expressions": ["express && CustomerId > 1000"],
            "priority": 5,
            "concurrency": 8,
            "timeout": 30,
            "rate": 100,
            "retry": {
                "policy": "Backoff",
                "every": 5,
                "retries": 3,
                "no_retry": ["ValueError", "KeyError"],
                "then": {"dead_letters": ORDERS + ".dead"},
            },
            "quarantine": {"queue": ORDERS + ".dead", "after": 3},
        },
    }
    assert operations["ship"]["x-bmq"] == {
        "key": "CustomerId",
        "ack": "manual",
        "retry": {"policy": "Backoff", "every": 1.0, "retries": 4, "factor": 2.0, "then": "skip"},
    }
    assert operations["split.output"]["messages"][0]["$ref"].endswith("lines/messages/Line")
    assert operations["load"]["x-bmq"]["batches"] == {"max_messages": 10, "max_wait": 2}
    assert operations["move"]["x-bmq"]["retry"]["durable"] is True
    sending = {name: each["x-bmq"] for name, each in operations.items() if each["action"] == "send"}
    assert sending == {
        "ship_express.dead-letters": {"role": "dead letters"},
        "ship_express.quarantine": {"role": "quarantine"},
        "split.output": {"role": "output"},
    }
    roles = [each["x-bmq"]["role"] for each in operations.values() if "role" in each.get("x-bmq", {})]
    assert roles == ["dead letters", "quarantine", "output", "sweeper", "mover", "mover"]


def test_a_responder_replies_to_the_queue_of_the_requester(document: dict[str, Any]) -> None:
    price = document["operations"]["price"]
    assert price["reply"]["address"]["location"] == "$message.header#/bmq_reply_to"
    assert price["reply"]["channel"] == {"$ref": "#/channels/price.replies"}
    assert "x-bmq" not in price
    channel = "#/channels/total.replies"
    assert document["operations"]["total"]["reply"]["messages"] == [
        {"$ref": f"{channel}/messages/Total"},
        {"$ref": f"{channel}/messages/problem"},
    ]
    assert document["operations"]["total"]["messages"][0]["$ref"].endswith("totals/messages/Ask")


def test_messages_have_the_properties_and_the_schema_of_their_type(document: dict[str, Any]) -> None:
    messages, schemas = document["components"]["messages"], document["components"]["schemas"]
    assert messages["Order"] == {
        "name": "Order",
        "title": "Order",
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "properties": {"CustomerId": {"type": "integer"}, "express": {"type": "boolean"}},
        },
        "payload": {"$ref": "#/components/schemas/Order"},
    }
    assert messages["Row"]["contentType"] == "application/msgpack"
    assert {"ce_type", "CustomerId"} <= messages["CloudEvent-Order"]["headers"]["properties"].keys()
    assert messages["raw.bytes"]["headers"]["properties"] == {"Region": {"type": "string"}}
    assert "payload" not in messages["bytes"]
    # Newer versions of msgspec add the default of a list.
    assert schemas["Order"]["properties"]["lines"].pop("default", []) == []
    assert schemas["Order"] == {
        "title": "Order",
        "type": "object",
        "properties": {
            "customer": {"type": "integer"},
            "express": {"type": "boolean"},
            "placed": {"type": "string"},
            "lines": {"type": "array", "items": {"$ref": "#/components/schemas/Line"}},
            "size": {"$ref": "#/components/schemas/Size", "default": "s"},
            "parent": {"anyOf": [{"$ref": "#/components/schemas/Order"}, {"type": "null"}], "default": None},
        },
        "required": ["customer", "express", "placed"],
    }
    assert schemas["Line"]["description"] == "One article of an order."
    assert schemas["Size"] == {"title": "Size", "description": "Sizes of parcels.", "enum": ["l", "s"]}
    assert schemas["Ask"]["properties"]["sku"]["minLength"] == 1
    assert schemas["Address"]["properties"]["code"]["pattern"] == r"\d{5}"
    news = next(each for each in messages.values() if each["title"] not in (*schemas, "bytes"))
    assert news["payload"]


@sweep(
    "of, legal, illegal",
    [
        (Order, {"customer": 1, "express": True, "placed": "2026-01-01T00:00:00Z"}, {"customer": 1}),
        (Line, {"sku": "a"}, {"sku": 1}),
        (Row, {"id": 1, "pair": [1, "b"], "kind": "a"}, {"id": 1, "pair": [1, 2]}),
        (Row, {"id": 1, "pair": [1, "b"], "counts": {"a": 1}}, {"id": 1, "pair": [1, "b"], "kind": "c"}),
        (list[int | None], [1, None], ["a"]),
        (dict[str, list[Size]], {"a": ["s", "l"]}, {"a": ["x"]}),
    ],
)
def test_a_schema_accepts_the_values_that_the_handler_accepts(of: Any, legal: Any, illegal: Any) -> None:
    shape = bmq.codecs.Shape(of)
    app = bmq.App()

    async def handle(value: Any) -> None: ...

    handle.__annotations__["value"] = of
    app.consumer(ORDERS)(handle)
    made = bmq.asyncapi.document(app)
    (message,) = made["components"]["messages"].values()
    schema = {**message["payload"], "components": made["components"]}
    for value, good in ((legal, True), (illegal, False)):
        assert jsonschema.Draft7Validator(schema).is_valid(value) is good
        decodes = True
        try:
            shape.codec.decode(json.dumps(value).encode())
        except ValueError:
            decodes = False
        assert decodes is good


def test_classes_with_the_same_name_are_told_apart() -> None:
    def make(kind: type) -> Any:
        inner: Any = dataclass(type("Line", (), {"__annotations__": {"sku": kind}}))
        return dataclass(type("Order", (), {"__annotations__": {"line": inner}, "__qualname__": "Order"}))

    app = bmq.App()
    for number, of in enumerate((make(int), make(str), make(int))):

        async def handle(order: Any) -> None: ...

        handle.__annotations__["order"] = of
        app.consumer(f"{ORDERS}-{number}")(handle)
    made = bmq.asyncapi.document(app)
    schemas = made["components"]["schemas"]
    assert {*schemas} == {"Order", "Line", "Order-2", "Line-2"}
    assert schemas["Order-2"]["properties"]["line"] == {"$ref": "#/components/schemas/Line-2"}
    assert schemas["Line-2"]["properties"]["sku"] == {"type": "string"}
    assert [*made["components"]["messages"]] == ["Order", "Order-2"]
    assert [*made["operations"]] == ["handle", "handle-2", "handle-3"]


@sweep("arguments", [{"title": 7}, {"version": None}, {"description": b""}, {"app": object()}])
def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(bmq.UsageError):
        bmq.asyncapi.document(**{"app": bmq.App(), **arguments})
