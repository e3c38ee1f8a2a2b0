"""Plans applied to a model of the znodes: complete, interrupted, and continued by the next leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kiel_groups.errors import ProtocolError
from kiel_groups.group.planner import Inputs, Publication, Target, plan
from kiel_groups.group.znodes.contents import DONE, PUBLISHING, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, Check, Create, Delete, Operation, Put
from kiel_groups.model import TopicPartition
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

LAYOUT = GroupLayout("g")
NAMES = ["a", "b", "c", "d"]
TOPICS = {"t": (0, 1, 2), "u": (0, 1)}
PARTITIONS = [TopicPartition(topic, number) for topic, numbers in TOPICS.items() for number in numbers]


class RefusedError(Exception):
    """Raised if the model refuses a transaction."""


@dataclass
class Tree:
    """Znodes by path, with data and version."""

    znodes: dict[str, tuple[bytes, int]] = field(default_factory=dict)

    def transact(self, operations: tuple[Operation, ...]) -> None:
        """Apply all operations or none."""
        after = dict(self.znodes)
        for operation in operations:
            self._apply(after, operation)
        self.znodes = after

    @staticmethod
    def _apply(znodes: dict[str, tuple[bytes, int]], operation: Operation) -> None:
        path = operation.path
        found = znodes.get(path)
        if isinstance(operation, Create):
            if found is not None or (path.startswith(f"{LAYOUT.group_state}/") and LAYOUT.group_state not in znodes):
                raise RefusedError(operation)
            znodes[path] = (operation.data, 0)
            return
        if found is None or operation.version not in (-1, found[1]):
            raise RefusedError(operation)
        if isinstance(operation, Put):
            znodes[path] = (operation.data, found[1] + 1)
        elif isinstance(operation, Delete):
            del znodes[path]

    def elect(self, name: str) -> str:
        """Replace the leader's election znode, the only one, and return its path."""
        self.znodes = {path: node for path, node in self.znodes.items() if not path.startswith(LAYOUT.election)}
        path = f"{LAYOUT.election}/{name}"
        self.znodes[path] = (b"", 0)
        return path

    def slots(self) -> list[str]:
        folder = f"{LAYOUT.group_state}/"
        return sorted(path.removeprefix(folder) for path in self.znodes if path.startswith(folder))

    def read(self, members: list[str]) -> Inputs:
        """Return the znodes that a leader reads for a plan."""
        group_state = self.znodes.get(LAYOUT.group_state)
        return Inputs(
            members={
                name: MemberInfo(member_id=name, session_timeout_ms=1, subscription=tuple(TOPICS)) for name in members
            },
            topics=TOPICS,
            brokers=1,
            group_state=None if group_state is None else _or_none(GroupState.parse, group_state[0]),
            group_state_version=None if group_state is None else group_state[1],
            history=self.history(),
            assignments={
                slot: _or_none(MemberAssignment.parse, self.znodes[LAYOUT.assignment(slot)][0]) for slot in self.slots()
            },
        )

    def history(self) -> tuple[int, ...]:
        return tuple(int(path.rpartition("/")[2]) for path in self.znodes if path.startswith(f"{LAYOUT.history}/"))

    def generations(self) -> list[int]:
        read = self.read([])
        found = [stored.generation for stored in read.assignments.values() if stored is not None]
        return found if read.group_state is None else [*found, read.group_state.generation]


Parsed = TypeVar("Parsed")


def _or_none(parse: Callable[[bytes, str], Parsed], data: bytes) -> Parsed | None:
    try:
        return parse(data, "path")
    except ProtocolError:
        return None


def drawn_allocation(to: list[int], names: list[str]) -> dict[str, frozenset[TopicPartition]]:
    """Allocate each partition to one of the names, by a list of choices."""
    owners = [names[choice % len(names)] for choice in to] if names else []
    return {name: frozenset(p for p, owner in zip(PARTITIONS, owners, strict=False) if owner == name) for name in names}


generations = st.integers(0, 50)
choices = st.lists(st.integers(0, 99), min_size=len(PARTITIONS), max_size=len(PARTITIONS))
members = st.lists(st.sampled_from(NAMES), unique=True, max_size=4)
garbage = st.sampled_from([b"", b"{", b"[]", b'{"generation":"1"}', b"\xff"])
assignments = garbage | st.builds(
    lambda generation, name, owned: MemberAssignment(generation, name, owned).encode(),
    generations,
    st.sampled_from(NAMES),
    st.frozensets(st.sampled_from(PARTITIONS)),
)
group_states = garbage | st.builds(
    lambda generation, state: GroupState(generation=generation, state=state, leader="z").encode(),
    generations,
    st.sampled_from([DONE, PUBLISHING]),
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw znodes that earlier leaders and operators may have written."""
    tree = Tree()
    if draw(st.booleans()):
        tree.znodes[LAYOUT.group_state] = (draw(group_states), draw(st.integers(0, 9)))
        for slot in draw(st.lists(st.sampled_from(NAMES), unique=True)):
            tree.znodes[LAYOUT.assignment(slot)] = (draw(assignments), draw(st.integers(0, 9)))
    return tree


@pytest.fixture(
    autouse=True,
    params=[1, 2, MOST_OPERATIONS],
    ids=lambda most_operations: f"{most_operations} operations a transaction",
)
def most_operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the size of a transaction, so that plans are published by one transaction or by several."""
    monkeypatch.setattr("kiel_groups.group.znodes.transactions.MOST_OPERATIONS", request.param)


def planned(tree: Tree, wanted: dict[str, frozenset[TopicPartition]], leader: str) -> Publication | None:
    """Return the plan of a new leader, or None if there is nothing to publish."""
    candidate = tree.elect(leader)
    read = tree.read(list(wanted))
    return plan(LAYOUT, read, Target(allocation=wanted), leader=leader, candidate=candidate, cause="x", now_ms=1)


def assert_published(tree: Tree, wanted: dict[str, frozenset[TopicPartition]]) -> None:
    """
    Assert that the assignments equal the target, and that the group state is complete.

    Departed members may still have empty assignments.
    """
    read = tree.read(list(wanted))
    assert {slot: owned for slot, owned in read.stored.items() if owned or slot in wanted} == wanted
    assignments = {slot: read.assignments[slot] for slot in wanted}
    assert all(stored is not None and stored.member_id == slot for slot, stored in assignments.items())
    assert None not in read.assignments.values()
    if not wanted and not read.assignments and read.group_state_version is None:
        return  # The group has never had a member, so nothing is published.
    assert read.group_state is not None
    assert read.group_state.state == DONE
    assert read.group_state.partitions == sum(map(len, wanted.values()))
    assert read.group_state.generation >= max(
        (stored.generation for stored in assignments.values() if stored), default=0
    )


def publish(tree: Tree, publication: Publication | None, writes: int | None = None) -> None:
    """Apply the first ``writes`` writes of a plan, or all if ``writes`` is None."""
    for operations in publication.writes[:writes] if publication else ():
        tree.transact(operations)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees(), members, choices)
def test_a_published_plan_equals_the_target(tree: Tree, names: list[str], to: list[int]) -> None:
    """
    Whatever znodes are stored, the assignments equal the target after a publication. Publishing the same plan again
    would change nothing.
    """
    wanted = drawn_allocation(to, names)
    before = tree.generations()
    publication = planned(tree, wanted, "leader")
    publish(tree, publication)
    assert_published(tree, wanted)
    if publication is not None:
        assert all(publication.generation > generation for generation in before)
    for leader in ("leader", "next leader"):
        assert planned(tree, wanted, leader) is None


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees(), members, choices, st.lists(st.integers(0, 5), max_size=4), st.booleans())
def test_an_interrupted_publication_is_finished_by_the_next_leader(
    tree: Tree, names: list[str], to: list[int], stops: list[int], same: bool
) -> None:
    """
    If leaders stop after any write of their plans, the next leader completes its own plan. Each generation is larger
    than all before.
    """
    wanted = drawn_allocation(to, names)
    for number, stop in enumerate(stops):
        before = tree.generations()
        publication = planned(tree, wanted if same else drawn_allocation(to[::-1], names), f"leader {number}")
        if publication is not None:
            assert all(publication.generation > generation for generation in before)
        publish(tree, publication, stop)
    publish(tree, planned(tree, wanted, "last leader"))
    assert_published(tree, wanted)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees(), members, choices, choices, st.integers(0, 3))
def test_a_deposed_leader_writes_nothing_more(
    tree: Tree, names: list[str], to: list[int], other: list[int], done: int
) -> None:
    """
    After another leader's election, ZooKeeper refuses every later write of a plan. After another plan was published,
    ZooKeeper refuses the next write.
    """
    first = planned(tree, drawn_allocation(to, names), "first")
    if first is None:
        return
    publish(tree, first, done)
    for election in (True, False):
        overtaken = Tree(dict(tree.znodes))
        if election:
            overtaken.elect("second")
        elif (second := planned(overtaken, drawn_allocation(other, names), "first")) is not None:
            overtaken.transact(second.writes[0])
        else:
            continue
        for operations in first.writes[done:] if election else first.writes[done : done + 1]:
            before = overtaken.znodes
            with pytest.raises(RefusedError):
                overtaken.transact(operations)
            assert overtaken.znodes is before


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees(), members, choices)
def test_gains_are_written_before_losses_and_unchanged_assignments_never(
    tree: Tree, names: list[str], to: list[int]
) -> None:
    """
    Assignments that gain partitions are written before those that only lose some. Unchanged assignments are not
    written, and those of departed members are deleted last.
    """
    wanted = drawn_allocation(to, names)
    before = tree.read(names).assignments
    publication = planned(tree, wanted, "leader")
    writes = publication.writes if publication else ()
    order = []
    for batch in writes:
        assert isinstance(batch[0], Check)
        assignments = [operation for operation in batch if operation.path.startswith(f"{LAYOUT.group_state}/")]
        assert isinstance(batch[1], Check) or len(writes) == 1 or not assignments
        assert len(assignments) <= MOST_OPERATIONS
        for operation in assignments:
            slot = operation.path.rpartition("/")[2]
            was = before.get(slot)
            if isinstance(operation, Delete):
                order.append(2)
                assert slot not in wanted
                continue
            assert was is None or (was.partitions, was.member_id) != (wanted[slot], slot)
            order.append(0 if was is None or wanted[slot] - was.partitions else 1)
    assert order == sorted(order)
