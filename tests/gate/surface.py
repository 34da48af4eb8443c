# SPDX-License-Identifier: Apache-2.0
"""Every public callable and its parameters, found by inspection."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bmq.arrow import TablesOptions
from bmq.client.keywords import ConnectOptions, ConsumerLimits
from bmq.client.options import SessionFields
from bmq.groups import GroupOptions
from bmq.workers._options import BatchConsumerOptions, ConsumerOptions, ResponderOptions

MODULES = """
    bmq bmq.admin bmq.arrow bmq.asyncapi bmq.blocking bmq.broker bmq.codecs bmq.console bmq.conventions
    bmq.delays bmq.errors bmq.groups bmq.health bmq.inbox bmq.interceptors bmq.otel bmq.prometheus bmq.spark
    bmq.stats bmq.subscriptions bmq.taskiq bmq.testing bmq.typed bmq.workers
"""
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
        method: the name of the method; "" for a constructor or a function.
    """

    name: str
    function: Callable[..., Any]
    owner: type | None = None
    method: str = ""

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters by name; those of an unpacked TypedDict are among them."""
        return _parameters(self.function.__init__ if self.function is self.owner else self.function)


def public() -> Iterator[Public]:
    """Walk the functions, constructors and methods of the public modules; each object once."""
    seen: set[int] = set()
    for module_name in MODULES.split():
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            full = f"{module_name}.{name}"
            if id(value) in seen or inspect.ismodule(value):
                continue
            seen.add(id(value))
            if inspect.isclass(value) and not issubclass(value, enum.Enum):
                yield from _of_class(full, value)
            elif inspect.isfunction(value):
                yield Public(full, value)


def _of_class(full: str, cls: type) -> Iterator[Public]:
    if getattr(cls, "_is_protocol", False) or hasattr(cls, "__total__"):
        return  # users implement a protocol, and a TypedDict is only for type checkers
    own = [base for base in cls.__mro__ if base.__module__.split(".")[0] in ("bmq", "pyspark_bmq")]
    if any("__init__" in base.__dict__ or "__new__" in base.__dict__ for base in own):
        yield Public(full, cls, cls)
    for name in sorted({name for base in own for name in base.__dict__ if not name.startswith("_")}):
        static = inspect.getattr_static(cls, name)
        if inspect.isfunction(static) or isinstance(static, classmethod | staticmethod):
            yield Public(f"{full}.{name}", getattr(cls, name), cls, name)


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
            for field, hint in _UNPACKED[unpacked[1]].__annotations__.items():
                annotation = getattr(hint, "__forward_arg__", str(hint))
                found[field] = inspect.Parameter(
                    field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
                )
            continue
        found[f"*{name}" if parameter.kind is parameter.VAR_POSITIONAL else name] = parameter
    return found
