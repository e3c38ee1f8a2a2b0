"""What the leader of a worker group assigns, and by which configuration."""

from __future__ import annotations

import pytest

from kiel_groups.errors import AllocatorError, NoZooKeeperError
from kiel_groups.wire.connect_protocol import NO_OFFSET, ConnectAssignment, ConnectMetadata, StickyMetadata
from kiel_groups.workers.membership import ConfigReads, WorkAssigner, WorkerContext
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, TaskId, Work
from tests.helpers.fake_worker_group import FakeWorkerGroup, config_of, url_of

pytestmark = pytest.mark.unit

A, B, C = (ConnectorId(name) for name in "abc")
#: A connector with tasks, one that has not made any yet, and one whose task set is inconsistent.
PARTLY = ConfigSnapshot(
    5,
    {
        "a": ConnectorEntry({}, tasks=({}, {}, {})),
        "b": ConnectorEntry({}),
        "c": ConnectorEntry({}, tasks=({},), problem="no"),
    },
)


class LeaderBench:
    """A leader that joined with the snapshot of offset 5, and the members whose metadata the test chooses."""

    def __init__(self, *views: ConfigSnapshot | Exception, first: ConfigSnapshot | Exception = PARTLY) -> None:
        group = FakeWorkerGroup("x")
        self.source = group["x"]
        self.source.views.extend([first, *views])
        self.context = WorkerContext(
            group="g", url=url_of("x"), metrics=self.source.metrics, runtime=group.process.runtime
        )
        self.config = ConfigReads(self.context, self.source)
        self.assigner = WorkAssigner(self.context, self.config)
        self.group = group
        group.run(self.config.read())

    def assign(self, protocol: str = "default", **metadata: int | bytes) -> dict[str, ConnectAssignment]:
        """Assign as leader x to members with these configuration offsets, or with other bytes."""
        members = {
            member: its if isinstance(its, bytes) else ConnectMetadata(url_of(member), its).encode()
            for member, its in metadata.items()
        }
        assigned = self.group.run(self.assigner.assign(protocol, "x", members))
        assert assigned.keys() == members.keys()
        return {member: ConnectAssignment.parse(each, member) for member, each in assigned.items()}


def assignment(work: dict[str, tuple[int, ...]], offset: int = 5) -> ConnectAssignment:
    return ConnectAssignment(0, "x", url_of("x"), offset, work)


def failed(offset: int) -> ConnectAssignment:
    return ConnectAssignment(1, "x", url_of("x"), offset, {})


def test_connectors_and_then_tasks_are_assigned_on_one_cursor() -> None:
    """
    The sorted members get the connectors and then the tasks in turn. Connectors without a usable task set are assigned
    themselves, but not their tasks.
    """
    assert LeaderBench().assign(y=3, x=5) == {
        "x": assignment({"a": (-1, 1), "c": (-1,)}),
        "y": assignment({"b": (-1,), "a": (0, 2)}),
    }


def test_each_member_gets_an_assignment() -> None:
    """A member for which no work is left gets an assignment without work."""
    bench = LeaderBench(first=config_of(5, a=None))
    assert bench.assign(x=5, y=5) == {"x": assignment({"a": (-1,)}), "y": assignment({})}


@pytest.mark.parametrize(
    ("target", "views", "reads", "expected"),
    [
        pytest.param(5, [config_of(9)], 1, assignment({"a": (-1,)}), id="up to date: no other read"),
        pytest.param(7, [config_of(7, b=None)], 2, assignment({"b": (-1,)}, 7), id="one more read is enough"),
        pytest.param(7, [config_of(9, b=None)], 2, assignment({"b": (-1,)}, 9), id="it may be beyond everybody's"),
        pytest.param(7, [config_of(6, b=None), config_of(7)], 2, failed(7), id="still behind: no third read"),
        pytest.param(7, [NoZooKeeperError("no server")], 2, failed(7), id="no read: behind"),
    ],
)
def test_the_leader_needs_the_largest_offset(
    target: int, views: list[ConfigSnapshot | Exception], reads: int, expected: ConnectAssignment
) -> None:
    """
    A leader that is behind the largest offset of all reads once more. If it is still behind, it assigns nothing to any
    member, and names that offset.
    """
    bench = LeaderBench(*views, first=config_of(5, a=None))
    assigned = bench.assign(x=4, y=target)
    assert assigned["x"] == expected
    # The second read must not be answered by a server that lags behind.
    assert bench.source.reads == [False, True][:reads]
    if expected.is_failed:
        assert set(map(str, assigned.values())) == {str(expected)}
        assert bench.assigner.owners.get(A) is None


def test_the_owners_of_a_failed_assignment_are_not_those_of_the_former_one() -> None:
    """A leader that assigns nothing forgets to whom it has assigned before."""
    bench = LeaderBench(PARTLY)
    bench.assign(x=5)
    assert bench.assigner.owners.get(A) == url_of("x")
    bench.assign(x=5, y=6)
    assert bench.assigner.owners.get(A) is None


def test_a_group_that_has_read_nothing_gets_nothing() -> None:
    """If no worker has read a configuration, the leader neither, the assignment fails."""
    bench = LeaderBench(NoZooKeeperError("again"), first=NoZooKeeperError("no server"))
    assert bench.assign(x=NO_OFFSET) == {"x": failed(NO_OFFSET)}


def test_a_member_with_unreadable_metadata_gets_no_work() -> None:
    """A member whose metadata cannot be read gets an assignment without work, and the work goes to the others."""
    bench = LeaderBench()
    assert bench.assign(w=b"\0\0garbage", x=5) == {
        "w": assignment({}),
        "x": assignment({"a": (-1, 0, 1, 2), "b": (-1,), "c": (-1,)}),
    }
    assert bench.source.metrics.counter("worker_metadata_unreadable") == 1


def test_an_unknown_protocol_fails_the_leader() -> None:
    """A protocol that no worker has offered is an error, as the coordinator's choice cannot be followed."""
    with pytest.raises(AllocatorError, match="has chosen 'eager', which is not offered"):
        LeaderBench().assign("eager", x=5)


def sticky(member: str, generation: int, work: dict[str, tuple[int, ...]]) -> bytes:
    return StickyMetadata(url_of(member), 5, generation, work).encode()


def test_members_keep_their_work() -> None:
    """With the sticky protocol, members keep what they had, up to an even load of connectors, and of tasks."""
    assigned = LeaderBench().assign(
        "kiel-sticky", x=sticky("x", 2, {"b": (-1,), "a": (2,)}), y=sticky("y", 2, {"a": (-1, 0, 1), "c": (-1,)})
    )
    assert assigned == {"x": assignment({"b": (-1,), "a": (2,)}), "y": assignment({"a": (-1, 0, 1), "c": (-1,)})}


@pytest.mark.parametrize(("older", "newer"), [("x", "y"), ("y", "x")])
def test_the_latest_generation_says_who_had_the_work(older: str, newer: str) -> None:
    """If two members name the same work, it was with the one that names the later generation."""
    both = {"a": (-1, 0), "b": (-1,)}
    bench = LeaderBench(first=config_of(5, a=1, b=None))
    assigned = bench.assign("kiel-sticky", **{older: sticky(older, 2, both), newer: sticky(newer, 3, {"a": (-1, 0)})})
    assert (assigned[older].work, assigned[newer].work) == ({"b": (-1,)}, {"a": (-1, 0)})


def owners_after(group: FakeWorkerGroup) -> dict[Work, str]:
    group.rebalance()
    return group.owners()


def test_a_restart_moves_little_in_a_sticky_group() -> None:
    """In a group whose workers prefer to keep their work, a worker that restarts moves nothing but its own work."""
    group = FakeWorkerGroup("x", "y", "z", allocator="sticky")
    group.config = config_of(5, a=4, b=4)
    before = owners_after(group)
    group.lose("z")
    del group.workers["z"]
    between = owners_after(group)
    assert {work for work in before if between[work] != before[work]} == {w for w in before if before[w] == "z"}
    group.add("z", "sticky")
    after = owners_after(group)
    assert {work for work in after if after[work] != between[work]} == {w for w in after if after[w] == "z"}


def test_a_group_with_other_preferences_assigns_in_turn() -> None:
    """If one worker does not offer the sticky protocol, the group assigns in turn."""
    group = FakeWorkerGroup("x", "y", allocator="sticky")
    group.config = config_of(5, a=2)
    group.rebalance()
    group.workers = {"w": group.add("w"), **group.workers}
    assert owners_after(group) == {A: "w", TaskId("a", 0): "x", TaskId("a", 1): "y"}
