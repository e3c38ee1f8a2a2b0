"""ZooKeeper denies access: the member stops with an error that names the znode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import CoordinationError
from kiel_groups.group.znodes.layout import ROOT, GroupLayout
from tests.helpers.checked_group import RECOVERY_S
from tests.helpers.cluster_data import produce
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


async def test_access_denied_to_a_new_member(cluster: Cluster, unique: Unique) -> None:
    """
    The group's root znode has an ACL that allows only another user. ``connect()`` raises CoordinationError with the
    path of the znode, and the member leaves no znode behind.
    """
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
        # Other tests on these servers list all groups, and could not read this group.
        owner.delete(layout.root, recursive=True)
        owner.stop()
        owner.close()


async def test_access_denied_to_a_running_member(cluster: Cluster, unique: Unique) -> None:
    """
    An operator sets an ACL on an offset znode of a member's partition. ZooKeeper refuses the member's next commit. The
    member stops, and its loop raises CoordinationError with the path.
    """
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
