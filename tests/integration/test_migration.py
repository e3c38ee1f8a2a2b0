"""The migration from kiel, as documented: a group resumes at kiel's offsets."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable

import pytest
from docutils.core import publish_doctree

from kiel_groups.clients import GroupedConsumer, Producer
from kiel_groups.clients.calls.arguments import broker_config
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ForeignMemberError
from kiel_groups.metrics import Metrics
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.offsets import OffsetCommitRequest
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.commands import REPOSITORY
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PAGE = (REPOSITORY / "docs" / "migrating-from-kiel.rst").read_text(encoding="utf-8")


async def commit_as_kiel(cluster: Cluster, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit with OffsetCommit v0. The broker writes a znode with a decimal number for each partition."""
    view = ClusterMetadata(broker_config(cluster.brokers), Metrics())
    await view.await_topics([topic])
    wanted = {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, "committed by worker-1:140213")
        for partition, offset in offsets.items()
    }
    answer = await view.send(next(iter(view.brokers)), OffsetCommitRequest(group, wanted))
    assert set(answer.values()) == {NO_ERROR}
    view.close()


async def test_offsets_of_kiel_are_shared_with_kiel(cluster: Cluster, unique: Unique) -> None:
    """
    Each partition resumes at kiel's offset, or at its beginning. The group stores its offsets where kiel reads them.
    """
    topic, group = unique("topic"), unique("group")
    await cluster.create_topic(topic, 3)
    async with Producer(cluster.brokers) as producer:
        for partition in range(3):
            for n in range(10):
                await producer.produce(topic, [partition, n], partition=partition)
    await commit_as_kiel(cluster, group, topic, {0: 4, 1: 10})
    with zookeeper(cluster) as client:
        assert stored_offsets(client, group, topic) == {0: 4, 1: 10}
        assert client.get(f"/consumers/{group}/offsets/{topic}/0")[0] == b"4"
    consumer = GroupedConsumer(cluster.brokers, group, [cluster.zk_hosts], autocommit=False, max_wait_time=200)
    found: list[list[int]] = []
    async with asyncio.timeout(30):
        while len(found) < 16:
            found += await consumer.consume(topic) or []
    assert sorted(found) == [[0, n] for n in range(4, 10)] + [[2, n] for n in range(10)]
    await consumer.commit_offsets()
    assert await consumer.consume(topic) == []
    await consumer.close()
    with zookeeper(cluster) as client:
        folder = f"/consumers/{group}/offsets/{topic}"
        assert {name: client.get(f"{folder}/{name}")[0] for name in client.get_children(folder)} == {
            "0": b"10",
            "1": b"10",
            "2": b"10",
        }


async def test_a_member_of_kiel_keeps_members_from_joining_until_it_leaves(cluster_39: Cluster, unique: Unique) -> None:
    """The error names the member of kiel. When the session of that member has ended, the same consumer joins."""
    group = unique("group")
    with zookeeper(cluster_39) as kiel:
        kiel.create(f"/kiel/groups/{group}/members/worker-1:140213", ephemeral=True, makepath=True)
        consumer = GroupedConsumer(cluster_39.brokers, group, [cluster_39.zk_hosts])
        with pytest.raises(ForeignMemberError, match="worker-1:140213"):
            await consumer.connect()
    await consumer.connect()
    await eventually(lambda: consumer.is_leader, "it has joined")
    await consumer.close()


def test_the_page_renders_and_names_existing_code() -> None:
    """The page is valid reStructuredText, and the methods and the folder that it names exist."""
    warnings = io.StringIO()
    publish_doctree(PAGE, settings_overrides={"report_level": 2, "halt_level": 5, "warning_stream": warnings})
    assert warnings.getvalue() == ""
    assert set(re.findall(r"from kiel_groups\.(\w+) import", PAGE)) == {"clients", "exc", "constants"}
    assert (REPOSITORY / "examples" / "kiel_style").is_dir()
    for method in ("consume", "commit_offsets", "close"):
        assert f"``{method}()``" in PAGE
        assert callable(getattr(GroupedConsumer, method))
