# SPDX-License-Identifier: Apache-2.0
"""Random trees and messages."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from bmq.subscriptions._syntax import (
    PRECEDENCE,
    Binary,
    Boolean,
    Exists,
    Integer,
    Negate,
    Node,
    Not,
    Property,
    String,
)
from bmq.wire.constants import PropertyType
from bmq.wire.properties import PropertyValue

NAMES = ["a", "b", "c.d", "exists"]
INTEGERS = [0, 1, 2, -1, -3, 7, 2**63 - 1, -(2**63), 2**32]
STRINGS = ["", "a", "b", "é", "\udcff", "a\\", "x y"]

names = st.sampled_from(NAMES)
integers = st.sampled_from(INTEGERS)
strings = st.sampled_from(STRINGS)

leaves: st.SearchStrategy[Node] = st.one_of(
    st.builds(Property, names),
    st.builds(Property, names),
    st.builds(Exists, names),
    st.builds(Integer, integers),
    st.builds(String, st.sampled_from([s for s in STRINGS if not s.endswith("\\")] + [r"\\", r"\""])),
    st.builds(Boolean, st.booleans()),
)

#: Any tree that parses; most of them end in a type error sooner or later.
trees: st.SearchStrategy[Node] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(Negate, inner),
        st.builds(Binary, st.sampled_from(list(PRECEDENCE)), inner, inner),
        st.builds(Binary, st.sampled_from(["&&", "||", "==", "!=", "<"]), inner, inner),
    ),
    max_leaves=6,
)

_numbers: st.SearchStrategy[Node] = st.recursive(
    st.one_of(st.builds(Property, names), st.builds(Integer, integers)),
    lambda inner: st.one_of(
        st.builds(Negate, inner), st.builds(Binary, st.sampled_from(list("+-*/%")), inner, inner)
    ),
    max_leaves=3,
)

_comparisons: st.SearchStrategy[Node] = st.one_of(
    st.builds(Binary, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), _numbers, _numbers),
    st.builds(
        Binary,
        st.sampled_from(["==", "!=", "<", ">="]),
        st.builds(Property, names),
        st.builds(String, st.sampled_from(["", "a", "é"])),
    ),
    st.builds(Exists, names),
    st.builds(Property, names),
)

#: Trees with the right types in the right places.
conditions: st.SearchStrategy[Node] = st.recursive(
    _comparisons,
    lambda inner: st.one_of(
        st.builds(Not, inner), st.builds(Binary, st.sampled_from(["&&", "||"]), inner, inner)
    ),
    max_leaves=8,
)

values: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    integers,
    strings,
    st.sampled_from(
        [b"", b"a", PropertyValue(PropertyType.CHAR, b"\xff"), PropertyValue(PropertyType.SHORT, 7)]
    ),
)
messages: st.SearchStrategy[dict[str, Any]] = st.dictionaries(names, values)
