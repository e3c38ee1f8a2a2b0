"""ZooKeeper denies access: an error names the znode and the right, and the member joins when it has the right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import AuthorizationError
from kiel_groups.group.znodes.layout import ROOT, GroupLayout
from tests.helpers.checked_group import RECOVERY_S
from tests.helpers.cluster_data import produce
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


async def test_access_denied_to_a_new_member(cluster: Cluster, unique: Unique) -> None:
    """
    The group's root znode has an ACL that allows only another user. ``connect()`` raises AuthorizationError with the
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
        with pytest.raises(AuthorizationError, match=f"refused to create a znode in {layout.root}: its ACL"):
            await consumer.connect()
        await consumer.close()
        assert owner.get_children(layout.root) == []
        assert owner.exists(layout.ids) is None or owner.get_children(layout.ids) == []
    finally:
        # Other tests on these servers list all groups, and could not read this group.
        owner.delete(layout.root, recursive=True)
        owner.stop()
        owner.close()


async def test_access_denied_to_a_running_member(
    cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    An operator sets an ACL on an offset znode of a member's partition. ZooKeeper refuses the member's next commit. The
    member loses its partitions, with one line in the log. It joins again, and delivers the uncommitted records again,
    when the ACL permits the commit.
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
            offset = f"{layout.topic_offsets(topic)}/0"
            owner.set_acls(offset, [make_digest_acl("owner", "secret", all=True)])
            await produce(cluster, topic, 5)
            await eventually(lambda: member.lost_partitions, "the partition is lost", RECOVERY_S)
            await eventually(lambda: member.consumer.metrics.total("joins_failed") >= 2, "joins fail", RECOVERY_S)
            assert not member.held
            owner.set_acls(offset, OPEN_ACL_UNSAFE)
            await eventually(lambda: owner.get(offset)[0] == b"5", "the offset is committed", RECOVERY_S)
            assert [each.value for each in member.records].count(b"0") == 2
        refused = [record.getMessage() for record in caplog.records if offset in record.getMessage()]
        assert len(refused) == 1
        assert "joins again when it has the right: ZooKeeper refused to write" in refused[0]
    finally:
        owner.delete(layout.offsets, recursive=True)
        owner.stop()
        owner.close()
