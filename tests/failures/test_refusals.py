"""What ZooKeeper refuses for good: told once, with the path."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import CoordinationError
from kiel_groups.group.znodes.layout import ROOT, GroupLayout
from tests.helpers.cluster_data import produce
from tests.helpers.members import group_of
from tests.helpers.trial import RECOVERY_S
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


async def test_authentication_refused(cluster: Cluster, unique: Unique) -> None:
    """A group whose znodes belong to somebody else is not joined; nothing of the member stays behind."""
    name = unique("group")
    layout = GroupLayout(name)
    owner = KazooClient(cluster.zk_hosts, auth_data=[("digest", "owner:secret")])
    owner.start()
    try:
        owner.ensure_path(ROOT)
        owner.create(layout.root, acl=[make_digest_acl("owner", "secret", all=True)])
        consumer = GroupedConsumer(cluster.brokers, name, cluster.zk_hosts)
        with pytest.raises(CoordinationError) as caught:
            await consumer.connect()
        assert layout.root in str(caught.value)
        assert "not authorised (its ACL)" in str(caught.value)
        await consumer.close()
        assert owner.get_children(layout.root) == []
        assert owner.exists(layout.ids) is None or owner.get_children(layout.ids) == []
    finally:
        # The servers are shared: whoever lists the groups on them may not read this one.
        owner.delete(layout.root, recursive=True)
        owner.stop()
        owner.close()


async def test_authentication_refused_to_a_running_member(cluster: Cluster, unique: Unique) -> None:
    """When rights are taken from a living member it stops, and its loop says why."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    layout = GroupLayout(name)
    owner = KazooClient(cluster.zk_hosts, auth_data=[("digest", "owner:secret")])
    owner.start()
    try:
        async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
            member = await group.join()
            await group.balanced(topic, 1)
            acl = [make_digest_acl("owner", "secret", all=True)]
            owner.set_acls(f"{layout.topic_offsets(topic)}/0", acl)
            await produce(cluster, topic, 5)
            assert member._task is not None
            await eventually(member._task.done, "its loop has ended", RECOVERY_S)
            with pytest.raises(CoordinationError, match=r"refused to write .*/offsets/.* not authorised"):
                await member._task
            member._task = None
    finally:
        owner.delete(layout.offsets, recursive=True)
        owner.stop()
        owner.close()
