# SPDX-License-Identifier: Apache-2.0
"""Makes the files of a release in ``dist/``, from the commit that is checked out.

    make release VERSION=1.2.3 ARGS=--prepare    # writes number and date into the files that have them
    make release VERSION=1.2.3 ARGS=--check      # lists the reasons against a release, and builds nothing
    make release VERSION=1.2.3                   # checks, builds, tries, and describes the files
    make release ARGS=--rehearse                 # the same into build/rehearsal, whatever is missing

The archives are built twice, in different folders, and must be equal byte for byte. The time in the archives
is the time of the commit. The tools have the versions and hashes of ``release-tools.txt``, the build backend
among them. The command creates no tag and uploads nothing; its last lines are the commands for that.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(?:a|b|rc)\d+)?")
#: Parts of addresses that stand for a name which is not yet known.
PLACEHOLDER = re.compile(r"example\.|OWNER|USERNAME|CHANGE-?ME|TODO|[<>{}]", re.IGNORECASE)
PACKAGES = ("bmq", "pyspark_bmq")

#: A user's first program: an embedded broker, and a message there and back.
SMOKE = """
import bmq
from bmq.broker import Broker

async def main():
    async with Broker() as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue("bmq://bmq.test.mem.priority/release", read=True, write=True)
        await queue.post(b"one coffee")
        message = await queue.receive(timeout=10)
        message.confirm()
        assert message.data == b"one coffee", message

bmq.run(main())
"""

#: Completes a bill of materials with its archive, and validates the document against the schema of CycloneDX,
#: which is part of the pinned tools.
BILL = """
import json, sys
from pathlib import Path
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

path, name, version, digest = Path(sys.argv[1]), *sys.argv[2:]
bill = json.loads(path.read_text(encoding="utf-8"))
root = bill["metadata"]["component"]
root["version"] = version
root["purl"] = f"pkg:pypi/bmq@{version}?file_name={name}"
root["hashes"] = [{"alg": "SHA-256", "content": digest}]
text = json.dumps(bill, indent=1, sort_keys=True) + "\\n"
wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
if wrong:
    sys.exit(f"{path.name} is not a CycloneDX document: {wrong}")
path.write_text(text, encoding="utf-8")
"""

#: Makes the links of the changelog absolute, or removes them, as in the README of the package.
NOTES = """
import sys
from pathlib import Path
sys.path.insert(0, ".")
import hatch_build

path = Path(sys.argv[1])
text = hatch_build.readme(path.read_text(encoding="utf-8"), hatch_build.links(), hatch_build.version())
path.write_text(text, encoding="utf-8", newline="\\n")
"""


class Refused(Exception):
    """A release cannot be made; the text says why, and what to do."""


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a program, and return its output; raise :class:`Refused` with the output if the program fails."""
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd, env={**os.environ, **environment}, text=True, encoding="utf-8", check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise Refused(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def git(root: Path, *arguments: str) -> str:
    """Return the output of git in a folder."""
    return run("git", *arguments, cwd=root).rstrip()


def current(root: Path) -> str:
    """Return the version in bmq/_version.py."""
    found = re.search(r'__version__ = "(.+)"', (root / "bmq" / "_version.py").read_text(encoding="utf-8"))
    return found[1] if found else ""


def links(root: Path) -> dict[str, str]:
    """Return the addresses of pyproject.toml."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, str] = pyproject["tool"]["bmq"]["links"]
    return table


def notes(root: Path, version: str) -> str | None:
    """Return the text of a version in the changelog; None if the changelog has no heading for the version."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\].*\n((?:(?!## ).*\n?)*)", text, re.MULTILINE)
    return found[1].strip() if found else None


def reasons(root: Path, version: str, *, tagged: bool = False) -> list[str]:
    """Return the reasons against a release, each with its remedy.

    Args:
        root: the working tree.
        version: the number of the release.
        tagged: whether the tag of the version must exist already, at the commit that is checked out.
    """
    return [*_reasons_of_git(root, version, tagged), *_reasons_of_files(root, version)]


def _reasons_of_git(root: Path, version: str, tagged: bool) -> Iterator[str]:
    if changed := git(root, "status", "--porcelain").splitlines():
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        names = ", ".join(line[3:] for line in changed[:3])
        yield f"the working tree has changes ({names}{more}): commit or remove them"
    tag = f"v{version}"
    there = git(root, "tag", "--list", tag)
    if not tagged and there:
        yield f"the tag {tag} exists: a published version never changes, so choose the next number"
    elif tagged and not there:
        yield f"the tag {tag} does not exist: git tag --sign {tag}"
    elif tagged and git(root, "rev-parse", f"{tag}^{{commit}}") != git(root, "rev-parse", "HEAD"):
        yield f"the tag {tag} is at another commit: git checkout {tag}"


def _reasons_of_files(root: Path, version: str) -> Iterator[str]:
    if (found := current(root)) != version:
        yield f"bmq/_version.py has {found!r}: ARGS=--prepare writes {version}"
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"^## \[{re.escape(version)}\](.*)$", text, re.MULTILINE)
    if heading is None:
        yield f"CHANGELOG.md has no heading for {version}: ARGS=--prepare writes '## [{version}] - date'"
    else:
        if not _is_date(heading[1].removeprefix(" - ")):
            yield f"CHANGELOG.md has no date beside {version}: write '## [{version}] - 2026-01-31'"
        if not notes(root, version):
            yield f"CHANGELOG.md has no changes of {version}: describe them below the heading"
    if notes(root, "Unreleased"):
        yield f"CHANGELOG.md has unreleased changes: ARGS=--prepare moves them below {version}"
    number = NUMBER.fullmatch(version)
    for path in sorted((root / "bmq").rglob("*.py")) if number else ():
        for major, minor in sorted({*re.findall(r"Added in (\d+)\.(\d+)", path.read_text(encoding="utf-8"))}):
            if number is not None and (int(major), int(minor)) > (int(number[1]), int(number[2])):
                yield f"{path.relative_to(root)} has 'Added in {major}.{minor}', which comes after {version}"
    for name in ("repository", "site"):
        address = links(root)[name]
        if not address.startswith("https://") or PLACEHOLDER.search(address):
            yield (
                f"[tool.bmq.links] in pyproject.toml has {name} = {address!r}: "
                "write the address, which begins with https://"
            )


def _is_date(text: str) -> bool:
    try:
        return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text)) and bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def prepare(root: Path, version: str, date: str) -> None:
    """Write the number of a release into the files that have it.

    Raises:
        Refused: the changelog has a heading for the version, or no unreleased changes.
    """
    if notes(root, version) is not None:
        raise Refused(
            f"CHANGELOG.md has a heading for {version}: the files are prepared, or the number is taken"
        )
    if not notes(root, "Unreleased"):
        raise Refused("CHANGELOG.md has no unreleased changes: a release without changes has no purpose")
    for name, old, new in (
        ("bmq/_version.py", r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"'),
        ("CHANGELOG.md", r"(?m)^## \[Unreleased\]$", f"## [Unreleased]\n\n## [{version}] - {date}"),
    ):
        path = root / name
        path.write_text(re.sub(old, new, path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")


def export(root: Path, folder: Path) -> list[str]:
    """Unpack the commit that is checked out into a folder, and return the names of its files."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True).stdout
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
        return [member.name for member in archive if not member.isdir()]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(python: Path, source: Path, folder: Path, seconds: str) -> list[Path]:
    """Build sdist and wheel of an exported commit, and return their paths.

    Args:
        python: the interpreter of the pinned tools.
        source: the exported commit.
        folder: for the archives.
        seconds: the time of the commit since 1970, for the archives.
    """
    run(python, "-m", "build", "--no-isolation", "--outdir", folder, source, SOURCE_DATE_EPOCH=seconds)
    return sorted(folder.iterdir())


def surprises(archive: Path, files: list[str]) -> list[str]:
    """Return the names that only the archive has, or only the commit.

    Args:
        archive: an sdist or a wheel.
        files: the names in the commit.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            found = {name for name in wheel.namelist() if ".dist-info/" not in name}
        wanted = {name for name in files if name.startswith(tuple(f"{each}/" for each in PACKAGES))}
    else:
        with tarfile.open(archive) as sdist:
            found = {name.partition("/")[2] for name in sdist.getnames()} - {"PKG-INFO"}
        wanted = set(files)
    return sorted(found ^ wanted)


def environment(folder: Path, *wanted: str | Path) -> Path:
    """Create an environment with pip's requirements in it, and return its interpreter."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(
        python,
        "-m",
        "pip",
        "install",
        *wanted,
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INPUT="1",
        PIP_QUIET="2",
    )
    return python


def try_archive(archive: Path, version: str, folder: Path) -> Path:
    """Install an archive into an empty environment, and use it there.

    Returns:
        The interpreter of the environment. The environment has the archive and its requirements, but no pip.
    """
    python = environment(folder, archive)
    command = python.parent / "bmq"
    if version not in (said := run(command, "--version")):
        raise Refused(f"bmq --version of {archive.name} prints {said!r}, without {version}")
    said = subprocess.run([command, "tail"], capture_output=True, text=True, check=False).stderr
    if "pip install 'bmq[cli]'" not in said:
        raise Refused(f"bmq tail of {archive.name} does not name the missing extra: {said!r}")
    run(python, "-c", SMOKE, cwd=folder)
    run(python, "-m", "pip", "uninstall", "--yes", "pip", "setuptools")
    return python


def bill(tools: Path, source: Path, archive: Path, python: Path, version: str, seconds: str) -> Path:
    """Write the bill of materials of an archive beside the archive, and return its path.

    Args:
        tools: the interpreter of the pinned tools.
        source: the exported commit.
        archive: an sdist or a wheel.
        python: the interpreter of the environment with the archive.
        version: the number of the release.
        seconds: the time of the commit since 1970, for the document.
    """
    path = archive.with_name(f"{archive.name}.cdx.json")
    run(
        tools, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--mc-type", "library",
        "--pyproject", source / "pyproject.toml", "--output-format", "JSON", "--output-file", path, python,
        SOURCE_DATE_EPOCH=seconds,
    )  # fmt: skip
    run(tools, "-c", BILL, path, archive.name, version, digest(archive))
    return path


def statement(
    files: list[Path], version: str, commit: str, repository: str, root: Path = ROOT
) -> dict[str, Any]:
    """Return a statement of the origin of files: in-toto's form, with the predicate of SLSA.

    Without a signature the statement proves nothing. The statement names the commit and the tools.
    """
    where = repository or "urn:bmq:no-repository"
    tools = root / ".ci" / "release-tools.txt"
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": digest(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{where}/blob/{commit}/.ci/release.py",
                "externalParameters": {"version": version},
                "internalParameters": {"python": sys.version.split()[0], "platform": sys.platform},
                "resolvedDependencies": [
                    {"uri": f"git+{where}", "digest": {"gitCommit": commit}},
                    {"name": tools.name, "digest": {"sha256": digest(tools)}},
                ],
            },
            "runDetails": {"builder": {"id": f"{where}/blob/{commit}/RELEASING.md#unsigned"}},
        },
    }


def sums(files: list[Path]) -> str:
    """Return the lines that ``sha256sum --check`` reads."""
    return "".join(f"{digest(path)}  {path.name}\n" for path in sorted(files))


def make(root: Path, version: str, target: Path, *, unsigned: bool) -> Mapping[str, Path]:
    """Make all files of a release in a folder, which is replaced.

    Args:
        root: the working tree.
        version: the number of the release.
        target: the folder.
        unsigned: whether to write the statement of origin without a signature.
    """
    commit, seconds = git(root, "log", "-1", "--format=%H %ct").split()
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        say("installing the tools")
        tools = environment(
            work / "tools", "--require-hashes", "--only-binary", ":all:",
            "--requirement", root / ".ci" / "release-tools.txt",
        )  # fmt: skip
        say("building, twice")
        builds: list[list[Path]] = []
        files: list[str] = []
        for folder, mask in (("one", 0o022), ("another", 0o077)):
            before = os.umask(mask)
            try:
                files = export(root, work / folder / "source")
                builds.append(build(tools, work / folder / "source", work / folder / "files", seconds))
            finally:
                os.umask(before)
        archives, again = builds
        for path, other in zip(archives, again, strict=True):
            if path.name != other.name or digest(path) != digest(other):
                raise Refused(f"two builds of {path.name} differ: compare {path.name} with diffoscope")
            if different := surprises(path, files):
                raise Refused(f"{path.name} and the commit have different files: {', '.join(different[:10])}")
        say(run(tools, "-m", "twine", "check", "--strict", *archives).strip())
        source = work / "one" / "source"
        made = list(archives)
        for number, path in enumerate(archives):
            say(f"trying {path.name} in an empty environment")
            python = try_archive(path, version, work / f"user-{number}")
            made.append(bill(tools, source, path, python, version, seconds))
        wheel = next(path for path in archives if path.suffix == ".whl")
        say("the demo, with the wheel")
        run(environment(work / "demo", f"{wheel}[cli]"), source / "examples" / "demo.py", "--fast", cwd=work)
        if unsigned:
            path = archives[0].with_name(f"bmq-{version}.provenance-unsigned.json")
            origin = statement(made, version, commit, links(root)["repository"], root)
            path.write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
            made.append(path)
        text = archives[0].with_name(f"bmq-{version}.notes.md")
        text.write_text(f"{notes(root, version) or 'No changes are described.'}\n", encoding="utf-8")
        run(tools, "-c", NOTES, text, cwd=source)
        made.append(text)
        path = archives[0].with_name("SHA256SUMS")
        path.write_text(sums(made), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        return {each.name: Path(shutil.copy(each, target)) for each in [*made, path]}


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="make release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "version", nargs="?", default="", help="the number of the release, like 1.2.3 or 1.2.3rc1"
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--prepare", action="store_true", help="write the number and the date into the files")
    modes.add_argument(
        "--check", action="store_true", help="list the reasons against a release, build nothing"
    )
    modes.add_argument("--rehearse", action="store_true", help="build in spite of them, into build/rehearsal")
    modes.add_argument(
        "--tagged", action="store_true", help="for the workflow: the tag exists, signatures follow"
    )
    options = parser.parse_args(arguments)
    version = options.version.removeprefix("v") or (current(root) if options.rehearse else "")
    if not NUMBER.fullmatch(version):
        parser.error(f"the version is {version!r}: give a number, like make release VERSION=1.2.3")
    try:
        if options.prepare:
            prepare(root, version, datetime.datetime.now(datetime.UTC).date().isoformat())
            say(f"wrote {version} into bmq/_version.py and CHANGELOG.md; read them, then")
            say(f"  git commit --all --message 'Release {version}'")
            return 0
        against = reasons(root, version, tagged=options.tagged)
        for reason in against:
            print(f"not ready: {reason}", file=sys.stderr)
        if options.check:
            say(f"{version} is not ready" if against else f"{version} is ready")
        if options.check or (against and not options.rehearse):
            return bool(against)
        target = root / "build" / "rehearsal" if options.rehearse else root / "dist"
        made = make(root, current(root) if options.rehearse else version, target, unsigned=not options.tagged)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    for name, path in made.items():
        say(f"{path.stat().st_size:>10,}  {path.parent.relative_to(root)}/{name}")
    if options.rehearse:
        say("a rehearsal: these files are not for publication")
    elif not options.tagged:
        say(f"next:\n  git tag --sign v{version}\n  git push --atomic origin main v{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
