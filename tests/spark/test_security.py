# SPDX-License-Identifier: Apache-2.0
"""Credentials and TLS of Spark jobs: given values are used, and do not leak."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

import bmq
from bmq.spark import write_partition
from bmq.spark.connection import shutdown
from tests.certificates import Certificates, make_certificates
from tests.spark.bench import DOMAIN, BrokerThread

SECRET = "correct horse"
QUEUE = f"bmq://{DOMAIN}/guarded"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(certificates: Certificates) -> Iterator[BrokerThread]:
    """A broker that requires a password and a client certificate."""
    context = certificates.context(ssl.Purpose.CLIENT_AUTH, "broker")
    context.verify_mode = ssl.CERT_REQUIRED
    with BrokerThread(ssl=context, auth={"ann": SECRET}) as broker:
        yield broker
        shutdown()


@pytest.fixture
def tls(certificates: Certificates) -> dict[str, str]:
    folder = certificates.directory
    return {
        "tls_ca_file": str(folder / "ca.pem"),
        "tls_cert_file": str(folder / "client.pem"),
        "tls_key_file": str(folder / "client.key"),
    }


def stored(broker: BrokerThread) -> int:
    return broker.call(lambda b: len(b.queues[QUEUE]) if QUEUE in b.queues else 0)


def post(broker: BrokerThread, **options: str) -> int:
    """Post a row, and return how many messages that made."""
    before = stored(broker)
    write_partition(queue=QUEUE, broker=broker.uri, connect_timeout=5.0, **options)(iter([Row(value="x")]))
    return stored(broker) - before


class Made:
    """Credentials by a class."""

    def __call__(self) -> bmq.Credentials:
        return bmq.Credentials.basic("ann", SECRET)


def made() -> bmq.Credentials:
    """Credentials by a function."""
    return bmq.Credentials.basic("ann", SECRET)


@pytest.mark.parametrize(
    "given",
    [
        {"user": "ann", "password": SECRET},
        {"user": "ann", "password_env": "SHOP_PASSWORD"},
        {"user": "ann", "password_env": "SHOP_PASSWORD", "mechanism": "basic"},
        {"credentials": f"{__name__}:made"},
        {"credentials": f"{__name__}:Made"},
    ],
    ids=["password", "environment", "mechanism", "function", "class"],
)
def test_a_job_uses_credentials_and_certificates(
    given: dict[str, str], guarded: BrokerThread, tls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    assert post(guarded, **given, **tls) == 1


def test_errors_are_reported(guarded: BrokerThread, tls: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    nobody = "tests.spark:nobody"
    for given, kind, text in (
        ({"user": "ann", "password": "wrong"}, bmq.AuthenticationError, r"\S"),
        ({"user": "a", "password_env": "SHOP"}, bmq.UsageError, "no environment variable 'SHOP' on"),
        ({"credentials": nobody}, bmq.UsageError, f"credentials '{nobody}' on .* no attribute 'nobody'"),
        ({"tls_ca_file": "/nowhere.pem"}, bmq.UsageError, r"TLS: .+ has no file '/nowhere.pem'"),
        ({"tls_cert_file": str(empty)}, bmq.UsageError, r"TLS: the files .*empty.pem"),
        ({"tls_server_name": "elsewhere.example"}, bmq.ConnectionFailed, "certificate"),
    ):
        with pytest.raises(kind, match=text):
            post(guarded, **(tls | given))


def test_no_plan_of_a_job_shows_the_password(
    spark: SparkSession, guarded: BrokerThread, tls: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"tlsCaFile": tls["tls_ca_file"], "tlsCertFile": tls["tls_cert_file"]}
    files["tlsKeyFile"] = tls["tls_key_file"]
    options = {**files, "user": "ann", "password": SECRET, "broker": guarded.uri, "queue": QUEUE}
    count = 20
    frame = spark.range(count).selectExpr("string(id) AS value")
    before = stored(guarded)
    frame.write.format("bmq").mode("append").options(**options).save()
    assert stored(guarded) == before + count
    read = spark.read.format("bmq").options(**options, idleTimeoutMs="300").load()
    read.explain(extended=True)
    assert SECRET not in capsys.readouterr().out
    assert len(read.collect()) == before + count
    # What the UI shows.
    assert SECRET not in str(spark.sparkContext._jsc.sc().statusStore().environmentInfo())
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [executions.apply(at).physicalPlanDescription() for at in range(executions.size())]
    assert any("bmq" in plan for plan in plans)
    assert not any(SECRET in plan for plan in plans)
