"""Workers that lose the brokers that coordinate them, but not ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.worker_contents import WorkerInfo
from kiel_groups.ops.zookeeper_client import Client
from kiel_groups.wire.error_codes import CONSUMER_COORDINATOR_NOT_AVAILABLE
from kiel_groups.wire.group_requests import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kiel_groups.workers.stores.worker_group_view import describe_workers
from kiel_groups.workers.values import Work
from tests.helpers.cluster_data import zookeeper
from tests.helpers.journal_connector import check_order
from tests.helpers.waiting import eventually, throughout
from tests.helpers.worker_groups import until_state, worker_on
from tests.helpers.worker_journals import RECOVERY_S, Journal, journal_on
from tests.proxies import KafkaProxy
from tests.proxies.faulty_answers import refusal, understands

pytestmark = [pytest.mark.failures, pytest.mark.slow]

Unique = Callable[[str], str]
Fault = Callable[[KafkaProxy], None]

#: The shortest that brokers accept by default.
SESSION_TIMEOUT_MS = 6_000

#: A worker has its claims at least this long without the brokers: a session timeout, less the interval of heartbeats.
KEPT_S = 3.0

#: The claims are free after a session timeout, some 0.8 s until the worker notices that, and the stop of its tasks. The
#: rest is for a busy machine.
GIVEN_BACK_S = 20.0

_TASKS = 4
_OF_COORDINATORS = {
    each.API_KEY for each in (FindCoordinatorRequest, JoinGroupRequest, SyncGroupRequest, HeartbeatRequest)
}


def stalled(proxy: KafkaProxy) -> None:
    """The brokers do not answer."""
    proxy.stall()


def refused(proxy: KafkaProxy) -> None:
    """Connections to the brokers are reset, and new ones are refused."""
    proxy.refuse()
    proxy.cut()


def no_coordinator(proxy: KafkaProxy) -> None:
    """The group has no coordinator; the brokers store the records of tasks as before."""

    def refuse(api_key: int, api_version: int) -> bytes | None:
        if api_key not in _OF_COORDINATORS or not understands(api_key, api_version):
            return None
        return refusal(api_key, CONSUMER_COORDINATOR_NOT_AVAILABLE.number, api_version)

    proxy.refusal = refuse


def healed(proxy: KafkaProxy) -> None:
    """End each of these faults."""
    proxy.refusal = None
    proxy.heal()


class Pair:
    """Two workers that share the connector ``c``. Each one has its own proxy to the broker; the first one leads."""

    def __init__(self, journal: Journal, group: str, client: Client, workers: Mapping[str, KafkaProxy]) -> None:
        self.journal = journal
        self._group = group
        self._client = client
        self.urls = list(workers)
        self.proxies = list(workers.values())

    async def owners(self) -> dict[Work, str]:
        """Return the URLs of the workers that have claimed work, as ZooKeeper has them."""
        found = await asyncio.to_thread(describe_workers, self._client, self._group)
        urls = {worker: WorkerInfo.parse(data, worker).url for worker, data in found.workers.items()}
        return {work: urls[worker] for work, worker in found.owners.items()}

    async def until_owned(self, urls: Collection[str], limit_s: float = RECOVERY_S) -> None:
        """Wait until all work is claimed by these workers, each of which has some; without workers, by none."""
        works = (1 + _TASKS) if urls else 0

        async def is_owned() -> bool:
            owners = await self.owners()
            return len(owners) == works and set(owners.values()) == set(urls)

        await eventually(is_owned, f"all work is claimed by {urls}", limit_s)

    async def run(self, urls: Collection[str], limit_s: float = RECOVERY_S) -> None:
        """Wait until all work runs on these workers, and until its statuses say so."""
        await self.until_owned(urls, limit_s)
        await self.journal.all_run()
        status = await until_state(next(iter(urls)), "c", *["RUNNING"] * (1 + _TASKS))
        shown = {each["worker_id"] for each in (status["connector"], *status["tasks"])}
        assert shown == {urlsplit(url).netloc for url in urls}


@asynccontextmanager
async def pair_on(cluster: Cluster, ensemble: Cluster, unique: Unique, folder: Path) -> AsyncIterator[Pair]:
    """
    Provide two workers whose connector runs, on the ZooKeeper of another cluster.

    At the end, check that no task ran twice at a time, and that no record is lost.
    """
    journal, group = await journal_on(cluster, unique, folder), unique("workers")
    settings = {"coordination": "brokers", "zookeeper": ensemble.zk_hosts, "session_timeout_ms": SESSION_TIMEOUT_MS}
    with (
        zookeeper(ensemble) as client,
        KafkaProxy(cluster.brokers[0]) as first,
        KafkaProxy(cluster.brokers[0]) as second,
    ):
        leader = worker_on(cluster, group, brokers=first.address, **settings)
        other = worker_on(cluster, group, brokers=second.address, **settings)
        async with leader, other:
            pair = Pair(journal, group, client, {leader.url: first, other.url: second})
            await journal.create(leader.url, "c", _TASKS, task_stop_timeout_ms=1_000)
            await pair.run(pair.urls)
            assert (leader._member.leads, other._member.leads) == (True, False)
            yield pair
    check_order(journal.entries())
    await journal.check()


#: The proxy makes the faults, of which the releases know nothing; the last one also tries the last release.
LOSSES = [
    ("0.9.0.1", stalled, 0),
    ("0.9.0.1", refused, 1),
    ("0.9.0.1", no_coordinator, 0),
    ("3.9.1", no_coordinator, 0),
]


@pytest.mark.parametrize(
    ("coordinating_version", "fault", "lost"),
    LOSSES,
    ids=["leader-stalled", "other-refused", "leader-no-coordinator", "3.9.1-leader-no-coordinator"],
    indirect=["coordinating_version"],
)
async def test_a_worker_loses_only_the_brokers(
    coordinating_cluster: Cluster, cluster_39: Cluster, unique: Unique, tmp_path: Path, fault: Fault, lost: int
) -> None:
    """
    Half a session timeout after the end of its lease, the worker stops its work in order and gives it back. The other
    worker runs it then. The former one joins again when the brokers answer.
    """
    async with pair_on(coordinating_cluster, cluster_39, unique, tmp_path) as pair:
        shared = await pair.owners()

        async def is_kept() -> bool:
            return await pair.owners() == shared

        fault(pair.proxies[lost])
        await throughout(is_kept, "all work stays where it is", KEPT_S)
        await pair.run([pair.urls[1 - lost]], GIVEN_BACK_S)
        healed(pair.proxies[lost])
        await pair.run(pair.urls)


@pytest.mark.parametrize("fault", [refused, no_coordinator])
async def test_all_workers_lose_only_the_brokers(
    shared_clusters: Callable[..., Cluster], unique: Unique, tmp_path: Path, fault: Fault
) -> None:
    """All of them give their work back. They join again when the brokers answer, and share it."""
    cluster = shared_clusters("3.9.5", "0.9.0.1")
    async with pair_on(cluster, cluster, unique, tmp_path) as pair:
        for proxy in pair.proxies:
            fault(proxy)
        await pair.until_owned([], GIVEN_BACK_S)
        await until_state(pair.urls[0], "c", *["UNASSIGNED"] * (1 + _TASKS))
        before = pair.journal.entries()
        await throughout(lambda: pair.journal.entries() == before, "no task is called", KEPT_S)
        for proxy in pair.proxies:
            healed(proxy)
        await pair.run(pair.urls)
