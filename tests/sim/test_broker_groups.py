"""Simulated groups that brokers coordinate: no scenario breaks an invariant, and cases that seeds have found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kiel_groups.group.member_state import Drained
from kiel_groups.group.seen_topics import SeenTopics
from kiel_groups.members.brokers.consumer_hooks import ConsumerHooks
from kiel_groups.members.brokers.coordinator import BeatTarget, CoordinatorHeartbeat
from kiel_groups.members.brokers.coordinator_commits import CoordinatorOffsets
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.start_positions import StartPositions
from kiel_groups.members.brokers.transport import BeatAnswer
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import UNKNOWN_MEMBER_ID
from tests.fakes import FakeCoordinator
from tests.fakes.simulated_process import SimulatedRuntime
from tests.sim.coordinated.broker_scenario import FAULTS, make_broker_scenario
from tests.sim.coordinated.broker_world import BrokerWorld, brokers_at_rest
from tests.sim.invariants.invariant import Violation
from tests.sim.report import GROUPS, replay, shortened
from tests.sim.scenario import Event

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[BrokerWorld]:
    """Provide a settled group of two members, on brokers of 3.9, with four partitions of one topic."""
    with brokers_at_rest() as made:
        yield made


# Scenarios


def test_scenarios_have_all_faults_and_settings() -> None:
    """Two hundred scenarios have every fault, both kinds of brokers, and both kinds of commits."""
    scenarios = [make_broker_scenario(seed) for seed in range(200)]
    assert min(len(scenario.events) for scenario in scenarios) >= 120
    assert min(scenario.faults for scenario in scenarios) >= 4
    assert {scenario.members for scenario in scenarios} == {2, 3, 4, 5}
    assert {event.operation for scenario in scenarios for event in scenario.events} >= FAULTS.keys()
    assert {(scenario.early, scenario.autocommit) for scenario in scenarios} == {
        (early, autocommit) for early in (False, True) for autocommit in (False, True)
    }


def test_a_failing_seed_is_shortened_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that fails is shortened, fails again in the same way, and its replay shows events and log lines."""
    monkeypatch.setattr(GenerationGate, "is_open", lambda gate, now_s: not gate.is_shut)
    brokers, drawn = GROUPS["brokers"], make_broker_scenario(0)
    at_s = drawn.events[40].at_s
    stop, later = Event(at_s, "freeze", 0, 0.0, 14.0), Event(at_s + 20.0, "produce", 0, 0.5, 0.5)
    scenario = replace(drawn, events=(*drawn.events[:40], stop, later))
    assert "two gates are open" in brokers.play(scenario).error
    shorter = shortened(scenario, brokers)
    assert shorter.events == (stop, later)
    lines: list[str] = []
    assert "two gates are open" in replay(shorter, brokers, lines.append).error
    assert any("freeze c" in line for line in lines)
    assert any("joined generation" in line for line in lines)


# Cases that seeds have found


def test_a_stopped_member_does_not_deliver_beside_the_next_owner(world: BrokerWorld) -> None:
    """
    A member that was stopped for longer than its session asks a coordinator that loads its log. The coordinator answers
    every heartbeat as if all were well. The gate stays shut, because other members have the partitions.
    """
    sleeper, other = world.consumers
    sleeper.process.freeze()
    world.run_for(20.0)
    assert other.opened.keys() == set(world.partitions())
    world.move(loading_s=6.0)
    sleeper.process.thaw()
    world.run_for(5.0)
    assert not sleeper.lease_runs
    world.wait("unowned", 30.0)


def test_a_join_does_not_wait_behind_one_that_was_given_up(monkeypatch: pytest.MonkeyPatch, world: BrokerWorld) -> None:
    """
    A member that is given up in the step in which it decides to join sends only the join that follows. The coordinator
    would answer the former one first, after the rebalance timeout.
    """
    consumer, member = world.consumers[0], world.consumers[0].member._member
    feed = member._feed

    def feed_and_give_up(event: object) -> None:
        feed(event)  # type: ignore[arg-type]
        if isinstance(event, Drained):
            monkeypatch.setattr(member, "_feed", feed)
            member.given_up()
            member.request_rejoin()

    monkeypatch.setattr(member, "_feed", feed_and_give_up)
    consumer.process.call(member.request_rejoin)
    while not consumer.network.pending("membership"):
        world.timeline.step()
    assert [call.request.member_id for call in consumer.network.pending("membership")] == [""]
    world.wait("unowned", 15.0)


def test_a_leader_survives_an_outage_of_the_brokers(world: BrokerWorld) -> None:
    """A leader that cannot refresh its metadata during a rebalance does not stop for good; it assigns afterwards."""
    world.metadata_fails = True
    world.join(world.topics)
    world.timeline.after(8.0, setattr, world, "metadata_fails", False)
    world.run_for(8.0)
    world.wait("unowned", 30.0)
    assert sorted(len(consumer.opened) for consumer in world.consumers) == [1, 1, 2]


def test_a_commit_that_was_given_up_may_be_executed_late(world: BrokerWorld) -> None:
    """
    A commit that the broker reads after its sender has given it up moves the offset back, never beyond what was
    processed. The member's next commit corrects that.
    """
    consumer = world.consumers[0]
    partition = min(consumer.opened)
    stored: list[int] = []
    world.coordinator.observers.append(
        lambda commit: stored.extend(o.offset for p, o in commit.request.offsets.items() if p == partition)
    )
    consumer.network.cut(("aside",), 12.0)
    consumer.work(0.0, 3, 0.01)
    world.run_for(0.1)
    consumer.process.start(consumer.member.commit_on_session())
    world.run_for(4.0)
    assert stored == []
    consumer.network.heal()
    world.run_for(3.0)
    consumer.work(0.0, 2, 0.01)
    world.run_for(10.0)
    assert 3 in stored[stored.index(5) :]
    consumer.work(0.0, 1, 0.01)
    world.run_for(10.0)
    assert stored[-1] == 6


def test_commits_do_not_extend_a_lease_on_brokers_of_0_9() -> None:
    """Commits renew no session there: without heartbeats, the coordinator removes the member all the same."""
    with brokers_at_rest(early=True) as world:
        consumer, other = world.consumers
        consumer.network.cut(("beats",), 30.0)
        for _ in range(20):
            consumer.get_many(1, 0.01)
            world.run_for(0.1)
            consumer.process.start(consumer.commit_if_allowed({}))
            world.run_for(0.9)
        assert not consumer.lease_runs
        assert other.opened.keys() == set(world.partitions())


def test_what_is_finished_after_the_end_of_the_lease_is_not_committed(world: BrokerWorld) -> None:
    """A member without heartbeats commits nothing: the checker reports a commit that is sent with a shut gate."""
    consumer = world.consumers[0]
    partition = min(consumer.opened)
    consumer.network.cut(("beats",), 30.0)
    consumer.work(0.0, 1, 6.0)
    world.run_for(7.0)
    consumer.process.start(consumer.commit_if_allowed({}))
    world.run_for(2.0)
    assert not consumer.lease_runs
    assert world.coordinator.offsets[world.group][partition].offset == 0


def test_a_leader_that_is_blocked_while_its_assignor_runs_goes_on(
    monkeypatch: pytest.MonkeyPatch, world: BrokerWorld
) -> None:
    """The assignor ends on its thread meanwhile, so the leader must not find that it took too long, and stop."""
    in_thread, names = SimulatedRuntime.in_thread, list[str]()

    def blocking(self: SimulatedRuntime, function: Callable[[], Any], name: str) -> Any:
        names.append(name)
        if names == ["assignor"]:
            self._process.block(40.0)
        return in_thread(self, function, name)

    monkeypatch.setattr(SimulatedRuntime, "in_thread", blocking)
    world.join(["t0"])
    world.run_for(60.0)
    assert names[0] == "assignor"
    world.wait("unowned", 30.0)
    assert all(consumer.is_running for consumer in world.consumers)


# The checker notices broken members


async def _nothing(*arguments: Any) -> None:
    """Do nothing, in place of a hook."""


def test_a_gate_that_outlasts_its_lease_is_reported(monkeypatch: pytest.MonkeyPatch, world: BrokerWorld) -> None:
    """Two open gates of a partition are a violation, even if nothing is delivered."""
    monkeypatch.setattr(GenerationGate, "is_open", lambda gate, now_s: not gate.is_shut)
    world.consumers[0].process.freeze()
    with pytest.raises(Violation, match="two gates are open for t0"):
        world.run_for(20.0)


def test_a_heartbeat_that_opens_a_gate_again_is_reported(monkeypatch: pytest.MonkeyPatch, world: BrokerWorld) -> None:
    """Without the sync after the end of a lease, a loading coordinator makes two owners."""

    def synced(self: CoordinatorHeartbeat, target: BeatTarget, sent_s: float, answer: BeatAnswer) -> None:
        self._beat(target, sent_s, renews=True)

    monkeypatch.setattr(CoordinatorHeartbeat, "_synced", synced)
    world.consumers[0].process.freeze()
    world.run_for(20.0)
    world.move(loading_s=6.0)
    world.consumers[0].process.thaw()
    with pytest.raises(Violation, match="two gates are open"):
        world.run_for(5.0)


def test_a_member_that_joins_with_open_partitions_is_reported(
    monkeypatch: pytest.MonkeyPatch, world: BrokerWorld
) -> None:
    """A member must give its partitions back before it joins."""
    monkeypatch.setattr(ConsumerHooks, "prepare", _nothing)
    world.join(world.topics)
    with pytest.raises(Violation, match="joins, and has"):
        world.run_for(10.0)


def test_a_lost_record_is_reported(monkeypatch: pytest.MonkeyPatch, world: BrokerWorld) -> None:
    """A commit may not pass what the application has processed."""
    store = CoordinatorOffsets.store

    async def ahead(self: CoordinatorOffsets, offsets: dict[TopicPartition, int], *args: Any, **kwargs: Any) -> Any:
        return await store(self, {partition: offset + 1 for partition, offset in offsets.items()}, *args, **kwargs)

    monkeypatch.setattr(CoordinatorOffsets, "store", ahead)
    world.consumers[0].work(0.0, 3, 0.01)
    with pytest.raises(Violation, match="commits 4 of t0"):
        world.run_for(10.0)


def test_an_offset_that_moves_back_is_reported(monkeypatch: pytest.MonkeyPatch, world: BrokerWorld) -> None:
    """An offset moves back only by choice of the application, or by a request that was given up."""
    consumer = world.consumers[0]
    consumer.work(0.0, 3, 0.01)
    world.run_for(10.0)
    store = CoordinatorOffsets.store

    async def behind(self: CoordinatorOffsets, offsets: dict[TopicPartition, int], *args: Any, **kwargs: Any) -> Any:
        return await store(self, {partition: offset - 3 for partition, offset in offsets.items()}, *args, **kwargs)

    monkeypatch.setattr(CoordinatorOffsets, "store", behind)
    consumer.work(0.0, 2, 0.01)
    with pytest.raises(Violation, match="over 3"):
        world.run_for(10.0)


def test_a_start_that_is_not_stored_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is opened only after the coordinator has its start."""

    async def pretend(self: CoordinatorOffsets, offsets: dict[TopicPartition, int], **_: object) -> Any:
        return frozenset(offsets)

    monkeypatch.setattr(CoordinatorOffsets, "store", pretend)
    with pytest.raises(Violation, match="no start is committed"), brokers_at_rest():
        pass


def test_a_member_that_rejoins_for_ever_is_reported(monkeypatch: pytest.MonkeyPatch, world: BrokerWorld) -> None:
    """A group must come to rest."""
    monkeypatch.setattr(FakeCoordinator, "_heartbeat", lambda self, broker, request: UNKNOWN_MEMBER_ID)
    world.run_for(5.0)
    with pytest.raises(Violation, match="partitions are not owned by one"):
        world.wait("unowned", 0.0)


# Topics that are created again


def _read_and_create_again(world: BrokerWorld, pause_s: float) -> None:
    """Have all records read, delete the topic, and create it again with more records than it had."""
    world.wait("unfinished", 60.0)
    world.delete_topic("t0")
    world.run_for(pause_s)
    world.create_topic("t0", 0.9)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("pause_s", [0.0, 12.0])
def test_a_topic_that_is_created_again_is_read_from_its_start(
    early: bool, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ids of topics, and without; the group rebalances in a long pause, and not in a short one."""
    monkeypatch.setattr("tests.sim.coordinated.broker_world.NOTICED_SHARE", 1.0)
    with brokers_at_rest(early=early, metadata_max_age_ms=5_000) as world:
        _read_and_create_again(world, pause_s)
        world.wait("unowned", 60.0)
        world.wait("unfinished", 60.0)
        assert world.checker._covered.keys() == set(world.partitions())


def test_the_checker_reports_records_of_a_new_log_that_are_skipped(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that follows no change of ids continues in the new log where it was in the old one."""
    monkeypatch.setattr(SeenTopics, "renew", lambda *_: None)
    _read_and_create_again(world, 0.0)
    with pytest.raises(Violation, match="whose new log it knows"):
        world.wait("unfinished", 60.0)


def test_the_checker_reports_stored_offsets_of_an_old_log_that_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Coordinators of 0.9 keep them, and the members have seen that the topic was missing: no excuse applies."""
    monkeypatch.setattr("tests.sim.coordinated.broker_world.NOTICED_SHARE", 1.0)
    monkeypatch.setattr(StartPositions, "_look_at", _nothing)
    with brokers_at_rest(early=True, metadata_max_age_ms=5_000) as world:
        _read_and_create_again(world, 12.0)
        with pytest.raises(Violation, match="partitions are not finished"):
            world.wait("unfinished", 60.0)


def test_the_checker_reports_a_restart_in_a_log_that_is_not_new(world: BrokerWorld) -> None:
    """Two brokers that name different ids for one topic would make a member read it again."""
    consumer = next(each for each in world.consumers if each.opened)
    consumer.process.call(consumer._topics.seen.identified, "t0", "another id")
    with pytest.raises(Violation, match="its log is not new"):
        world.run_for(10.0)
