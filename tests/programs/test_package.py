# SPDX-License-Identifier: Apache-2.0
"""The published files: metadata, the README of a package index, the files beside the code."""

from __future__ import annotations

import email
import email.message
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.commands import ROOT, completed, loaded
from tests.sweeps import sweep

PROJECTS = ROOT / "bmq" / "cli" / "projects"
WORKFLOWS = sorted([*(ROOT / ".github" / "workflows").glob("*.yml"), *PROJECTS.rglob("workflows/*.yml")])
#: The jobs that may do more than read: sign what another job has built, and draft the page of a release.
WRITING = {
    ("release", "attest"): {"contents": "read", "id-token": "write", "attestations": "write"},
    ("release", "page"): {"contents": "write"},
}


@pytest.fixture(scope="module")
def hatch_build() -> ModuleType:
    return loaded(ROOT / "hatch_build.py")


KNOWN = {
    "repository": "https://example.org/bmq",
    "issues": "https://example.org/bmq/issues",
    "changelog": "https://example.org/bmq/blob/v{version}/CHANGELOG.md",
    "file": "https://example.org/bmq/blob/v{version}/{path}",
    "picture": "https://example.org/bmq/raw/v{version}/{path}",
}


def targets(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_without_a_repository_the_readme_has_no_links_into_it(hatch_build: ModuleType) -> None:
    text = hatch_build.readme((ROOT / "README.md").read_text(encoding="utf-8"), {}, "1.2.3")
    assert targets(text)
    assert [each for each in targets(text) if not each.startswith(("https://", "#"))] == []
    assert "![" not in text
    assert "Quickstart" in text


def test_with_a_repository_the_readme_links_files_of_this_version(hatch_build: ModuleType) -> None:
    text = hatch_build.readme((ROOT / "README.md").read_text(encoding="utf-8"), KNOWN, "1.2.3")
    ours = [each for each in targets(text) if each.startswith("https://example.org")]
    assert "https://example.org/bmq/raw/v1.2.3/docs/assets/demo.svg" in ours
    assert "https://example.org/bmq/blob/v1.2.3/docs/start/quickstart.md" in ours
    for each in ours:
        path = re.sub(r"^https://example.org/bmq/(blob|raw)/v1.2.3/", "", each)
        assert (ROOT / path.partition("#")[0]).exists(), each


def test_the_metadata_has_urls_exactly_when_one_is_known(
    hatch_build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled() -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        hatch_build.LinksHook(str(ROOT), {}).update(metadata)
        return metadata

    monkeypatch.setattr(hatch_build, "links", dict)
    assert filled()["urls"] == {}
    monkeypatch.setattr(hatch_build, "links", lambda: KNOWN)
    number = hatch_build.version()
    assert filled()["urls"] == {
        "Source": "https://example.org/bmq",
        "Issues": "https://example.org/bmq/issues",
        "Changelog": f"https://example.org/bmq/blob/v{number}/CHANGELOG.md",
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    completed(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as files:
        name = next(each for each in files.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_string(files.read(name).decode())


def test_wheel_has_its_metadata(metadata: email.message.Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "asyncio client for" in str(metadata.get_payload())
    assert [r.split(">")[0] for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r] == [
        "construct",
        "google-crc32c",
        "msgspec",
        "orjson",
    ]


def test_the_wheel_contains_the_package_without_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"bmq", "pyspark_bmq"}
    listed = completed("git", "ls-files", "bmq", "pyspark_bmq").stdout.split()
    assert "bmq/py.typed" in names
    assert names == set(listed), "with the files of new projects"


def test_workflows_are_legal() -> None:
    schema = ("--builtin-schema", "vendor.github-workflows")
    completed(sys.executable, "-m", "check_jsonschema", *schema, *WORKFLOWS)


@sweep("path", WORKFLOWS)
def test_workflows_have_the_permissions_they_need(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        steps = "\n".join(yaml.safe_dump(step) for step in job["steps"])
        granted = WRITING.get((path.stem, name))
        assert job.get("permissions") == granted
        if granted:
            assert "checkout" not in steps, "a job that may write runs no code of the project"
        assert steps.count("actions/checkout@") == steps.count("persist-credentials: false")
    for script in re.findall(r"\.ci/[\w.-]+", text):
        assert (ROOT / script).is_file()
    for script in re.findall(r"\./(\.ci/\w+)", text):
        assert (ROOT / script).stat().st_mode & 0o111


@sweep("path", WORKFLOWS)
def test_workflows_name_actions_by_commit_with_the_version_beside(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    assert used
    for each in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each), each


def test_tools_of_a_release_are_pinned_and_installed_by_hash() -> None:
    folder = ROOT / ".ci"
    pinned = (folder / "release-tools.txt").read_text(encoding="utf-8")
    entries = re.findall(
        r"^([a-z0-9._-]+)==\S+ \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", pinned, re.MULTILINE
    )
    unpinned = re.sub(r"^#.*|^    --hash.*", "", pinned, flags=re.MULTILINE).split("\n")
    assert len([each for each in unpinned if each]) == len(entries)
    asked = re.findall(
        r"^([a-z-]+)>=", (folder / "release-tools.in").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(asked) <= {name for name, _ in entries}
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {re.split("[>=~]", each)[0] for each in pyproject["build-system"]["requires"]} <= set(asked)
    script = (folder / "release.py").read_text(encoding="utf-8")
    assert "--require-hashes" in script
    assert "--no-isolation" in script, "the build backend is one of the pinned tools"


@pytest.mark.statement("8.9")
@sweep("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "RELEASING.md", "LICENSE", "CHANGELOG.md"])
def test_project_files_exist_and_are_linked(name: str) -> None:
    assert (ROOT / name).exists()
    texts = [(ROOT / each).read_text(encoding="utf-8") for each in ("README.md", "CONTRIBUTING.md")]
    assert any(f"]({name})" in text for text in texts)


def test_extras_are_for_users_and_groups_for_developers(metadata: email.message.Message) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(metadata.get_all("Provides-Extra", [])) == set(pyproject["project"]["optional-dependencies"])
    assert set(metadata.get_all("Provides-Extra", [])).isdisjoint(pyproject["dependency-groups"])
    assert {"test", "dev"} <= set(pyproject["dependency-groups"])
    assert "pytest" not in str(metadata.get_all("Requires-Dist"))


#: A conversation in a process of its own, and the libraries that took part.
CONVERSATION = """
import asyncio, json, sys
import bmq

async def main():
    async with bmq.broker.Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True, write=True)
        await queue.post(b"x", properties={"a": 1})
        (await queue.receive(timeout=30)).confirm()

asyncio.run(main())
from bmq.wire import codec, layout
print(sys.modules["bmq.wire.control"].orjson.__name__)
print({type(each).__module__.partition(".")[0] for each in layout.LAYOUTS.values()})
print(codec.CODECS and {codec.size - layout.LAYOUTS[name].sizeof() for name, codec in codec.CODECS.items()})
"""


@pytest.mark.statement("8.7")
def test_chosen_libraries_are_declared_and_used() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, groups = pyproject["project"], pyproject["dependency-groups"]
    for library, where in {
        "msgspec": project["dependencies"],
        "orjson": project["dependencies"],
        "construct": project["dependencies"],
        "pyspark": project["optional-dependencies"]["spark"],
        "uvloop": project["optional-dependencies"]["uvloop"],
        "pytest-asyncio": groups["test"],
    }.items():
        assert any(str(each).startswith(library) for each in where), library
    used = completed(sys.executable, "-c", CONVERSATION).stdout.splitlines()
    assert used == ["orjson", "{'construct'}", "{0}"]


def test_make_leaves_the_environment_of_another_checkout_alone(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    run = completed("make", "setup", f"VENV={sys.prefix}", cwd=tmp_path, status=2)
    assert "belongs to the checkout" in run.stderr
    assert "VENV=" in run.stderr


#: The owner's name is unknown: a word for it in an address is a link that leads nowhere.
PLACEHOLDERS = re.compile(
    r"\b(?:OWNER|USERNAME|CHANGEME)\b|your-(?:org|name|user)|<(?:owner|org|user|repo)>"
    r"|(?:github|gitlab)\.com/(?!bloomberg/)[\w.-]+/bmq\b|\bbmq\.readthedocs|pypi\.org/project/bmq"
)


def test_the_addresses_of_the_project_are_in_one_table() -> None:
    kinds = ("*.md", "*.toml", "*.yml", "*.py", "*.html", "*Dockerfile", "Makefile")
    # The command that refuses placeholders contains them; tests use addresses of their own.
    names = [
        name
        for name in completed("git", "ls-files", *kinds).stdout.splitlines()
        if not name.startswith(("tests/", ".ci/", "pyproject.toml")) and (ROOT / name).is_file()
    ]
    assert len(names) > 300
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    links = pyproject["tool"]["bmq"]["links"]
    known = [each for each in (links["repository"], links["site"]) if each]
    found = []
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        found += [f"{name}: {match[0]}" for match in PLACEHOLDERS.finditer(text)]
        found += [f"{name}: {address}" for address in known if address in text]
    assert found == []
