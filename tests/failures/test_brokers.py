"""Brokers that are late with what they were asked to store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster, KafkaProxy
from kiel_groups.embedded.proxy import Direction
from tests.failures.trial import RECOVERY_S, trial
from tests.integration.members import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

NEVER_MS = 3_600_000


async def test_broker_holding_a_v0_commit_past_the_release(cluster: Cluster, unique: Unique) -> None:
    """It steps back what the next owner has committed: records come again, and none is lost."""
    settings = {"store": "broker-v0", "reconcile_interval_ms": NEVER_MS}
    async with (
        KafkaProxy(cluster.brokers[0]) as held_back,
        trial(cluster, unique, partitions=1, **settings) as tried,
    ):
        values = await tried.produce(20)
        first = await tried.join(brokers=[held_back.address], auto_commit_interval_ms=NEVER_MS)
        await tried.group.delivered(values)
        held_back.stall(Direction.REQUESTS)
        second = await tried.join()
        await tried.group.leave(first)
        await eventually(lambda: second.values == values, "what was not committed comes again", RECOVERY_S)
        values += await tried.produce(20)
        await eventually(lambda: tried.stored() == {0: 40}, "the next owner commits")
        held_back.heal()
        await eventually(lambda: tried.stored() == {0: 20}, "the late commit lands")
        await tried.nothing_is_lost()
        await eventually(lambda: tried.stored() == {0: 60}, "everything is committed", RECOVERY_S)
        again = Counter(second.values)
        assert all(again[value] == 2 for value in values[20:]), "it follows what stands there, as it would an operator"
