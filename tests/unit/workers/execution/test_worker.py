"""What a worker passes to its tasks, and what it logs while it starts."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any, Literal

import pytest

from kiel_groups.errors import ConfigError, NoBrokersError
from kiel_groups.rest.settings import RestSettings
from kiel_groups.workers.execution import worker
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from kiel_groups.workers.plugins.plugin_registry import PluginRegistry
from tests.helpers.counting_connectors import COUNTING_SOURCE
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


async def no_other_members(group: str, brokers: str) -> None:
    """Do without brokers."""


@pytest.mark.parametrize(
    ("coordination", "zookeeper", "expected"),
    [
        ("zookeeper", "z:2181", {"session_timeout_ms": 7_000, "partition_allocator": "sticky"}),
        ("brokers", None, {"session_timeout_ms": 7_000, "coordination": "brokers"}),
    ],
)
async def test_consumers_of_sinks_expire_with_their_worker(
    monkeypatch: pytest.MonkeyPatch,
    coordination: Literal["zookeeper", "brokers"],
    zookeeper: str | None,
    expected: dict[str, Any],
) -> None:
    """
    Otherwise the successor of a killed worker's sink task would wait longer for its partitions than for its task. On
    ZooKeeper, few partitions move.
    """
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


@pytest.mark.parametrize(
    ("coordination", "waits_for"),
    [("zookeeper", "ZooKeeper at z:2181"), ("brokers", "a coordinator among the brokers at k:9092")],
)
@pytest.mark.parametrize("joins", [True, False])
async def test_the_interface_is_announced_when_the_worker_has_joined(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    coordination: Literal["zookeeper", "brokers"],
    waits_for: str,
    joins: bool,
) -> None:
    """
    Before that, the log says what the worker waits for, and in the end that it has stopped in order. A worker that
    cannot join announces nothing.
    """
    caplog.set_level("INFO", worker.__name__)

    async def open_session(session: object) -> None:
        """Do without ZooKeeper."""

    async def join(member: object) -> None:
        assert "REST interface" not in caplog.text
        if not joins:
            raise NoBrokersError("no coordinator")

    async def probe(group: str, brokers: str) -> None:
        """Do without brokers."""

    monkeypatch.setattr(worker.WorkerSession, "start", open_session)
    monkeypatch.setattr(worker.GenericMember, "start", join)
    monkeypatch.setattr(worker, "probe_brokers", probe)
    monkeypatch.setattr(worker, "check_members", no_other_members)
    made = worker.Worker(
        WorkerSettings(
            group="loaders", zookeeper="z:2181", brokers="k:9092", coordination=coordination, rest=RestSettings(port=0)
        )
    )
    with nullcontext() if joins else pytest.raises(NoBrokersError):
        await made.start()
    await made.close()
    expected = [f"group loaders: joining by {waits_for}"]
    if joins:
        expected += [f"the REST interface of this worker is at {made.url}"]
        expected += ["group loaders: this worker has stopped its work in order"]
    assert caplog.messages == expected


async def test_a_worker_that_other_machines_reach_refuses_classes_that_are_not_installed() -> None:
    """The settings of the worker decide, unless a program passes connectors of its own."""
    rest = RestSettings(host="0.0.0.0", port=0, token="t0ken-of-all-workers")
    settings = WorkerSettings(group="loaders", zookeeper="z:2181", brokers="k:9092", rest=rest)
    made, own = worker.Worker(settings), worker.Worker(settings, PluginRegistry())
    with pytest.raises(ConfigError, match="is not allowed on this worker; expected one of"):
        await made._plugins.resolve(COUNTING_SOURCE)
    assert await own._plugins.resolve(COUNTING_SOURCE)
    await made.close()
    await own.close()


async def test_a_worker_warns_at_its_start_of_entry_points_without_a_connector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It joins its group meanwhile: the import of the installed connectors may take long."""
    joined = asyncio.Event()

    async def open_session(session: object) -> None:
        """Do without ZooKeeper."""

    async def join(member: object) -> None:
        await eventually(lambda: "Gone" in caplog.text, "the warning")
        joined.set()

    async def probe(group: str, brokers: str) -> None:
        """Do without brokers."""

    monkeypatch.setattr(worker.WorkerSession, "start", open_session)
    monkeypatch.setattr(worker.GenericMember, "start", join)
    monkeypatch.setattr(worker, "probe_brokers", probe)
    monkeypatch.setattr(worker, "check_members", no_other_members)
    settings = WorkerSettings(group="loaders", zookeeper="z:2181", brokers="k:9092", rest=RestSettings(port=0))
    made = worker.Worker(settings, PluginRegistry([("Gone", f"{__name__}:Missing")]))
    await made.start()
    await made.close()
    assert joined.is_set()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "the entry point 'Gone' of the group kiel_groups.connectors offers no usable connector" in warning
    assert "has no class 'Missing'" in warning


@pytest.mark.parametrize(("coordination", "probes"), [("zookeeper", 1), ("brokers", 0)])
async def test_brokers_are_asked_beside_the_start(
    monkeypatch: pytest.MonkeyPatch, coordination: Literal["zookeeper", "brokers"], probes: int
) -> None:
    """The start does not wait for their answer, and a close ends the question."""
    ended: list[asyncio.CancelledError] = []
    asked = asyncio.Event()

    async def probe(group: str, brokers: str) -> None:
        assert (group, brokers) == ("loaders", "k:9092")
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    async def open_nothing(part: object) -> None:
        """Do without servers."""

    monkeypatch.setattr(worker, "probe_brokers", probe)
    monkeypatch.setattr(worker, "check_members", no_other_members)
    monkeypatch.setattr(worker.WorkerSession, "start", open_nothing)
    monkeypatch.setattr(worker.GenericMember, "start", open_nothing)
    made = worker.Worker(
        WorkerSettings(
            group="loaders", zookeeper="z:2181", brokers="k:9092", coordination=coordination, rest=RestSettings(port=0)
        )
    )
    await made.start()
    if probes:
        await asked.wait()
    await made.close()
    assert len(ended) == probes
