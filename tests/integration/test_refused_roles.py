"""Each role on each other role's group, on a real ZooKeeper: it is refused, says why, and has written nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from kazoo.exceptions import NoNodeError

from kiel_groups import GroupedConsumer
from kiel_groups.allocators import round_robin
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.errors import GroupConfigError, KielGroupsError
from kiel_groups.group.znodes.layout import GroupLayout, WorkerLayout
from kiel_groups.group.znodes.worker_contents import encode_config_offset
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.spark.drivers import group_config
from kiel_groups.spark.offsets import refuse_live_group
from kiel_groups.spark.options import ReadOptions
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.contexts import process_context
from tests.helpers.generic_program import NumberProgram
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import worker_on

pytestmark = pytest.mark.integration

Act = Callable[[Cluster, str], Awaitable[None]]

TOPIC = "billed"


@pytest.fixture(scope="module")
def servers(shared_clusters: Callable[..., Cluster]) -> Cluster:
    """Return a cluster whose brokers coordinate groups, too."""
    return shared_clusters("3.9.5", "0.9.0.1")


# The groups, each as its members have left it


async def found_consumers(cluster: Cluster, group: str) -> None:
    await cluster.create_topic(topic := f"{TOPIC}-{group}", 1)
    await produce(cluster, topic, 3)
    async with group_of(cluster, group, [topic]) as members:
        await members.join()
        await members.delivered([b"0", b"1", b"2"])


async def found_java_consumers(cluster: Cluster, group: str) -> None:
    """Create what a live Java consumer has there."""
    with zookeeper(cluster) as client:
        client.create(f"{GroupLayout(group).ids}/{group}_java-1-1", b"{}", makepath=True)


async def found_offsets(cluster: Cluster, group: str) -> None:
    """Create what a Spark query or an archive commits."""
    with zookeeper(cluster) as client:
        client.create(f"{GroupLayout(group).offsets}/t/0", b"7", makepath=True)


async def found_programs(cluster: Cluster, group: str) -> None:
    program = NumberProgram(group, {"zk_hosts": cluster.zk_hosts})
    await program.member.start()
    await program.member.close()


async def found_workers(cluster: Cluster, group: str) -> None:
    async with worker_on(cluster, group):
        pass


async def found_workers_by_brokers(cluster: Cluster, group: str) -> None:
    async with worker_on(cluster, group, coordination="brokers"):
        pass


async def found_older_workers(cluster: Cluster, group: str) -> None:
    """Create what workers of an earlier version have left, if brokers coordinated them: no settings."""
    with zookeeper(cluster) as client:
        client.ensure_path(WorkerLayout(group).workers)
        client.create(WorkerLayout(group).config, encode_config_offset(1))


# The roles


async def consume(cluster: Cluster, group: str) -> None:
    async with GroupedConsumer(cluster.brokers, group, cluster.zk_hosts) as consumer:
        await consumer.subscribe([TOPIC])


async def allocate(cluster: Cluster, group: str) -> None:
    context = process_context(GroupConfig(group=group), ZooKeeperConfig.parse(cluster.zk_hosts))
    process = AllocatorProcess(context, round_robin, lambda error: None)
    try:
        await process.start()
    finally:
        await process.close()


class OtherProgram(NumberProgram):
    protocol_type = "letters"


async def run_program(cluster: Cluster, group: str) -> None:
    program = OtherProgram(group, {"zk_hosts": cluster.zk_hosts})
    await program.member.start()


async def work(cluster: Cluster, group: str) -> None:
    await worker_on(cluster, group).start()


async def work_by_brokers(cluster: Cluster, group: str) -> None:
    await worker_on(cluster, group, coordination="brokers").start()


def spark_options(cluster: Cluster, group: str, **given: str) -> ReadOptions:
    options = {
        "kafka.bootstrap.servers": ",".join(cluster.brokers),
        "kiel.zookeeper.connect": cluster.zk_hosts,
        "kafka.group.id": group,
        "subscribe": TOPIC,
    }
    return ReadOptions.parse(options | given, streaming=True)


async def join_by_spark(cluster: Cluster, group: str) -> None:
    """Join as the query of a stream with ``membership=join`` does."""
    options = spark_options(cluster, group, membership="join", startingOffsets="group")
    config = await asyncio.to_thread(group_config, options)
    async with GroupedConsumer(cluster.brokers, group, cluster.zk_hosts, store=config.store) as consumer:
        await consumer.subscribe([TOPIC])


async def commit_by_spark(cluster: Cluster, group: str) -> None:
    """Check the group as a stream and an archive do that commit their offsets in it."""
    await asyncio.to_thread(refuse_live_group, spark_options(cluster, group))


class Group(NamedTuple):
    """How a group is founded, and the words by which each role on it is refused; other roles are at home there."""

    found: Act
    refusals: dict[Act, str]


CONSUMERS = "its members are consumers; choose another group"
WORKERS = "its members are workers, which share connectors and no partitions; choose another group"
NUMBERS = "its members are of the type 'numbers', and share no partitions; choose another group"
FOREIGN = "not take part in its protocol"

#: The roles that share or read partitions.
OF_CONSUMERS: tuple[Act, ...] = (consume, allocate, join_by_spark, commit_by_spark)
OF_WORKERS: tuple[Act, ...] = (work, work_by_brokers)
OF_PROGRAMS: tuple[Act, ...] = (run_program, *OF_WORKERS)

ON_WORKERS = {
    **dict.fromkeys(OF_CONSUMERS, WORKERS),
    run_program: "its members are workers, and this one is of the type 'letters'; choose another group",
}

GROUPS = {
    "consumers": Group(found_consumers, dict.fromkeys(OF_PROGRAMS, CONSUMERS)),
    "java-consumers": Group(
        found_java_consumers,
        {
            **dict.fromkeys(OF_PROGRAMS, CONSUMERS),
            **dict.fromkeys((consume, join_by_spark), FOREIGN),
            commit_by_spark: "has live members",
        },
    ),
    "offsets-of-spark": Group(found_offsets, dict.fromkeys(OF_PROGRAMS, CONSUMERS)),
    "programs": Group(
        found_programs,
        {
            **dict.fromkeys(OF_CONSUMERS, NUMBERS),
            run_program: "its members are of the type 'numbers', and this one is of the type 'letters'",
            **dict.fromkeys(OF_WORKERS, "its members are of the type 'numbers', and this one is a worker"),
        },
    ),
    "workers": Group(found_workers, ON_WORKERS),
    "workers-by-brokers": Group(found_workers_by_brokers, ON_WORKERS),
    "older-workers-by-brokers": Group(found_older_workers, ON_WORKERS),
}


@pytest.fixture(scope="module")
def founded(servers: Cluster) -> Callable[[str], str]:
    """Provide a function that founds a group of this kind at the first call, and returns its name."""
    names: dict[str, str] = {}

    def name_of(kind: str) -> str:
        if kind not in names:
            names[kind] = f"refusing-{kind}"
            asyncio.run(GROUPS[kind].found(servers, names[kind]))
        return names[kind]

    return name_of


def znodes(cluster: Cluster) -> dict[str, tuple[bytes, int]]:
    """
    Return all persistent znodes of groups, each with its data and version.

    Ephemeral ones may end meanwhile, with the sessions of processes that other tests have killed.
    """
    found: dict[str, tuple[bytes, int]] = {}
    with zookeeper(cluster) as client:
        paths = ["/kiel-groups", "/consumers", "/kiel"]
        while paths:
            path = paths.pop()
            try:
                data, stat = client.get(path)
                paths += [f"{path}/{child}" for child in client.get_children(path)]
            except NoNodeError:
                continue
            if not stat.ephemeralOwner:
                found[path] = (data, stat.version)
    return found


@pytest.mark.parametrize(
    ("kind", "act"),
    [(kind, act) for kind, group in GROUPS.items() for act in group.refusals],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_a_role_on_the_group_of_another_one_is_refused_and_writes_nothing(
    servers: Cluster, founded: Callable[[str], str], kind: str, act: Act
) -> None:
    """The error says what the members are, and all znodes of all groups are as before."""
    group = founded(kind)
    before = znodes(servers)
    with pytest.raises(KielGroupsError, match=re.escape(GROUPS[kind].refusals[act])) as caught:
        asyncio.run(act(servers, group))  # type: ignore[arg-type]
    assert group in str(caught.value)
    assert znodes(servers) == before


async def test_a_worker_does_not_join_consumers_that_brokers_coordinate(
    servers: Cluster, unique: Callable[[str], str]
) -> None:
    """Neither beside live members nor after them, while they have offsets; nothing is written to ZooKeeper."""
    topic, group = unique("topic"), unique("group")
    await servers.create_topic(topic, 1)
    (value, *_) = await produce(servers, topic, 1)
    before = znodes(servers)
    refusal = "its members at the brokers are of the type 'consumer', and this one is a worker"
    async with GroupedConsumer(servers.brokers, group, coordination="brokers") as consumer:
        await consumer.subscribe([topic])
        assert (await anext(aiter(consumer))).value == value
        with pytest.raises(GroupConfigError, match=refusal):
            await worker_on(servers, group, coordination="brokers").start()
        await consumer.commit()
    with pytest.raises(GroupConfigError, match=refusal):
        await worker_on(servers, group, coordination="brokers").start()
    assert znodes(servers) == before


async def test_consume_says_that_the_members_are_workers(servers: Cluster, unique: Callable[[str], str]) -> None:
    """Whatever coordinates the command, and although the workers have no settings at the brokers."""
    topic, group = unique("topic"), unique("workers")
    await servers.create_topic(topic, 1)
    async with worker_on(servers, group, coordination="brokers"):
        # The worker creates this folder some time after its start.
        status = f"/kiel-groups/{group}/connect/status"
        await eventually(lambda: status in znodes(servers), "the worker has written all that it writes")
        before = znodes(servers)
        for place in (["--zookeeper", servers.zk_hosts], ["--coordination", "brokers"]):
            words = ["consume", topic, "--group", group, "--brokers", servers.brokers[0], *place]
            done = await asyncio.to_thread(kiel_groups_here, *words)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.endswith(f"error: group {group}: {WORKERS}\n")
        assert znodes(servers) == before


@pytest.mark.parametrize("words", [("weights", "set", "GROUP", "t:0=1"), ("release", "GROUP", "member")])
def test_commands_for_consumers_refuse_a_group_of_workers(
    servers: Cluster, founded: Callable[[str], str], words: tuple[str, ...]
) -> None:
    """Weights would lie in a group that never reads them; a worker whose znode is deleted would lose its work."""
    group = founded("workers")
    before = znodes(servers)
    given = [group if word == "GROUP" else word for word in words]
    done: Any = kiel_groups_here(*given, "--zookeeper", servers.zk_hosts)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: group {group}: {WORKERS}\n")
    assert znodes(servers) == before
