"""When the leader of a broker-coordinated group looks for topics that brokers do not know yet."""

from __future__ import annotations

import pytest

from kiel_groups.clients.coordinated import assignment_planner
from tests.helpers.coordinated_consumer import ConsumerBench
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


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
