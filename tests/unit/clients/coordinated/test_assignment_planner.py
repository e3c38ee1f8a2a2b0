"""The leader's assignments of a broker-coordinated group of consumers, and what it knows of the topics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest

from kiel_groups.allocators.assignors import range_assignor
from kiel_groups.clients.coordinated import assignment_planner
from kiel_groups.clients.coordinated.assignment_planner import AssignmentPlanner
from kiel_groups.clients.coordinator.group_versions import GroupVersions
from kiel_groups.clients.coordinator.member_hooks import CoordinatedContext, JoinedGroup
from kiel_groups.config import CoordinatorConfig, GroupConfig
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import NoBrokersError
from kiel_groups.metrics import Metrics
from kiel_groups.wire.groups.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from tests.helpers.coordinated_consumer import ConsumerBench
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


class Topics:
    """Topics that the process knows from earlier; no broker answers any more."""

    def __init__(self, **known: tuple[int, ...]) -> None:
        self._known = known

    async def refresh(self, topics: Collection[str], reason: str) -> None:
        raise NoBrokersError("no broker has answered")

    async def all_topics(self) -> frozenset[str]:
        return frozenset(self._known)

    def known_partitions(self, topic: str) -> tuple[int, ...] | None:
        return self._known.get(topic)


async def test_an_outage_of_all_brokers_does_not_stop_the_leader() -> None:
    """It assigns the partitions that it knows; a topic that it does not know gets no owner until it is found."""
    context = CoordinatedContext(
        group=GroupConfig(group="g"),
        timing=CoordinatorConfig(),
        transport=cast(Any, None),
        versions=GroupVersions((0, 9)),
        metrics=Metrics(),
        runtime=Runtime(),
    )
    planner = AssignmentPlanner(context, [range_assignor], Topics(known=(0, 1)))
    joined = JoinedGroup("range", "m", {"m": ConsumerSubscription(("known", "unknown")).encode()})
    planned = await planner.plan(joined)
    assert ConsumerAssignment.parse(planned["m"], "the assignment").partitions == {"known": (0, 1)}


async def test_a_topic_that_is_missing_in_the_first_plan_is_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was created just before may be unknown to the broker; the leader does not wait for old metadata."""
    monkeypatch.setattr(assignment_planner, "_MISSING_S", 0.01)
    bench = ConsumerBench(metadata_max_age_ms=300_000)
    bench.topics.counts.clear()
    await bench.member.start()
    await eventually(lambda: "assignment" in bench.topics.reasons, "the leader has planned")
    bench.topics.counts["t"] = 2
    await bench.traced("assigned t:0, t:1")
    await bench.member.close()
