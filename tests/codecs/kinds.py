# SPDX-License-Identifier: Apache-2.0
"""The types of the values in these tests: one for each kind with a built-in codec."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic

import bmq


class Grade(enum.Enum):
    GOLD = "gold"
    TIN = "tin"


@dataclass
class Address:
    street: str
    number: int = 1


@dataclass
class Order:
    customer: Annotated[int, bmq.Property("CustomerId")]
    express: Annotated[bool, bmq.Property]
    address: Address
    grade: Annotated[Grade, bmq.Property] = Grade.TIN
    note: Annotated[str | None, bmq.Property] = None


class OrderStruct(msgspec.Struct):
    customer: Annotated[int, bmq.Property("CustomerId")]
    note: str = ""


class OrderModel(pydantic.BaseModel):
    customer: Annotated[int, bmq.Property("CustomerId", bmq.PropertyType.INT32)]
    note: str = pydantic.Field("", alias="remark")


class OrderDict(TypedDict):
    customer: Annotated[int, bmq.Property("CustomerId")]
    note: NotRequired[Annotated[str, bmq.Property]]


@dataclass
class Everything:
    """A field of each kind that JSON gives back."""

    at: datetime
    day: date
    clock: time
    id: UUID
    ratio: float
    pair: tuple[int, str]
    row: tuple[int, ...]
    tree: Everything | None = None
    names: dict[str, list[int]] = field(default_factory=dict)
    size: Literal["S", "M"] = "S"
    either: int | str = 0
    anything: Any = None


ORDER = Order(7, True, Address("Main Street"), Grade.GOLD)
