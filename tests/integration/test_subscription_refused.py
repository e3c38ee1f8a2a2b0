"""A subscription that ZooKeeper has no room for, by a consumer that is at work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError
from tests.helpers.members import group_of, produce
from tests.helpers.waiting import eventually
from tests.integration.test_group_membership import end_session

pytestmark = pytest.mark.integration


async def test_a_refused_subscription_changes_nothing(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """What was subscribed to before stays, also for the next session: that one would be refused, and the member end."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 5)
    async with group_of(cluster_39, name, [topic]) as group:
        member = await group.join()
        await group.delivered(values)
        before = member.consumer.member_id
        with pytest.raises(ConfigError, match=r"takes \d+ KiB in ZooKeeper, expected at most"):
            await member.consumer.subscribe([topic, *(f"{number:0>240}" for number in range(4_000))])
        assert member.consumer.subscription == {topic}
        await member.consumer.commit()
        end_session(cluster_39, member)
        await eventually(lambda: member.consumer.member_id not in (None, before), "it has joined anew")
        await eventually(lambda: member.consumer.settled, "it holds its partition again")
        values += await produce(cluster_39, topic, 5, first=5)
        await group.delivered(values)
