# SPDX-License-Identifier: Apache-2.0
"""A release is refused for each missing part, and its descriptions name the files that were built."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.commands import ROOT, completed, loaded
from tests.sweeps import sweep

CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.3] - 2026-01-31

### Added

- Coffee.

## [1.2.2] - 2026-01-01

- Tea.
"""
LINKS = """[tool.bmq.links]
repository = "https://git.shop.test/team/bmq"
site = "https://docs.shop.test/bmq"
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return loaded(ROOT / ".ci" / "release.py")


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.test", "-c", "commit.gpgsign=false")
    return completed("git", *identity, *arguments, cwd=root).stdout.strip()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that is ready for the release 1.2.3."""
    root = tmp_path_factory.mktemp("ready") / "bmq"
    for name, text in {
        "CHANGELOG.md": CHANGELOG,
        "bmq/_version.py": '__version__ = "1.2.3"\n',
        "bmq/new.py": '"""Adds coffee. Added in 1.2."""\n',
        "pyproject.toml": LINKS,
        ".ci/release-tools.txt": "hatchling==1\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "one")
    return root


@pytest.fixture
def ready(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "bmq"))


def test_a_release_that_is_ready_has_no_reasons_against_it(release: ModuleType, ready: Path) -> None:
    assert release.reasons(ready, "1.2.3") == []
    assert release.main(["1.2.3", "--check"], ready) == 0


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("bmq/_version.py", "1.2.3", "1.2.2", "_version.py has '1.2.2'"),
        ("CHANGELOG.md", "[1.2.3]", "[1.2.4]", "no heading for 1.2.3"),
        ("CHANGELOG.md", "### Added\n\n- Coffee.\n", "", "no changes of 1.2.3"),
        ("CHANGELOG.md", "2026-01-31", "2026-02-31", "no date beside 1.2.3"),
        ("CHANGELOG.md", " - 2026-01-31", "", "no date beside 1.2.3"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- Cake.\n", "unreleased changes"),
        ("bmq/new.py", "1.2", "1.3", "bmq/new.py has 'Added in 1.3'"),
        ("pyproject.toml", "https://git.shop.test/team/bmq", "", "repository = ''"),
        ("pyproject.toml", "git.shop.test/team", "github.com/OWNER", "OWNER"),
        ("pyproject.toml", "docs.shop.test", "docs.example.org", "site = 'https://docs.example.org/bmq'"),
        ("pyproject.toml", "https://docs", "http://docs", "site = 'http://docs.shop.test/bmq'"),
    ],
)
def test_each_missing_part_is_a_reason_against_a_release(
    release: ModuleType, ready: Path, name: str, old: str, new: str, reason: str
) -> None:
    path = ready / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    found = release.reasons(ready, "1.2.3")
    assert reason in "\n".join(found)
    assert f"({name})" in found[0], "the change is not committed"
    assert len(found) == 2


def test_a_version_is_released_once(release: ModuleType, ready: Path) -> None:
    assert "the tag v1.2.3 does not exist" in release.reasons(ready, "1.2.3", tagged=True)[0]
    git(ready, "tag", "v1.2.3")
    assert release.reasons(ready, "1.2.3", tagged=True) == []
    assert ["the tag v1.2.3 exists" in each for each in release.reasons(ready, "1.2.3")] == [True]
    git(ready, "commit", "--quiet", "--allow-empty", "--message", "two")
    assert "at another commit" in release.reasons(ready, "1.2.3", tagged=True)[0]


@sweep("version", ["", "1.2", "v", "1.2.3.4", "1.2.3+local", "next", "1.2.3\n"])
def test_a_version_has_three_numbers(release: ModuleType, ready: Path, version: str) -> None:
    with pytest.raises(SystemExit):
        release.main([version, "--check"], ready)


def test_files_are_prepared_for_a_release(release: ModuleType, ready: Path) -> None:
    changelog = ready / "CHANGELOG.md"
    changelog.write_text(CHANGELOG.replace("ed]\n", "ed]\n\n### Added\n\n- Cake.\n", 1), encoding="utf-8")
    release.prepare(ready, "1.3.0", "2026-02-28")
    git(ready, "commit", "--quiet", "--all", "--message", "Release 1.3.0")
    assert release.reasons(ready, "1.3.0") == []
    assert release.notes(ready, "1.3.0") == "### Added\n\n- Cake."
    assert release.notes(ready, "Unreleased") == ""
    for version in ("1.3.0", "1.4.0"):  # it has a heading; nothing was changed since
        with pytest.raises(release.Refused):
            release.prepare(ready, version, "2026-03-01")


def test_an_archive_has_the_files_of_the_commit(release: ModuleType, ready: Path, tmp_path: Path) -> None:
    (ready / "stray.log").touch()
    files = release.export(ready, tmp_path / "source")
    assert "bmq/new.py" in files
    assert "stray.log" not in files
    sdist = tmp_path / "bmq-1.2.3.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in (*files, "PKG-INFO"):
            archive.add(ready / "CHANGELOG.md", f"bmq-1.2.3/{name}")
    assert release.surprises(sdist, files) == []
    wheel = tmp_path / "bmq-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("bmq/_version.py", "bmq/secret.txt", "bmq-1.2.3.dist-info/METADATA"):
            archive.writestr(name, "")
    assert release.surprises(wheel, files) == ["bmq/new.py", "bmq/secret.txt"]


def test_the_statement_names_the_files_and_the_commit(
    release: ModuleType, ready: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bmq.whl"
    path.write_bytes(b"one coffee")
    commit = git(ready, "rev-parse", "HEAD")
    made: dict[str, Any] = release.statement([path], "1.2.3", commit, "https://git.shop.test/bmq", ready)
    assert json.loads(json.dumps(made)) == made
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    digest = "a0b687ca4c0d0158dfc6a9fa2ef92f44bbe367940473185df300b415d04cc476"
    assert release.sums([path]) == f"{digest}  bmq.whl\n"
    assert made["subject"] == [{"name": "bmq.whl", "digest": {"sha256": digest}}]
    definition = made["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"version": "1.2.3"}
    assert definition["resolvedDependencies"][0] == {
        "uri": "git+https://git.shop.test/bmq",
        "digest": {"gitCommit": commit},
    }
    assert made["predicate"]["runDetails"]["builder"]["id"].endswith("#unsigned")
