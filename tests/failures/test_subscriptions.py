"""Subscriptions that change while a group runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from tests.helpers.checked_group import RECOVERY_S, checked_group
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


async def test_no_member_subscribes_to_the_topic_any_more(cluster: Cluster, unique: Unique) -> None:
    """
    No member owns the topic's partitions, and its committed offsets remain. When a member subscribes to the topic
    again, it resumes at these offsets. No record is lost or repeated.
    """
    async with checked_group(cluster, unique) as checked:
        other = unique("other")
        await checked.cluster.create_topic(other, 2)
        await checked.produce()
        member = await checked.join()
        await checked.group.delivered(checked.values)
        await member.consumer.subscribe([other])
        await eventually(
            lambda: member.consumer.allocation == {other: [0, 1]},
            "the partitions of the topic are released",
            RECOVERY_S,
        )
        assert checked.owners() == {}
        assert sum(checked.committed_offsets().values()) == len(checked.values)
        await checked.wait_for_group_state(
            lambda group_state: group_state.unassigned == {}, "no partition counts as unassigned"
        )
        await asyncio.gather(checked.produce(), member.consumer.subscribe([checked.topic]))
        await checked.check_nothing_is_lost()
        assert Counter(member.values) == Counter(checked.values)
