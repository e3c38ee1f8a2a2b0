"""The stores of worker groups on real ZooKeeper servers of both versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClaimLostError, ConfigError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import LARGEST_BYTES, Create, Delete, Done
from kiel_groups.group.znodes.worker_contents import TargetState, WorkState, WorkStatus
from kiel_groups.metrics import Metrics
from kiel_groups.ops.zookeeper_client import create_chroot, zookeeper
from kiel_groups.workers.stores.config_store import ConfigStore
from kiel_groups.workers.stores.source_offset_store import SourceOffsetStore
from kiel_groups.workers.stores.status_store import StatusStore
from kiel_groups.workers.stores.worker_group_view import WorkerGroup, describe_workers
from kiel_groups.workers.values import ConnectorId, TaskId, Work
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.heartbeat import Heartbeat
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session, SessionEvent
from tests.helpers.answer_losers import AnswerLoser

pytestmark = pytest.mark.integration

LAYOUT = WorkerLayout("g")
RUNNING = WorkStatus(WorkState.RUNNING, "h:1")
CONNECTOR = ConnectorId("grüße/1")


@pytest.fixture
def hosts(cluster: Cluster, unique: Callable[[str], str]) -> str:
    """Return a ZooKeeper of either version, with a chroot of this test."""
    address = f"{cluster.zk_hosts.partition('/')[0]}/{unique('workers')}"
    create_chroot(address)
    return address


@dataclass
class StoringWorker:
    """The stores of a worker on an open session."""

    session: Session
    worker_id: str
    configuration: ConfigStore
    statuses: StatusStore
    offsets: SourceOffsetStore

    async def claim(self, work: Work) -> None:
        """Claim a connector or a task."""
        await self.session.ensure([LAYOUT.connector_owners(work.connector)])
        claimed = await self.session.transact([Create(LAYOUT.owner(*work), b"w", ephemeral=True)])
        assert isinstance(claimed, Done)


async def _caught_up() -> None:
    """Do nothing: these workers have no watches before whose events they must not write."""


def _ignore(event: SessionEvent) -> None:
    """Drop the event."""


@asynccontextmanager
async def storing(hosts: str, worker_id: str) -> AsyncIterator[StoringWorker]:
    """Provide a worker with a session of its own."""
    runtime, metrics = Runtime(), Metrics()
    session = Session(ZooKeeperConfig.parse(hosts, session_timeout_ms=10_000), metrics, _ignore, runtime)
    async with asyncio.timeout(60.0):
        await session.open()
    try:
        await session.ensure(LAYOUT.folders)
        assert isinstance(await session.transact([Create(LAYOUT.worker(worker_id), ephemeral=True)]), Done)
        heartbeat = Heartbeat(session, LAYOUT.worker(worker_id), None, metrics, runtime)
        heartbeat.start()
        writer = FencedWriter(session, LAYOUT.worker(worker_id), _caught_up)
        yield StoringWorker(
            session,
            worker_id,
            ConfigStore(session, writer, LAYOUT, worker_id, runtime),
            StatusStore(session, writer, LAYOUT),
            SourceOffsetStore(session, writer, LAYOUT),
        )
        heartbeat.stop()
    finally:
        await session.close()


def described(hosts: str) -> WorkerGroup:
    """Return the group as a tool reads it."""
    with zookeeper(hosts) as client:
        return describe_workers(client, "g")


async def test_workers_change_one_configuration(hosts: str) -> None:
    """Concurrent changes form one sequence, which a follower and a tool see, too."""
    async with storing(hosts, "w1") as one, storing(hosts, "w2") as other, asyncio.timeout(60.0):
        seen: list[int] = []
        done = asyncio.Event()

        async def change(worker: StoringWorker) -> list[int]:
            return [await worker.configuration.put_connector(f"{worker.worker_id}/{n}", {}) for n in range(20)]

        following = asyncio.ensure_future(
            other.configuration.follow(
                lambda snapshot: (seen.append(snapshot.offset), snapshot.offset == 41 and done.set())[0]
            )
        )
        offsets = await asyncio.gather(change(one), change(other))
        assert sorted([*offsets[0], *offsets[1]]) == list(range(1, 41))
        await one.configuration.set_target_state("w2/3", TargetState.PAUSED)
        await done.wait()
        following.cancel()
        assert seen == sorted(set(seen))
        snapshot = await other.configuration.snapshot(current=True)
        assert len(snapshot.connectors) == 40
        assert snapshot.connectors["w2/3"].target is TargetState.PAUSED
        group = await asyncio.to_thread(described, hosts)
        assert group.configuration == snapshot
        assert len(group.history) == 41
        assert set(group.workers) == {"w1", "w2"}


async def test_statuses_and_source_offsets_end_with_their_claim(hosts: str) -> None:
    """The owner of a task stores its status and offsets; after the release it stores nothing, and nothing counts."""
    task = TaskId(CONNECTOR.connector, 0)
    many = [({"file": str(number)}, {"position": number}) for number in range(500)]
    async with storing(hosts, "w1") as worker, asyncio.timeout(60.0):
        await worker.configuration.put_connector(task.connector, {})
        await worker.configuration.put_task_configs(task.connector, [{}])
        for work in (CONNECTOR, task):
            await worker.claim(work)
        assert await worker.statuses.put_many({task: RUNNING, CONNECTOR: RUNNING}) == {task, CONNECTOR}
        for _ in range(2):
            await worker.offsets.write(task, many)
        assert await worker.statuses.read([CONNECTOR, task]) == {CONNECTOR: RUNNING, task: RUNNING}
        last = await worker.offsets.operations(task, [(many[0][0], {"position": 7})])
        released = await worker.session.transact([*last, Delete(LAYOUT.owner(*task))])
        assert isinstance(released, Done)
        assert not await worker.statuses.put(task, RUNNING)
        with pytest.raises(ClaimLostError):
            await worker.offsets.write(task, many)
        assert (await worker.statuses.read([task]))[task].state is WorkState.UNASSIGNED
        stored = [await worker.offsets.read(task.connector, partition) for partition, _ in many]
        assert stored == [{"position": 7}, *[offset for _, offset in many[1:]]]
        await worker.configuration.delete_connector(task.connector)
        assert await worker.session.children(LAYOUT.statuses) == []
        assert len(await worker.session.children(LAYOUT.connector_offsets(task.connector)) or ()) == 500


async def test_the_largest_connector_is_stored(hosts: str) -> None:
    """A connector of the largest size fits into a real server's transaction, with its entry of the history."""
    async with storing(hosts, "w1") as worker, asyncio.timeout(60.0):
        store = worker.configuration
        settings = {f"{number:03d}" + "k" * 200: "" for number in range(100)}
        settings["x"] = "y" * (LARGEST_BYTES - 22_000)
        for _ in range(101):
            await store.put_connector("small", {})
        await store.put_connector("ü" * 200, settings)
        with pytest.raises(ConfigError, match="fit into a znode"):
            await store.put_connector("ü" * 200, settings | {"z": "y" * 22_000})
        assert (await store.snapshot()).connectors["ü" * 200].config == settings
        assert len((await asyncio.to_thread(described, hosts)).history) == 100


@pytest.mark.parametrize("is_request_lost", [False, True], ids=["answer", "request"])
async def test_a_change_whose_answer_is_lost_is_written_once(hosts: str, is_request_lost: bool) -> None:
    """After a broken connection, the worker finds out whether its change was written, and writes it if not."""
    address, slash, chroot = hosts.partition("/")
    with AnswerLoser(address) as proxy:
        async with storing(proxy.address + slash + chroot, "w1") as worker, asyncio.timeout(60.0):
            proxy.lose_answer_to(b'"uid":', request_too=is_request_lost)
            changing = asyncio.ensure_future(worker.configuration.put_connector("c", {}, is_new=True))
            assert await asyncio.to_thread(partial(proxy.caught.wait, 20.0))
            proxy.reconnect()
            assert await changing == 1
            assert [change.what for change in (await asyncio.to_thread(described, hosts)).history] == ["created"]
