# SPDX-License-Identifier: Apache-2.0
"""bmq domains: files checked by the schema, differences with consequences, and applying."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Bmq, Ran
from tests.sweeps import sweep

LIMITS = {"messages": 1000, "bytes": 1_000_000}
FANOUT = "d.fanout"
URI = f"bmq://{FANOUT}/orders"
Edit = Callable[[dict[str, Any]], Any]


def limit(limits: str, **members: Any) -> Edit:
    return lambda p: p["storage"][limits].update(members)


def definition(mode: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "mode": mode,
        "storage": {"domainLimits": {**LIMITS}, "queueLimits": {**LIMITS}, "config": {"inMemory": {}}},
        "messageTtl": 300,
        "consistency": {"eventual": {}},
        **more,
    }
    return {"definition": {"location": "local", "parameters": copy.deepcopy(parameters)}}


PRIORITY = definition({"priority": {}})


def fill(folder: Path, **files: Any) -> Path:
    inner = folder / "domains"
    inner.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (inner / f"{name.replace('_', '.')}.json").write_text(text)
    return folder


def edited(document: dict[str, Any], edit: Edit) -> dict[str, Any]:
    made = copy.deepcopy(document)
    edit(made["definition"]["parameters"])
    return made


# ---- files


def without(name: str) -> Edit:
    return lambda p: p.pop(name)


def with_(**members: Any) -> Edit:
    return lambda p: p.update(members)


WRONG: list[tuple[Any, str]] = [
    ("", "is not JSON"),
    ("[1]", 'must have either "definition" or "redirect"'),
    ('{"definition": {}, "redirect": "x"}', 'must have either "definition" or "redirect"'),
    ('{"definition": {"location": "local"}}', "definition.parameters: is missing"),
    ('{"definition": NaN}', "NaN is not a number of JSON"),
    ('{"redirect": "d.x"}', "must be the name of another domain"),
    ('{"redirect": "d.y", "redirect": "d.z"}', "the member 'redirect' occurs twice"),
    ("[" * 100_000, "is nested too deeply"),
    (without("messageTtl"), "messageTtl: is missing: a broker takes 0"),
    (without("mode"), "mode: is missing"),
    (without("consistency"), "consistency: is missing: a broker takes eventual"),
    (without("storage"), "storage: is missing"),
    (with_(messageTtl="300"), 'messageTtl: must be an integer from 0 to 9223372036854775807, not \'300\''),
    (with_(messageTtl=-1), "must be an integer from 0"),
    (with_(messageTtl=True), "must be an integer from 0"),
    (with_(maxConsumers=2**31), "must be an integer from 0 to 2147483647"),
    (with_(maxDeliveryAttempts=64), "must be an integer from 0 to 63"),
    (with_(maxconsumers=1), "did you mean maxConsumers?"),
    (limit("queueLimits", byte=1), "storage.queueLimits.byte: is unknown to brokers"),
    (with_(mode={"priority": {}, "other": {}}), "mode: must be one of"),
    (with_(msgGroupIdConfig={"rebalance": 1}), "msgGroupIdConfig.rebalance: must be of the kind of"),
    (with_(mode={}), 'mode: must have exactly one of'),
    (with_(mode={"priority": {}, "broadcast": {}}), "mode: must have exactly one of"),
    (with_(mode={"fanout": {}}), "mode.fanout.appIDs: is missing"),
    (with_(mode={"fanout": {"appIDs": ["a", "a"]}}), "'a' is listed twice"),
    (with_(mode={"fanout": {"appIDs": [""]}}), "must be a name"),
    (with_(mode={"broadcast": {}}, storage={**PRIORITY["definition"]["parameters"]["storage"],
     "config": {"fileBacked": {}}}), "must be inMemory in a broadcast domain"),
    (with_(consistency={"weak": {}}), "consistency: must be one of eventual, strong, not weak"),
    (with_(name="other"), "must be the file's name"),
    (with_(subscriptions=[{"appId": "", "expression": {"version": "E_VERSION_1", "text": "x >"}}]),
     "subscriptions[0].expression.text"),
    (with_(subscriptions=[{"appId": "", "expression": {"text": "x > 1"}}]), "Unsupported version"),
    (limit("domainLimits", messagesWatermarkRatio=1.5), "must be from 0 to 1, not 1.5"),
    (lambda p: p["storage"]["queueLimits"].pop("bytes"), "storage.queueLimits.bytes: is missing"),
]  # fmt: skip


DOUBTFUL: list[tuple[Any, str]] = [
    (with_(future={"x": 1}), "is unknown to the schema"),
    (with_(consistency={"strong": {}}), "a broker acknowledges no post to a strong domain in memory"),
    (with_(messageTtl=0), "deletes messages after a second"),
    (with_(mode={"fanout": {"appIDs": []}}), "no application"),
    (with_(mode={"broadcast": {}}, consistency={"strong": {}}), "brokers take a broadcast domain as"),
    (limit("domainLimits", messages=10), "has no effect: the limit of the whole"),
]


@sweep(
    "content, status, kind, message",
    [
        *((content, 1, "d.x: INVALID", message) for content, message in WRONG),
        *((content, 2, "warning: ", message) for content, message in DOUBTFUL),  # 2: a new domain
    ],
)
def test_a_wrong_or_doubtful_file_is_reported_without_a_broker(
    offline: Bmq, tmp_path: Path, content: Any, status: int, kind: str, message: str
) -> None:
    fill(tmp_path, d_x=edited(PRIORITY, content) if callable(content) else content)
    ran = offline("domains", "plan", str(tmp_path), "--offline")
    assert (ran.status, ran.err) == (status, "")
    assert kind in ran.out
    assert message in ran.out


def test_a_missing_folder_is_an_error_of_plan(offline: Bmq, tmp_path: Path) -> None:
    """The exit status 2 of plan means differences, and nothing else."""
    for folder in (tmp_path / "missing", tmp_path):
        ran = offline("domains", "plan", str(folder), "--offline")
        assert (ran.status, ran.out) == (1, "")
        assert ran.err.startswith("bmq domains plan: ")
    assert offline("domains", "apply", str(tmp_path), "--offline").status == 2
    folder = fill(tmp_path, d_x=PRIORITY)
    assert offline("domains", "plan", str(folder), "-b", "tcp://127.0.0.1:1").status == 1


# ---- differences


def test_differences_of_two_folders(offline: Bmq, tmp_path: Path) -> None:
    old = fill(tmp_path / "old", d_x=PRIORITY, d_y=PRIORITY, d_gone=PRIORITY)
    changed = edited(PRIORITY, with_(messageTtl=60, maxConsumers=0))
    new = fill(tmp_path / "new", d_x=changed, d_y=PRIORITY, d_more={"redirect": "d.x"})
    wrong = fill(tmp_path / "wrong", d_x="{")
    ran = offline("domains", "diff", str(old), str(new))
    assert (ran.status, ran.err) == (1, "")
    assert ran.lines[:2] == [f"d.gone: only in {old}", f"d.more: only in {new}"]
    assert ran.lines[2:4] == ["d.x:", "    messageTtl: 300 -> 60"]
    assert "d.y" not in ran.out
    found = {each["name"]: each for each in offline("domains", "diff", str(old), str(new), "-o", "json").json}
    assert found["d.x"]["changes"][0]["weight"] == "deletes"
    assert (found["d.gone"]["only"], found["d.x"]["only"]) == (str(old), None)
    one = old / "domains" / "d.x.json"
    for left, right, status in (
        (old, old, 0),
        (one, new, 1),
        (old, tmp_path / "missing", 2),
        (old, wrong, 2),
    ):
        assert offline("domains", "diff", str(left), str(right)).status == status, right


def subscribed(app: str, text: str) -> dict[str, Any]:
    return {"appId": app, "expression": {"version": "E_VERSION_1", "text": text}}


A_AND_B = [subscribed("a", "x > 1"), subscribed("b", "x > 2")]


@sweep(
    "edit, weight, sentence",
    [
        (with_(mode={"priority": {}}, subscriptions=[]), "refused", "refuses to change the mode"),
        (lambda p: p["storage"].update(config={"fileBacked": {}}), "refused", "the kind of storage"),
        (lambda p: p["mode"]["fanout"].update(appIDs=["b", "c"]), "deletes", "wait for a are deleted"),
        (lambda p: p["mode"]["fanout"].update(appIDs=["b", "a"]), "", ""),
        (with_(messageTtl=3), "deletes", "older than 3 s"),
        (with_(messageTtl=600), "note", "live 300 s longer"),
        (with_(maxProducers=3), "warning", "further producers are refused"),
        (with_(maxDeliveryAttempts=3), "warning", "further lost connections"),
        (with_(deduplicationTimeMs=3), "warning", "existing queues keep"),
        (with_(consistency={"strong": {}}), "warning", "acknowledged later"),
        (with_(subscriptions=A_AND_B[1:]), "note", "every message posted from now on is for a"),
        (with_(subscriptions=[]), "note", "every message posted from now on"),
    ],
)
def test_each_change_has_its_consequence(
    offline: Bmq, tmp_path: Path, edit: Edit, weight: str, sentence: str
) -> None:
    fanout = definition({"fanout": {"appIDs": ["a", "b"]}}, subscriptions=A_AND_B)
    old, new = fill(tmp_path / "old", d_x=fanout), fill(tmp_path / "new", d_x=edited(fanout, edit))
    ran = offline("domains", "diff", str(old), str(new), "-o", "json")
    changes = [change for each in ran.json for change in each["changes"]]
    assert [change["weight"] for change in changes[:1]] == ([weight] if weight else [])
    assert sentence in " ".join(text for change in changes for text in change["consequences"])


# ---- a running broker


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    fanout = definition({"fanout": {"appIDs": ["a", "b"]}})
    return fill(tmp_path / "etc", d_fanout=fanout, d_priority=PRIORITY)


@pytest.fixture
def broker(etc: Path) -> Iterator[BackgroundBroker]:
    with BackgroundBroker(config_dir=etc) as broker:
        with bmq.blocking.connect(broker.uri) as session:
            queue = session.open_queue(URI, write=True)
            for number in range(3):
                queue.post(str(number).encode())
        yield broker


@pytest.fixture
def wanted(etc: Path, tmp_path: Path) -> Path:
    fanout = json.loads((etc / "domains" / f"{FANOUT}.json").read_text())

    def edit(parameters: dict[str, Any]) -> None:
        parameters["mode"]["fanout"]["appIDs"] = ["a", "c"]
        parameters["messageTtl"] = 600
        parameters["storage"]["queueLimits"]["messages"] = 2

    return fill(tmp_path / "wanted", d_fanout=edited(fanout, edit), d_priority=PRIORITY, d_new=PRIORITY)


def test_plan_and_apply_on_a_running_broker(
    offline: Bmq, broker: BackgroundBroker, etc: Path, wanted: Path
) -> None:
    def run(verb: str, folder: Path, *more: str) -> Ran:
        return offline("domains", verb, str(folder), *more, "--broker", broker.uri)

    where = ("-c", str(etc))
    assert run("plan", etc).status == 0
    ran = run("plan", wanted, *where)
    assert (ran.status, ran.err) == (2, "")
    assert "b loses 3 messages in 1 queue" in ran.out
    assert f"above the limit: {URI}" in ran.out
    assert ran.lines[-1] == "3 domains: 1 to change, 1 new, 1 without changes"
    found = run("plan", wanted, *where, "-o", "json").json[0]
    assert found["summary"] == {"none": 1, "change": 1, "create": 1, "refused": 0, "invalid": 0}
    # Without a terminal nothing is applied, and without the broker's folder a new file is not in place.
    assert run("apply", wanted, *where).status == 2
    ran = run("apply", wanted, "--yes")
    assert ran.status == 1
    assert "still has mode.fanout.appIDs" in ran.err
    assert "d.new: tcp://" in ran.err
    ran = run("apply", wanted, *where, "--yes")
    assert (ran.status, ran.err) == (0, "")
    assert "d.fanout: done" in ran.lines
    for _ in range(2):
        assert run("plan", wanted, *where).status == 0
        assert run("apply", wanted, *where, "--yes").status == 0
    with bmq.blocking.connect(broker.uri) as session:
        session.open_queue(f"{URI}?id=c", read=True)
    assert offline("domains", "diff", broker.uri, str(wanted)).status == 0
    assert [each.name for each in (etc / "domains").iterdir() if not each.name.endswith(".json")] == []


def test_a_refused_change_is_not_written_and_the_rest_is_applied(
    offline: Bmq, broker: BackgroundBroker, etc: Path, wanted: Path
) -> None:
    fill(wanted, d_fanout=PRIORITY, d_bad="{")
    before = (etc / "domains" / f"{FANOUT}.json").read_bytes()
    arguments = (str(wanted), "-c", str(etc), "--broker", broker.uri)
    assert offline("domains", "plan", *arguments).status == 1
    ran = offline("domains", "apply", *arguments, "--yes", "-o", "json")
    assert ran.status == 1
    assert {each["name"]: (each["done"], each["problems"]) for each in ran.json} == {
        "d.new": (True, []),
        "d.bad": (False, ["not applied: see the plan"]),
        FANOUT: (False, ["not applied: see the plan"]),
    }
    assert (etc / "domains" / f"{FANOUT}.json").read_bytes() == before
    assert not (etc / "domains" / "d.bad.json").exists()


def test_the_file_is_restored_if_the_broker_refuses(
    offline: Bmq, broker: BackgroundBroker, etc: Path, wanted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: bmq.admin.Admin, name: str) -> None:
        raise bmq.errors.AdminError("no", command="x", broker_message=f"no {name}")

    monkeypatch.setattr(bmq.admin.Admin, "reconfigure", refuse)
    before = {each.name: each.read_bytes() for each in (etc / "domains").iterdir()}
    ran = offline("domains", "apply", str(wanted), "-c", str(etc), "--broker", broker.uri, "--yes")
    assert ran.status == 1
    assert "refused: no d.fanout" in ran.err
    assert "has its previous content again" in ran.err
    assert {each.name: each.read_bytes() for each in (etc / "domains").iterdir()} == before


def test_an_unknown_cluster_is_refused(offline: Bmq, broker: BackgroundBroker, wanted: Path) -> None:
    elsewhere = copy.deepcopy(PRIORITY)
    elsewhere["definition"]["location"] = "elsewhere"
    fill(wanted, d_new=elsewhere)
    ran = offline("domains", "plan", str(wanted / "domains" / "d.new.json"), "--broker", broker.uri)
    assert ran.status == 1
    assert "the broker has no cluster elsewhere, but local" in ran.out
    assert f"left alone, without a file: {FANOUT}" in ran.out


def test_messages_older_than_a_shorter_lifetime_are_counted(
    offline: Bmq, broker: BackgroundBroker, etc: Path, wanted: Path
) -> None:
    fanout = json.loads((etc / "domains" / f"{FANOUT}.json").read_text())

    def plan(ttl: int) -> Ran:
        fill(wanted, d_fanout=edited(fanout, with_(messageTtl=ttl)))
        return offline("domains", "plan", str(wanted), "--broker", broker.uri, "-o", "json")

    (change,) = [each for step in plan(0).json[0]["domains"] for each in step["changes"]]
    assert (change["weight"], change["path"]) == ("deletes", "messageTtl")
    lost = "older than 0 s, and deleted at the next check: 3 of 3 messages"
    assert change["consequences"][0].startswith(lost)
    assert "no stored message is older than 200 s" in plan(200).out
