# SPDX-License-Identifier: Apache-2.0
"""The examples without asyncio: the web application in a real server, the notebook in a real kernel."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from werkzeug.serving import make_server

import bmq
from tests import pages

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "notebook.ipynb"


@pytest.fixture
def flask_app(broker: str, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("ORDERS_BROKER", broker)
    monkeypatch.setenv("ORDERS_QUEUE", bmq_queue_uri)
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module("flask_app")
    yield module
    module.orders.close()
    del sys.modules["flask_app"]


@pytest.fixture
def served(flask_app: Any) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, flask_app.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def ask(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_web_application_takes_orders_and_reports_errors(
    served: str, flask_app: Any, session: bmq.blocking.Session, bmq_queue_uri: str
) -> None:
    assert ask(f"{served}/orders", {"item": "tea"})[0] == 400
    status, answer = ask(f"{served}/orders", {"customer": 1, "item": "tea"})
    assert status == 202
    with session.open_queue(bmq_queue_uri, read=True).receive(timeout=10) as message:
        assert (message.guid, message.properties["customer"]) == (answer["guid"], 1)
        assert json.loads(message.data)["item"] == "tea"
    assert ask(f"{served}/healthy") == (200, {"ready": True})
    flask_app.orders.close()
    status, answer = ask(f"{served}/orders", {"customer": 2, "item": "tea"})
    assert (status, answer) == (503, {"error": "the session is closed"})
    assert ask(f"{served}/healthy") == (503, {"ready": False})


EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], 4)
nbformat.validate(notebook)
client = NotebookClient(notebook, timeout=60, resources={"metadata": {"path": sys.argv[2]}})
with client.setup_kernel():
    assert (client.km.transport, client.km.ip) == ("tcp", "127.0.0.1"), client.km.ip
    for number, cell in enumerate(notebook.cells):
        client.execute_cell(cell, number)
nbformat.write(notebook, sys.argv[3])
"""


@pytest.fixture
def execute(tmp_path: Path) -> Callable[[Path], subprocess.CompletedProcess[str]]:
    """Run a notebook as Jupyter does; what it printed and drew is written to ``executed.ipynb``."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"},
        "PYTHONPATH": str(EXAMPLES.parent),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }

    def run(notebook: Path) -> subprocess.CompletedProcess[str]:
        arguments = [str(notebook), str(EXAMPLES), str(tmp_path / "executed.ipynb")]
        return subprocess.run(
            [sys.executable, "-c", EXECUTE, *arguments],
            env=environment, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    return run


def outputs(notebook: Path) -> list[Any]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


class TestNotebook:
    @pytest.fixture(autouse=True)
    def loop_of_its_own(self) -> None:
        """The notebook has a kernel of its own."""

    def test_every_cell_of_the_notebook_runs(self, execute: Any, tmp_path: Path) -> None:
        run = execute(NOTEBOOK)
        assert run.returncode == 0, run.stderr
        shown = json.dumps(outputs(tmp_path / "executed.ipynb"))
        assert "4,015 flights posted" in shown
        assert "shape: (" in shown, "tables are shown"
        assert "Error" not in shown
        assert "Warning" not in shown

    def test_the_section_on_notebooks_runs_as_a_notebook(self, execute: Any, tmp_path: Path) -> None:
        """Each block of Python is a cell, followed by the cell's output."""
        page = pages.section(EXAMPLES.parent / "docs" / "data" / "tables.md", "notebooks")
        blocks = re.findall(r"^```(python|text)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        notebook = new_notebook(cells=[new_code_cell(block) for kind, block in blocks if kind == "python"])
        nbformat.write(notebook, tmp_path / "page.ipynb")
        run = execute(tmp_path / "page.ipynb")
        assert run.returncode == 0, run.stderr
        cells = iter(nbformat.read(tmp_path / "executed.ipynb", 4).cells)
        for kind, block in blocks:
            if kind == "python":
                cell = next(cells)
                continue
            shown = "".join(each.get("text") or each["data"]["text/plain"] for each in cell.outputs)
            assert pages.matches(block, shown), f"{cell.source}\nshows\n{shown}"

    def test_notebook_is_stored_without_outputs(self) -> None:
        cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
        assert outputs(NOTEBOOK) == []
        assert {cell["execution_count"] for cell in cells if cell["cell_type"] == "code"} == {None}
