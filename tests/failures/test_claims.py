"""Claims: the limit for one session, and a partition that another session has claimed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group import planner as claim_limit
from tests.helpers.checked_group import RECOVERY_S, checked_group
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


async def test_a_lone_member_at_the_claim_limit(
    cluster: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The member owns as many partitions as one session can. The other partitions are unassigned, with the reason in the
    group state, until another member joins.
    """
    async with checked_group(cluster, unique, partitions=5) as checked:
        path = checked.client.chroot + checked.layout.owner(checked.partition(0))
        monkeypatch.setattr(claim_limit, "MOST_PATH_BYTES", claim_limit._OTHERS_BYTES + 3 * len(path))
        lone = await checked.join()
        group_state = await checked.wait_for_group_state(
            lambda group_state: bool(group_state.unassigned), "some are unassigned"
        )
        assert group_state.unassigned == {claim_limit.TOO_MANY: 2}
        assert group_state.unassigned_names == tuple(f"{checked.topic}:{number}" for number in (3, 4))
        await checked.wait_for_partitions(lone, 3)
        await checked.produce()
        await checked.join()
        await checked.check_nothing_is_lost()


async def test_one_partition_is_claimed_by_another_session(cluster: Cluster, unique: Unique) -> None:
    """
    The member claims all other partitions at once. It claims the contended partition when the other session's owner
    znode is deleted. Nothing is lost.
    """
    async with checked_group(cluster, unique, partitions=8) as checked:
        claim = checked.layout.owner(checked.partition(5))
        checked.client.create(claim, b"other-0", ephemeral=True, makepath=True)
        member = await checked.join()
        await eventually(
            lambda: member.partitions(checked.topic) == [0, 1, 2, 3, 4, 6, 7],
            "all other partitions are claimed",
            RECOVERY_S,
        )
        assert checked.client.get(claim)[0] == b"other-0"
        checked.client.delete(claim)
        await checked.check_nothing_is_lost()
