"""At the edge of what one session may own, and of what may be taken from it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from kiel_groups.admin.force_release import force_release
from kiel_groups.embedded import Cluster
from kiel_groups.group.leader import claim_limit
from tests.helpers.answer_losers import AnswerLoser
from tests.helpers.members import Member
from tests.helpers.trial import RECOVERY_S, trial
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


async def test_lone_member_over_the_claim_cap(
    cluster: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It owns what one session may own; the rest has no owner, and says why, until there is another member."""
    async with trial(cluster, unique, partitions=5) as tried:
        path = tried.client.chroot + tried.layout.owner(tried.partition(0))
        monkeypatch.setattr(claim_limit, "MOST_PATH_BYTES", claim_limit._OTHERS_BYTES + 3 * len(path))
        lone = await tried.join()
        group_state = await tried.pointer_is(lambda group_state: bool(group_state.unassigned), "some have no owner")
        assert group_state.unassigned == {claim_limit.TOO_MANY: 2}
        assert group_state.unassigned_names == tuple(f"{tried.topic}:{number}" for number in (3, 4))
        await tried.has(lone, 3)
        await tried.produce()
        await tried.join()
        await tried.nothing_is_lost()


async def test_force_release_of_a_live_owner_with_a_commit_in_flight(cluster: Cluster, unique: Unique) -> None:
    """The commit arrives when the member znode is gone: it is refused, and what it was for comes again."""
    favourites: list[Member] = []

    def to_favourite(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        wanted = {str(member.consumer.member_id) for member in favourites}
        chosen = next((member for member in members if member in wanted), members[0])
        return {chosen: {tried.topic: [0]}}

    async with (
        AnswerLoser(cluster.zk_hosts) as proxy,
        # A lease of 5 s: it must not be over before the commit arrives, on a busy machine either.
        trial(cluster, unique, partitions=1, partition_allocator=to_favourite, session_timeout_ms=10_000) as tried,
    ):
        second = await tried.join()
        first = await tried.join(zk_hosts=proxy.address)
        favourites[:] = [first]
        await tried.group.leave(second)
        await tried.has(first, 1)
        second = await tried.join()
        await tried.produce(20)
        await tried.group.delivered(tried.values)
        await eventually(lambda: tried.stored() == {0: 20}, "all is committed")
        proxy.lose_answer_to(tried.layout.offset(tried.partition(0)).encode(), request_too=True)
        later = await tried.produce(5)
        assert await asyncio.to_thread(proxy.caught.wait, RECOVERY_S)
        favourites[:] = [second]
        member_id = str(first.consumer.member_id)
        # Its wait is cut short as soon as there is nothing left to be waited for.
        let_go = threading.Event()
        release = partial(force_release, tried.client, tried.group.name, member_id, sleep=let_go.wait)
        releasing = asyncio.create_task(asyncio.to_thread(release))
        await eventually(lambda: not tried.client.exists(tried.layout.member(member_id)), "the member znode is gone")
        proxy.heal()
        await eventually(lambda: set(later) <= set(second.values), "what was not committed comes again", RECOVERY_S)
        let_go.set()
        assert (await releasing).taken == (), "it had let go by itself"
        assert tried.partition(0) in first.lost_partitions
        await eventually(lambda: tried.stored() == {0: 25}, "the next owner has finished it")
