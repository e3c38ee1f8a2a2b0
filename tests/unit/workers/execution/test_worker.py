"""What a worker passes to its tasks."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from kiel_groups.workers.execution import worker
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from kiel_groups.workers.rest.rest_settings import RestSettings

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("coordination", "zookeeper", "expected"),
    [
        ("zookeeper", "z:2181", {"session_timeout_ms": 7_000}),
        ("brokers", None, {"session_timeout_ms": 7_000, "coordination": "brokers"}),
    ],
)
async def test_consumers_of_sinks_expire_with_their_worker(
    monkeypatch: pytest.MonkeyPatch,
    coordination: Literal["zookeeper", "brokers"],
    zookeeper: str | None,
    expected: dict[str, Any],
) -> None:
    """Otherwise the successor of a killed worker's sink task would wait longer for its partitions than for its task."""
    passed: list[Any] = []
    monkeypatch.setattr(worker, "KafkaClients", lambda *arguments: passed.append(arguments))
    settings = WorkerSettings(
        group="loaders",
        zookeeper="z:2181",
        brokers="k:9092",
        coordination=coordination,
        rest=RestSettings(port=0),
        session_timeout_ms=7_000,
    )
    await worker.Worker(settings).close()
    assert passed == [("k:9092", zookeeper, expected)]
