# SPDX-License-Identifier: Apache-2.0
"""``bmq new``: what it writes, and what it leaves alone. tests/programs/test_projects.py runs them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from bmq.cli.new import Kind, files, module_of
from bmq.cli.output import BadInput
from tests.cli.conftest import Bmq
from tests.sweeps import sweep

CONFIGURATION = Path(__file__).parents[2] / "docker" / "single-node" / "etc"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@sweep("kind", list(Kind))
def test_a_project_has_its_name_everywhere(kind: Kind) -> None:
    made = {path.as_posix(): text for path, text in files(kind, "Shop.Orders", "shop_orders").items()}
    assert made.keys() >= {"Dockerfile", "README.md", "pyproject.toml", ".github/workflows/ci.yml"}
    for path, text in made.items():
        for left in ("bmq-new", "bmq_new", "bmq.new", "SPDX"):
            assert left not in path + text
        if path.startswith("broker/"):  # as in this repository's own composition of a broker
            assert text == (CONFIGURATION / path.removeprefix("broker/")).read_text(encoding="utf-8")
    assert tomllib.loads(made["pyproject.toml"])["project"]["name"] == "Shop.Orders"
    assert {"service": "shop_orders/app.py", "pipeline": "shop_orders/job.py"}.get(kind, "README.md") in made


def test_the_names_of_the_files_are_printed(offline: Bmq) -> None:
    ran = offline("new", "service", "shop-orders")
    assert ran.status == 0
    assert ran.lines == sorted(str(Path("shop-orders", each)) for each in content(Path("shop-orders")))
    assert "cd shop-orders &&" in ran.err
    assert ".venv/bin/bmq run shop_orders.app" in ran.err


def test_a_folder_with_files_is_refused_and_nothing_is_written(offline: Bmq) -> None:
    assert offline("new", "test", "shop").status == 0
    before = content(Path("shop"))
    ran = offline("new", "service", "shop")
    assert ran.status == 2
    assert "shop has files already, such as .dockerignore" in ran.err
    assert "--directory" in ran.err
    assert content(Path("shop")) == before


def test_an_empty_folder_and_a_new_repository_are_used(offline: Bmq) -> None:
    Path(".git").mkdir()
    ran = offline("new", "service", "shop", "-d", ".")
    assert ran.status == 0
    assert "cd " not in ran.err
    assert Path("shop/app.py").exists()
    assert offline("new", "service", "shop", "--directory", "a/b/c").status == 0
    assert Path("a/b/c/shop/app.py").exists()


def test_a_file_in_the_place_of_a_folder_is_named(offline: Bmq) -> None:
    Path("file").write_text("")
    Path("shop").symlink_to("nowhere")
    for arguments in ([], ["-d", "file"], ["-d", "file/x"]):
        ran = offline("new", "service", "shop", *arguments)
        assert (ran.status, "cannot write" in ran.err) == (2, True)
        assert sorted(os.listdir()) == ["file", "shop"]


ODD = ["my shop", "", ".", ".shop", "shop-", "-x", "café", "a\x1bb", "a\n", "3d", "x" * 65]


@sweep(
    "name, said",
    [
        *((name, "NAME must be of up to 64 letters") for name in ODD),
        ("a/b", "--directory names the folder"),
        *((name, f"such as my-{name}") for name in ("class", "json", "bmq", "tests")),
    ],
)
def test_odd_names_are_refused(name: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        module_of(name)
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)
