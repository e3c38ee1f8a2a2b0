"""Paths, leases, transactions and the subscription: small values with exact meanings."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.group.member.lease import answer_limit_s, heartbeat_interval_s, lease_deadline
from kiel_groups.group.member.subscription import StartPosition, SubscriptionState
from kiel_groups.group.znodes.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.group.znodes.transactions import (
    MOST_BYTES,
    MOST_OPERATIONS,
    Check,
    Create,
    Delete,
    Operation,
    Put,
    chunks,
    size_of,
)
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 10), TopicPartition("u", 0)

LAYOUT = GroupLayout("g.1")
PATHS = {
    "root": (LAYOUT.root, "/kiel-groups/g.1"),
    "members": (LAYOUT.members, "/kiel-groups/g.1/members"),
    "member": (LAYOUT.member("m-1"), "/kiel-groups/g.1/members/m-1"),
    "election": (LAYOUT.election, "/kiel-groups/g.1/election"),
    "candidate": (LAYOUT.candidate_prefix("abc"), "/kiel-groups/g.1/election/abc-n_"),
    "group_state": (LAYOUT.group_state, "/kiel-groups/g.1/allocation"),
    "slice": (LAYOUT.assignment("m-1"), "/kiel-groups/g.1/allocation/m-1"),
    "config": (LAYOUT.config, "/kiel-groups/g.1/config"),
    "ids": (LAYOUT.ids, "/consumers/g.1/ids"),
    "consumer id": (LAYOUT.consumer_id("m-1"), "/consumers/g.1/ids/m-1"),
    "owners": (LAYOUT.owners, "/consumers/g.1/owners"),
    "owners of a topic": (LAYOUT.topic_owners("t"), "/consumers/g.1/owners/t"),
    "owner": (LAYOUT.owner(T1), "/consumers/g.1/owners/t/10"),
    "offsets": (LAYOUT.offsets, "/consumers/g.1/offsets"),
    "offsets of a topic": (LAYOUT.topic_offsets("t"), "/consumers/g.1/offsets/t"),
    "offset": (LAYOUT.offset(T1), "/consumers/g.1/offsets/t/10"),
    "kiel's members": (LAYOUT.kiel_members, "/kiel/groups/g.1/members"),
    "topic": (topic_path("t"), "/brokers/topics/t"),
    "brokers": (BROKER_IDS, "/brokers/ids"),
}


@pytest.mark.parametrize("name", PATHS)
def test_path(name: str) -> None:
    """Paths are a contract with every tool and every later version."""
    found, expected = PATHS[name]
    assert found == expected


def test_parents_come_before_their_children_and_hold_all_folders() -> None:
    """Created in this order, no folder misses its parent, and nothing that is registered misses its folder."""
    made = [""]
    for path in LAYOUT.parents:
        assert path.rpartition("/")[0] in made
        made.append(path)
    assert {LAYOUT.members, LAYOUT.election, LAYOUT.ids, LAYOUT.owners, LAYOUT.offsets} <= set(made)


def test_a_lease_lasts_half_the_granted_timeout_from_the_sending() -> None:
    """Reserve is what is kept back of the timeout."""
    assert lease_deadline(100.0, 10_000) == pytest.approx(105.0)
    assert lease_deadline(100.0, 10_000, reserve=0.75) == pytest.approx(102.5)


@pytest.mark.parametrize("reserve", [0.49, 1.0, 2.0, -1.0, float("nan")])
def test_a_lease_keeps_at_least_half_in_reserve(reserve: float) -> None:
    """A larger lease would outlive a session at a slow server; none at all would be useless."""
    with pytest.raises(ValueError, match="reserve"):
        lease_deadline(0.0, 10_000, reserve=reserve)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_lease_needs_a_timeout(timeout_ms: int) -> None:
    """A timeout that was not granted yet is no timeout."""
    with pytest.raises(ValueError, match="session_timeout_ms"):
        lease_deadline(0.0, timeout_ms)


def test_two_heartbeats_may_be_lost_in_a_lease() -> None:
    """A sixth of the timeout between beats, and a sixth for an answer, within half of it."""
    assert heartbeat_interval_s(12_000) == pytest.approx(2.0)
    assert answer_limit_s(12_000) == pytest.approx(2.0)
    assert 2 * heartbeat_interval_s(10_000) + answer_limit_s(10_000) <= lease_deadline(0.0, 10_000) + 1e-9


def test_chunks_hold_at_most_their_number_of_operations() -> None:
    """Cut in order, nothing lost, only the last one shorter."""
    operations: list[Operation] = [Delete(f"/{number}") for number in range(2 * MOST_OPERATIONS + 1)]
    cut = list(chunks(operations))
    assert [operation for chunk in cut for operation in chunk] == operations
    assert [len(chunk) for chunk in cut] == [MOST_OPERATIONS, MOST_OPERATIONS, 1]
    assert list(chunks([])) == []


def test_chunks_hold_at_most_their_bytes() -> None:
    """Large data ends a chunk early; what is larger than a whole chunk goes alone."""
    half = bytes(MOST_BYTES // 2 - 100)
    operations: list[Operation] = [Create("/a", half), Put("/b", half), Put("/c", half), Put("/d", bytes(MOST_BYTES))]
    operations.append(Check("/e"))
    assert [len(chunk) for chunk in chunks(operations)] == [2, 1, 1, 1]
    assert sum(map(size_of, operations[:2])) <= MOST_BYTES


def held() -> SubscriptionState:
    """Partitions 0 and 10 of t at 5 and 7, and 0 of u at 9."""
    state = SubscriptionState()
    state.subscribe(["t", "u"])
    state.assign_from_subscribed(
        {T1: StartPosition(7, 3, 31), U0: StartPosition(9, 0, 32), T0: StartPosition(5, 1, 30)}
    )
    return state


def test_a_subscription_says_whether_it_changed() -> None:
    """Order and repetition are no change."""
    state = SubscriptionState()
    assert state.subscribe(["t", "u"])
    assert not state.subscribe(["u", "t", "t"])
    assert state.subscribe("u")
    assert state.subscription == {"u"}
    assert state.subscribe([])
    assert state.subscription == frozenset()


@pytest.mark.parametrize("topic", ["", "a/b", "ü", ".", "..", "x" * 256, "a b"])
def test_an_impossible_topic_changes_nothing(topic: str) -> None:
    """One clear error, and the subscription stays."""
    state = held()
    with pytest.raises(ConfigError, match="topic"):
        state.subscribe(["t", topic])
    assert state.subscription == {"t", "u"}


def test_a_claim_starts_with_nothing_to_commit() -> None:
    """Position, finished and committed stand at the start; token and version are those of the claim."""
    state = held()
    assert state.assigned_partitions() == {T0, T1, U0}
    assert state.all_consumed_offsets() == {}
    assert [state.position(partition) for partition in (T0, T1, U0)] == [5, 7, 9]
    found = state.state(T1)
    assert found is not None
    assert (found.token, found.version, found.finished, found.committed) == (31, 3, 7, 7)


def test_only_what_is_finished_is_to_be_committed() -> None:
    """A position alone commits nothing; a commit settles what it stored and no more."""
    state = held()
    found = state.state(T0)
    assert found is not None
    found.position = 8
    assert state.all_consumed_offsets() == {}
    found.finished = 7
    assert state.all_consumed_offsets() == {T0: 7}
    state.mark_committed(T0, 6, 2)
    assert state.all_consumed_offsets() == {T0: 7}
    state.mark_committed(T0, 7, 3)
    assert state.all_consumed_offsets() == {}
    assert (found.committed, found.version, found.position) == (7, 3, 8)


def test_a_seek_backwards_is_to_be_committed_too() -> None:
    """What follows the new position counts as neither handed out nor finished."""
    state = held()
    state.seek(T0, 2)
    assert state.position(T0) == 2
    assert state.all_consumed_offsets() == {T0: 2}
    with pytest.raises(KeyError):
        state.seek(TopicPartition("t", 99), 0)


def test_what_is_unassigned_is_forgotten() -> None:
    """Late commits and questions about it are harmless; a new claim starts afresh."""
    state = held()
    state.seek(T0, 6)
    state.unassign([T0, TopicPartition("t", 99)])
    state.mark_committed(T0, 6, 2)
    assert not state.is_assigned(T0)
    assert state.state(T0) is None
    assert state.position(T0) is None
    assert state.all_consumed_offsets() == {}
    state.assign_from_subscribed({T0: StartPosition(6, 4, 40)})
    assert state.is_assigned(T0)
    assert state.all_consumed_offsets() == {}


def test_the_allocation_is_listed_by_topic_in_order_of_numbers() -> None:
    """As people read it: 2 before 10."""
    state = held()
    state.assign_from_subscribed({TopicPartition("t", 2): StartPosition(0, 0, 1)})
    assert state.allocation() == {"t": [0, 2, 10], "u": [0]}
