# SPDX-License-Identifier: Apache-2.0
"""``bmq docs``."""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from bmq import asyncapi
from bmq._version import install
from bmq.cli.messages import BadInput
from bmq.cli.options import argument, option
from bmq.cli.output import emit, write_utf8
from bmq.cli.run import find_app
from bmq.cli.verb import verb

__all__ = ["command"]


@verb("docs", broker=False)
async def command(
    target: str = argument("MODULE[:APP]", "The bmq.App: module, and name in the module."),
    yaml: bool = option("--yaml", "Print YAML instead of JSON.", False),
    title: str | None = option(
        "--title", "Title of the document; by default MODULE.", None, show_default=False
    ),
    release: str | None = option(
        "--release VERSION",
        "Version of the application; by default __version__ of the module, or 0.1.0.",
        None,
        show_default=False,
    ),
    directory: Path = option("--dir -d DIR", "Directory that is searched for modules first.", Path()),
) -> None:
    """Print the AsyncAPI 3 document of an app: queues, messages, schemas, expressions, retries, dead letters.

    APP is a bmq.App, or a function without arguments that returns an App; the default is "app". The command
    imports the module, reads the registered handlers, and connects to no broker. The description of the
    document is the docstring of the module.

    [bold]Examples[/]

    $ bmq docs shop.orders > asyncapi.json

    $ bmq docs shop.orders:app --yaml
    """
    app = find_app(target, directory)
    name = target.partition(":")[0]
    module = sys.modules[name]
    document = asyncapi.document(
        app,
        title=name if title is None else title,
        version=str(getattr(module, "__version__", "0.1.0")) if release is None else release,
        description=inspect.getdoc(module),
    )
    write_utf8()
    emit(*(_as_yaml(document) if yaml else json.dumps(document, indent=2)).splitlines())


def _as_yaml(document: dict[str, Any]) -> str:
    """Return the document as YAML.

    Raises:
        BadInput: PyYAML is not installed.
    """
    try:
        yaml: Any = import_module("yaml")  # some releases of its type stubs have unknown types
    except ModuleNotFoundError:
        raise BadInput(f"--yaml needs an extra: {install('cli')}") from None
    # Values that occur twice would become anchors and aliases.
    plain = json.loads(json.dumps(document))
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100))
