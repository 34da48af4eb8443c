# SPDX-License-Identifier: Apache-2.0
"""Every public callable and its parameters, found by inspection."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bmq.arrow import TablesOptions
from bmq.client.keywords import ConnectOptions, ConsumerLimits
from bmq.client.options import SessionFields
from bmq.groups import GroupOptions
from bmq.workers._options import BatchConsumerOptions, ConsumerOptions, ResponderOptions

__all__ = ["MODULES", "Public", "public"]

MODULES = (
    "bmq",
    "bmq.admin",
    "bmq.arrow",
    "bmq.asyncapi",
    "bmq.blocking",
    "bmq.broker",
    "bmq.codecs",
    "bmq.console",
    "bmq.conventions",
    "bmq.delays",
    "bmq.errors",
    "bmq.groups",
    "bmq.health",
    "bmq.inbox",
    "bmq.interceptors",
    "bmq.otel",
    "bmq.prometheus",
    "bmq.spark",
    "bmq.stats",
    "bmq.subscriptions",
    "bmq.taskiq",
    "bmq.testing",
    "bmq.typed",
    "bmq.workers",
)
# What ``**options: Unpack[...]`` of a signature stands for.
_UNPACKED = {
    each.__name__: each
    for each in (
        BatchConsumerOptions,
        ConnectOptions,
        ConsumerLimits,
        ConsumerOptions,
        GroupOptions,
        ResponderOptions,
        SessionFields,
        TablesOptions,
    )
}


@dataclass(frozen=True)
class Public:
    """One public callable.

    Attributes:
        name: ``module.Class.method``; a constructor has the name of its class.
        function: the callable: for a method as an attribute of its class.
        owner: the class, None for a function.
        parameters: by name; those of an unpacked TypedDict are among them.
    """

    name: str
    function: Callable[..., Any]
    owner: type | None
    parameters: dict[str, inspect.Parameter]

    @property
    def method(self) -> str:
        """The name of the method; "" for a constructor or a function."""
        return (
            self.name.rpartition(".")[2] if self.owner is not None and self.name != _name(self.owner) else ""
        )


_names: dict[type, str] = {}


def _name(cls: type) -> str:
    return _names[cls]


def public() -> Iterator[Public]:
    """Walk the functions, constructors and methods of the public modules; each object once."""
    seen: set[int] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) in seen or inspect.ismodule(value):
                continue
            seen.add(id(value))
            full = f"{module_name}.{name}"
            if inspect.isclass(value):
                if not issubclass(value, enum.Enum):
                    _names[value] = full
                    yield from _of_class(full, value)
            elif inspect.isfunction(value):
                yield Public(full, value, None, _parameters(value))


def _of_class(full: str, cls: type) -> Iterator[Public]:
    if getattr(cls, "_is_protocol", False) or hasattr(cls, "__total__"):
        return  # users implement a protocol, and a TypedDict is only for type checkers
    own = [base for base in cls.__mro__ if base.__module__.split(".")[0] in ("bmq", "pyspark_bmq")]
    if any("__init__" in base.__dict__ or "__new__" in base.__dict__ for base in own):
        yield Public(full, cls, cls, _parameters(cls.__init__ if "__init__" in dir(cls) else cls))
    for name in sorted({name for base in own for name in base.__dict__ if not name.startswith("_")}):
        static = inspect.getattr_static(cls, name)
        if inspect.isfunction(static) or isinstance(static, classmethod | staticmethod):
            function = getattr(cls, name)
            yield Public(f"{full}.{name}", function, cls, _parameters(function))


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
            if unpacked is None:
                found[f"**{name}"] = parameter
                continue
            for field, annotation in _all_annotations(_UNPACKED[unpacked[1]]).items():
                found[field] = inspect.Parameter(
                    field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
                )
            continue
        found[f"*{name}" if parameter.kind is parameter.VAR_POSITIONAL else name] = parameter
    return found


def _all_annotations(cls: Any) -> dict[str, str]:
    return {name: getattr(hint, "__forward_arg__", str(hint)) for name, hint in cls.__annotations__.items()}
