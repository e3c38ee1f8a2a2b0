"""The assignments of a leader, with the topics that it knows, and how it notices that topics have changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence

import pytest

from kiel_groups.allocators.assignors import Assignor, AssignorMember, assignors_of, range_assignor
from kiel_groups.errors import AllocatorError, KielGroupsError, NoBrokersError
from kiel_groups.members.brokers import assignment_planner
from kiel_groups.members.brokers.assignment_planner import AssignmentPlanner
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.model import TopicPartition
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from tests.helpers.coordinated_consumer import ConsumerBench, ScriptedTopics
from tests.helpers.scripted_coordinator import QuietRuntime, ScriptedTransport, scripted_context
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


class Planning:
    """A leader whose session lasts for 1,200 ms. Topic "t" has three partitions."""

    def __init__(self, *assignors: Assignor) -> None:
        context = scripted_context(
            ScriptedTransport([]), QuietRuntime(), session_timeout_ms=1_200, heartbeat_interval_ms=400
        )
        self.metrics = context.metrics
        self.topics = ScriptedTopics(t=3)
        self.planner = AssignmentPlanner(context, assignors or [range_assignor], self.topics)

    async def plan(
        self, protocol: str = "range", **members: Collection[str] | bytes
    ) -> dict[str, dict[str, list[int]]]:
        """Return the partitions of members with these topics, or with these bytes in place of a subscription."""
        metadata = {
            name: given if isinstance(given, bytes) else ConsumerSubscription(tuple(given)).encode()
            for name, given in members.items()
        }
        planned = await self.planner.plan(JoinedGroup(protocol, "a", metadata))
        read = {name: ConsumerAssignment.parse(given, name).partitions for name, given in planned.items()}
        return {name: {topic: list(numbers) for topic, numbers in given.items()} for name, given in read.items()}


class Asked:
    """An assignor that does what a test says on its thread."""

    name = "asked"

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        return None

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        if isinstance(self.outcome, threading.Event):
            self.outcome.wait(10)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome  # type: ignore[return-value]


async def test_each_member_gets_an_assignment_also_of_nothing() -> None:
    """The leader asks for the topics of all members once, also for those that it does not subscribe to itself."""
    planning = Planning()
    assert await planning.plan(a=["t"], b=["t", "missing"], c=[]) == {"a": {"t": [0, 1]}, "b": {"t": [2]}, "c": {}}
    assert planning.topics.reasons == ["assignment"]


async def test_a_group_without_topics_asks_for_none() -> None:
    """All members may have unsubscribed."""
    planning = Planning()
    assert await planning.plan(a=[]) == {"a": {}}
    assert planning.topics.reasons == []


async def test_a_member_whose_subscription_cannot_be_read_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The others share the topics, and an error names the member."""
    planning = Planning()
    assert await planning.plan(a=["t"], b=b"\x00") == {"a": {"t": [0, 1, 2]}, "b": {}}
    assert planning.metrics.counter("subscriptions_unreadable") == 1
    assert "the subscription of b" in caplog.text
    assert "this member gets no partitions" in caplog.text


@pytest.mark.parametrize("failure", [NoBrokersError("no broker"), asyncio.Event()], ids=["error", "silence"])
async def test_a_leader_without_metadata_assigns_what_it_knows(
    failure: KielGroupsError | asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The other members wait for the leader within their sessions, so it waits for a sixth of one. A topic that it does
    not know gets no owner until it is found.
    """
    planning = Planning()
    planning.topics.failure = failure
    began_s = asyncio.get_running_loop().time()
    assert await planning.plan(a=["t", "unknown"]) == {"a": {"t": [0, 1, 2]}}
    assert asyncio.get_running_loop().time() - began_s < 4
    assert planning.metrics.counter("assignments_of_known_topics") == 1
    assert "assigning the partitions known before: no" in caplog.text


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (AllocatorError("not so"), "not so"),
        (ValueError("a bug"), "assignor asked: .*a bug"),
        (TimeoutError("its own"), "assignor asked: .*its own"),
        ({"a": []}, "assignor asked: .*t:0"),
        (None, "assignor asked: it returned None"),
    ],
)
async def test_an_assignor_that_fails_is_an_error(outcome: object, words: str) -> None:
    """The error reaches the caller of the join."""
    with pytest.raises(AllocatorError, match=words):
        await Planning(Asked(outcome)).plan("asked", a=["t"])


async def test_a_thread_that_cannot_start_is_an_error_of_the_assignor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    planning = Planning(Asked({}))
    with pytest.raises(AllocatorError, match=r"assignor asked failed: .*can't start new thread"):
        await planning.plan("asked", a=["t"])
    assert planning.metrics.counter("allocator_failures") == 1


async def test_an_assignor_may_take_as_long_as_the_session() -> None:
    """Then the coordinator removes the leader, so the error says how long it may take. The loop runs meanwhile."""
    slow = threading.Event()
    try:
        with pytest.raises(AllocatorError, match=r"group g: assignor asked took more than 1\.2 s"):
            await Planning(Asked(slow)).plan("asked", a=["t"])
    finally:
        slow.set()


async def test_a_protocol_that_was_not_offered_is_an_error() -> None:
    """A coordinator chooses what all members offer."""
    with pytest.raises(AllocatorError, match="the coordinator has chosen 'sticky', which is not offered"):
        await Planning().plan("sticky", a=["t"])


async def test_what_an_assignor_finds_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The leader's log says what it could not use of the others' subscriptions."""
    garbled = ConsumerSubscription(("t",), b"no JSON").encode()
    planned = await Planning(*assignors_of("sticky")).plan("kiel-sticky", a=garbled)
    assert planned == {"a": {"t": [0, 1, 2]}}
    assert "group g: assignor kiel-sticky cannot read the user data of member a: not JSON, 7 bytes" in caplog.text


# Changes of topics


async def test_growth_is_reported_once() -> None:
    """Until the next plan, the same change is not reported again; another one is."""
    planning = Planning()
    await planning.plan(a=["t"])
    changing = asyncio.ensure_future(planning.planner.changed(0.001))
    await eventually(lambda: planning.topics.reasons.count("age") > 1, "topics are asked for")
    assert not changing.done()
    planning.topics.counts["t"] = 4
    await asyncio.wait_for(changing, 5)
    changing = asyncio.ensure_future(planning.planner.changed(0.001))
    asked = len(planning.topics.reasons)
    await eventually(lambda: len(planning.topics.reasons) > asked + 1, "topics are asked for")
    assert not changing.done()
    planning.topics.counts["t"] = 5
    await asyncio.wait_for(changing, 5)


async def test_a_topic_that_is_created_is_a_change(caplog: pytest.LogCaptureFixture) -> None:
    """A missing topic is looked for more often than the interval says, if that is long."""
    planning = Planning()
    await planning.plan(a=["t", "later"])
    assert "no broker knows these topics of the group: later; each is read as soon as it exists" in caplog.text
    planning.topics.counts["later"] = 1
    await asyncio.wait_for(planning.planner.changed(0.001), 5)
    assert await planning.plan(a=["t", "later"]) == {"a": {"t": [0, 1, 2], "later": [0]}}


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


async def test_brokers_that_do_not_answer_are_no_change() -> None:
    """They are asked again after the next interval."""
    planning = Planning()
    await planning.plan(a=["t"])
    planning.topics.failure = NoBrokersError()
    changing = asyncio.ensure_future(planning.planner.changed(0.001))
    await eventually(lambda: planning.topics.reasons.count("age") > 2, "topics are asked for")
    assert not changing.done()
    planning.topics.counts["t"] = 4
    planning.topics.failure = None
    await asyncio.wait_for(changing, 5)


async def test_a_plan_during_the_question_is_no_change() -> None:
    """What the answer brings is compared with the assignment that the question was about."""
    planning = Planning()
    await planning.plan(a=["t"])
    planning.topics.failure = answered = asyncio.Event()
    changing = asyncio.ensure_future(planning.planner.changed(0.001))
    await eventually(lambda: "age" in planning.topics.reasons, "topics are asked for")
    planning.topics.failure = None
    planning.topics.counts["t"] = 4
    await planning.plan(a=["t"])
    answered.set()
    await eventually(lambda: planning.topics.reasons.count("age") > 2, "topics are asked for again")
    assert not changing.done()
    changing.cancel()


async def test_a_member_that_leads_no_more_asks_for_nothing() -> None:
    """The new leader watches the topics."""
    planning = Planning()
    await planning.plan(a=["t"])
    planning.planner.forget()
    changing = asyncio.ensure_future(planning.planner.changed(0.001))
    await asyncio.sleep(0.02)
    assert planning.topics.reasons == ["assignment"]
    changing.cancel()
