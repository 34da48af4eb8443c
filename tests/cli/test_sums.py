# SPDX-License-Identifier: Apache-2.0
"""Metrics of several processes: sums that never fall, and texts that no process can break."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bmq.cli.combined import MetricSums

ONE = b"""\
# HELP handled_total Messages
# TYPE handled_total counter
handled_total{queue="a"} 3
handled_total{queue="b \\"quoted\\" } 7"} 4.0
# TYPE took_seconds histogram
took_seconds_bucket{le="0.1"} 1
took_seconds_bucket{le="+Inf"} 2
took_seconds_sum 1.5
took_seconds_count 2
# TYPE waiting gauge
waiting 5
# TYPE oldest_seconds gauge
oldest_seconds 9.5
# TYPE size summary
size{quantile="0.5"} 10
size_sum 40
size_count 4
plain 1
plain_total 1
"""


def values(text: str) -> dict[str, float]:
    """Return the samples, read by Prometheus' own parser, by name and labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found
            found[key] = sample.value
    return found


def test_counters_and_histograms_are_summed_and_gauges_follow_their_rule() -> None:
    sums = MetricSums()
    assert sums.update(1, ONE) is None
    assert (
        sums.update(2, ONE.replace(b"9.5", b"2").replace(b'quantile="0.5"} 10', b'quantile="0.5"} 30'))
        is None
    )
    text = sums.text()
    assert values(text) == {
        "handled_total{queue=a}": 6,
        'handled_total{queue=b "quoted" } 7}': 8,
        "took_seconds_bucket{le=0.1}": 2,
        "took_seconds_bucket{le=+Inf}": 4,
        "took_seconds_sum": 3,
        "took_seconds_count": 4,
        "waiting": 10,
        "oldest_seconds": 9.5,
        "size{quantile=0.5}": 30,
        "size_sum": 80,
        "size_count": 8,
        "plain": 2,
        "plain_total": 2,
    }
    assert "# HELP handled_total Messages\n# TYPE handled_total counter\n" in text


def test_counters_of_an_ended_process_are_kept_and_its_gauges_are_not() -> None:
    sums = MetricSums()
    for _ in range(3):
        sums.update(1, ONE)
        sums.update(2, ONE)
        sums.ended(1)
        sums.ended(1)
    found = values(sums.text())
    assert found["handled_total{queue=a}"] == 12
    assert found["took_seconds_bucket{le=+Inf}"] == 8
    assert found["size_count"] == 16
    assert found["plain_total"] == 4
    assert (found["waiting"], found["plain"], found["size{quantile=0.5}"]) == (5, 1, 10)


@pytest.mark.parametrize(
    "line",
    [
        b"no value",
        b'handled_total{queue="a" 3',
        b"handled_total{queue=a} 3",
        b"handled_total 0x10",
        b"handled_total 1_0",
        b"handled_total nan(1)",
        b"9lives 3",
        b"# TYPE handled_total enum",
        b"\xff\xfe\x00",
        b"a" * 1000,
        b"a{" + b'b="c",' * 1000,
    ],
)
def test_malformed_line_of_one_process_costs_only_the_line(line: bytes) -> None:
    sums = MetricSums()
    assert sums.update(1, ONE + line + b"\nlast_total 1\n") == len(ONE.splitlines()) + 1
    assert sums.update(2, ONE) is None
    found = values(sums.text())
    assert found["handled_total{queue=a}"] == 6
    assert found["last_total"] == 1


def test_kept_counters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.cli.combined._MOST_KEPT", 10)
    sums = MetricSums()
    for pid in range(100):
        sums.update(1, b'handled_total{pid="%d"} 1\nhandled_total{pid="0"} 1\n' % pid)
        sums.ended(1)
    found = values(sums.text())
    assert len(found) == 10
    assert found["handled_total{pid=0}"] == 100


def test_special_values_and_timestamps_are_understood() -> None:
    sums = MetricSums()
    sums.update(1, b"a_total +Inf\r\nb 1e3 1700000000000\nc NaN\nd -inf\n\n# a comment\n#\n")
    found = values(sums.text())
    assert math.isnan(found.pop("c"))
    assert found == {"a_total": math.inf, "b": 1000, "d": -math.inf}
