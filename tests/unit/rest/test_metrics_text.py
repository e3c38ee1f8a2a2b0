"""The metrics of a process in Prometheus' text format."""

from __future__ import annotations

import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tornado.httpclient import AsyncHTTPClient

from kiel_groups.errors import ConfigError
from kiel_groups.metrics import Metrics
from kiel_groups.rest.metric_meanings import MEANINGS
from kiel_groups.rest.metrics_text import metrics_answer, registry_families, serving_metrics

pytestmark = pytest.mark.unit


def registry() -> Metrics:
    metrics = Metrics()
    metrics.count("records_consumed", 3, topic="pv")
    metrics.count("records_consumed", 4, topic='odd "name"\n')
    metrics.gauge("buffered_bytes", 1024.0)
    metrics.observe("commit", 0.25)
    metrics.observe("commit", 0.5)
    return metrics


def test_counters_gauges_and_durations() -> None:
    """Each is of its kind, with its labels; a parser of Prometheus' text reads the same values back."""
    answer = metrics_answer(registry_families(({}, registry())))
    found = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert "process_resident_memory_bytes" in found
    assert {name: family.type for name, family in found.items() if name.startswith("kiel_")} == {
        "kiel_records_consumed": "counter",
        "kiel_buffered_bytes": "gauge",
        "kiel_commit_seconds": "summary",
    }
    assert found["kiel_commit_seconds"].documentation == MEANINGS["kiel_commit_seconds"].text
    assert found["kiel_records_consumed"].documentation == "Records consumed"
    values = {sample.labels["topic"]: sample.value for sample in found["kiel_records_consumed"].samples}
    assert values == {"pv": 3.0, 'odd "name"\n': 4.0}
    assert {each.name: each.value for each in found["kiel_commit_seconds"].samples} == {
        "kiel_commit_seconds_count": 2.0,
        "kiel_commit_seconds_sum": 0.75,
    }


def test_registries_with_labels_of_their_own() -> None:
    """A metric that several registries have is one family, whose samples differ by these labels."""
    answer = metrics_answer(registry_families(({"group": "a"}, registry()), ({"group": "b"}, registry())))
    found = {family.name: family for family in text_string_to_metric_families(answer.text)}
    samples = [(each.labels, each.value) for each in found["kiel_buffered_bytes"].samples]
    assert samples == [({"group": "a"}, 1024.0), ({"group": "b"}, 1024.0)]
    assert {each.labels["topic"] for each in found["kiel_records_consumed"].samples} == {"pv", 'odd "name"\n'}
    assert len(found["kiel_records_consumed"].samples) == 4


def test_metrics_of_a_part_have_its_labels_until_it_is_removed() -> None:
    """A task's metrics are those of its worker, too, while the task runs."""
    worker = Metrics()
    part = worker.part(connector="c", task="0")
    part.count("records_consumed", 3, topic="pv")
    labels = (("connector", "c"), ("task", "0"), ("topic", "pv"))
    assert list(worker.samples()) == [("records_consumed", labels, 3.0)]
    worker.remove(part)
    assert list(worker.samples()) == []


async def test_a_port_serves_them() -> None:
    """The port answers during the block; one that is in use is an error that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            async with serving_metrics(Metrics(), port):
                pytest.fail("served on a port that is in use")
    async with serving_metrics(registry(), port):
        client = AsyncHTTPClient(force_instance=True)
        answer = await client.fetch(f"http://127.0.0.1:{port}/metrics")
        client.close()
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'kiel_records_consumed_total{topic="pv"} 3.0' in answer.body
