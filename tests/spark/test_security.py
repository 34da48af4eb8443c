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
from tests.spark.brokers import DOMAIN, BrokerThread

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


def camel(options: dict[str, str]) -> dict[str, str]:
    """The same as options of a DataFrame."""
    return {
        head + "".join(part.capitalize() for part in tail): value
        for (head, *tail), value in ((name.split("_"), value) for name, value in options.items())
    }


def stored(broker: BrokerThread) -> int:
    return broker.call(lambda b: len(b.queues[QUEUE]))


def post(broker: BrokerThread, **options: str) -> int:
    """Post a row, and return how many messages that made."""
    before = stored(broker) if QUEUE in broker.call(lambda b: set(b.queues)) else 0
    write_partition(queue=QUEUE, broker=broker.uri, connect_timeout=5.0, **options)(iter([Row(value="x")]))
    return stored(broker) - before


class Made:
    """Credentials by a class."""

    def __call__(self) -> bmq.Credentials:
        return bmq.Credentials.basic("ann", SECRET)


def made() -> bmq.Credentials:
    """Credentials by a function."""
    return bmq.Credentials.basic("ann", SECRET)


def test_a_job_uses_a_password_and_certificates(guarded: BrokerThread, tls: dict[str, str]) -> None:
    assert post(guarded, user="ann", password=SECRET, **tls) == 1


def test_a_job_reads_the_password_from_the_environment(
    guarded: BrokerThread, tls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    assert post(guarded, user="ann", password_env="SHOP_PASSWORD", **tls) == 1
    assert post(guarded, user="ann", password_env="SHOP_PASSWORD", mechanism="basic", **tls) == 1
    with pytest.raises(bmq.UsageError, match="passwordEnv: no environment variable 'SHOP_PASWORD' on "):
        post(guarded, user="ann", password_env="SHOP_PASWORD", **tls)


@pytest.mark.parametrize("name", ["made", "Made"])
def test_credentials_come_from_a_function_or_class(
    name: str, guarded: BrokerThread, tls: dict[str, str]
) -> None:
    assert post(guarded, credentials=f"{__name__}:{name}", **tls) == 1


def test_errors_are_reported(guarded: BrokerThread, tls: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(bmq.AuthenticationError):
        post(guarded, user="ann", password="wrong", **tls)
    with pytest.raises(bmq.UsageError, match=r"credentials 'tests.spark:nobody' on .* no attribute 'nobody'"):
        post(guarded, credentials="tests.spark:nobody", **tls)
    with pytest.raises(bmq.UsageError, match=r"TLS: .+ has no file '/nowhere.pem'"):
        post(guarded, **(tls | {"tls_ca_file": "/nowhere.pem"}))
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(bmq.UsageError, match=r"TLS: the files .*empty.pem"):
        post(guarded, **(tls | {"tls_cert_file": str(empty)}))
    with pytest.raises(bmq.ConnectionFailed, match="certificate"):
        post(guarded, user="ann", password=SECRET, **(tls | {"tls_server_name": "elsewhere.example"}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"password": "a", "password_env": "B"},
            "password and passwordEnv exclude each other: give one of the two",
        ),
        ({"credentials": "a:b", "user": "c"}, "credentials supplies user, password and mechanism"),
        ({"credentials": "a.b"}, "credentials must be MODULE:NAME, not 'a.b'"),
        ({"tls_key_file": "k"}, "tlsKeyFile is the key of tlsCertFile, which is missing"),
    ],
)
def test_conflicting_options_are_refused_before_the_job(options: dict[str, str], said: str) -> None:
    with pytest.raises(bmq.UsageError, match=said):
        write_partition(queue=QUEUE, **options)


def test_no_plan_of_a_job_shows_the_password(
    spark: SparkSession, guarded: BrokerThread, tls: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = camel({**tls, "user": "ann", "password": SECRET}) | {"broker": guarded.uri, "queue": QUEUE}
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
