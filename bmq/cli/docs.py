# SPDX-License-Identifier: Apache-2.0
"""``bmq docs``."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from bmq import asyncapi
from bmq._version import install
from bmq.cli.messages import BadInput
from bmq.cli.output import emit, note, write_utf8
from bmq.cli.run import find_app
from bmq.cli.target import offline

__all__ = ["command"]


class _Texts(TypedDict):
    title: str
    version: str
    description: str | None


@offline("docs")
async def command(
    target: Annotated[
        str, typer.Argument(metavar="MODULE[:APP]", help="The bmq.App: module, and name in the module.")
    ],
    yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML instead of JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page for browsers, a single file without requests to other hosts.",
            show_default=False,
        ),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page, until Ctrl-C.")] = False,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 selects a free port.")
    ] = 30181,
    title: Annotated[
        str | None,
        typer.Option("--title", help="Title of the document; by default MODULE.", show_default=False),
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            metavar="VERSION",
            help="Version of the application; by default __version__ of the module, or 0.1.0.",
            show_default=False,
        ),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", "-d", metavar="DIR", help="Directory that is searched for modules first.")
    ] = Path(),
) -> None:
    """Print the AsyncAPI 3 document of an app: queues, messages, schemas, expressions, retries, dead letters.

    APP is a bmq.App, or a function without arguments that returns an App; the default is "app". The command
    imports the module, reads the registered handlers, and connects to no broker. The description of the
    document is the docstring of the module.

    [bold]Examples[/]

    $ bmq docs shop.orders > asyncapi.json

    $ bmq docs shop.orders:app --yaml

    $ bmq docs shop.orders --html queues.html

    $ bmq docs shop.orders --serve
    """
    if yaml + serve + (html is not None) > 1:
        raise BadInput("give only one of --yaml, --html and --serve")
    app = find_app(target, directory)
    name = target.partition(":")[0]
    module = sys.modules[name]
    texts: _Texts = {
        "title": name if title is None else title,
        "version": str(getattr(module, "__version__", "0.1.0")) if release is None else release,
        "description": inspect.getdoc(module),
    }
    if html is not None:
        try:
            html.write_text(asyncapi.page(app, **texts), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"cannot write {html}: {error.strerror}") from None
        note(f"bmq docs: wrote {html}")
    elif serve:
        await _serve(asyncapi.page(app, **texts), asyncapi.document(app, **texts), host, port)
    else:
        document = asyncapi.document(app, **texts)
        write_utf8()
        emit(*(_as_yaml(document) if yaml else _as_json(document)).splitlines())


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2)


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


async def _serve(page: str, document: dict[str, Any], host: str, port: int) -> None:
    """Serve the page and the document, until a signal.

    Raises:
        BadInput: the address cannot be used.
    """
    bodies = {
        "/": ("text/html; charset=utf-8", page.encode()),
        "/asyncapi.json": ("application/json", _as_json(document).encode()),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = bodies.get(self.path.partition("?")[0])
            if found is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            kind, body = found
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}") from None
    # Signals stop the loop: the thread ends after the next look at the flag of shutdown().
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    serving.start()
    try:
        emit(f"http://{host}:{server.server_port}/", flush=True)
        await asyncio.Event().wait()
    finally:
        server.shutdown()
        server.server_close()
