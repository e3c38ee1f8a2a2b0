"""
Compute the transactions that publish a plan, from the data that the leader has read.

A slot is the place of a member in the plan: its instance id, or else its member id. A static member, which has an
instance id, is away if it has left and its place is kept. The group state is the data of the ``allocation`` znode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kiel_groups.allocators import Allocator, GroupSpec, MemberSpec, PartitionSpec, allocator_name, run_allocator
from kiel_groups.group.topic_patterns import PatternMatch
from kiel_groups.group.znodes.contents import DONE, PUBLISHING, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.group_settings import DynamicConfig, HistoryEntry, PlanRequest, Weights, record
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Check, Create, Delete, Operation, Put, chunks
from kiel_groups.model import Allocation, MemberId, Slot, TopicPartition
from kiel_groups.wording import counted

# Limit how many partitions one session may own.
#
# To close a session, the ensemble writes all paths of the session's ephemeral znodes in one transaction. If that
# transaction is too large for the servers, the ensemble loses its quorum (ZOOKEEPER-4306: 1.25 MB of paths survived,
# 2.5 MB did not). Partitions beyond the limit get no owner.


#: This is less than half of the size that survived: a member may still own partitions that its new assignment lacks.
MOST_PATH_BYTES = 512 << 10

#: Reserved for a member's other ephemeral znodes: its member znode, its consumer id and its election znode.
_OTHERS_BYTES = 2 << 10

#: The reason why a partition has no owner although a member subscribes to its topic.
TOO_MANY = f"more than one session can own ({MOST_PATH_BYTES >> 10} KiB of paths); start more members"


def limit_claims(target: Target, layout: GroupLayout, chroot: str) -> Target:
    """
    Return the target with no more partitions for a member than one session can own.

    The other partitions become unassigned.

    Args:
        target: The allocation to limit.
        layout: The group's paths.
        chroot: The chroot, which precedes each path on the server.
    """
    left = MOST_PATH_BYTES - _OTHERS_BYTES
    # The common case is cheap: no member has so many partitions that they would exceed the limit even if every path had
    # the greatest length. 300 bytes are the longest topic name (255), two slashes and the partition number.
    longest = len(chroot) + len(layout.owners) + 300
    if all(len(owned) * longest <= left for owned in target.allocation.values()):
        return target
    surplus = {slot: _surplus(owned, layout, len(chroot), left) for slot, owned in target.allocation.items()}
    return replace(
        target,
        allocation={slot: owned - surplus[slot] for slot, owned in target.allocation.items()},
        unassigned={**target.unassigned, **dict.fromkeys(frozenset().union(*surplus.values()), TOO_MANY)},
    )


def _surplus(
    owned: Collection[TopicPartition], layout: GroupLayout, chroot_bytes: int, left: int
) -> frozenset[TopicPartition]:
    """
    Return the partitions beyond the limit.

    The result has the last partitions in order, so that successive plans keep the same partitions.
    """
    surplus = set()
    for partition in sorted(owned):
        left -= chroot_bytes + len(layout.owner(partition))
        if left < 0:
            surplus.add(partition)
    return frozenset(surplus)


def members_by_slot(registered: Iterable[tuple[int, MemberInfo]]) -> dict[Slot, MemberInfo]:
    """
    Return the members by slot. Of two members with the same slot, keep the one that registered later, or the only one
    that subscribes: a member has its place until a later one has subscribed.

    Args:
        registered: The members, each with the creation zxid of its znode. A later registration has a higher zxid.
    """
    ordered = sorted(registered, key=lambda each: (each[1].subscribes, each[0]))
    return {info.slot: info for _, info in ordered}


# Absent static members: their slots keep their partitions for a grace period, so that a restart moves nothing.
#
# The time at which a slot became empty is stored in its assignment (``away_since``), so that the next leader knows it.


def absences(
    assignments: Mapping[Slot, MemberAssignment | None], members: Mapping[Slot, MemberInfo], now_ms: int, grace_ms: int
) -> dict[Slot, MemberAssignment]:
    """
    Return the assignments of slots whose static member left less than the grace period ago, with ``away_since_ms`` set.

    A member that has registered again, but has not subscribed yet, is still away: an application may connect long
    before it subscribes.

    Args:
        assignments: The stored assignment of each slot, or None if the assignment is unreadable. The result leaves out
            such a slot.
        members: The registered members.
        now_ms: Wall-clock time, milliseconds since 1970. The clocks of two leaders may differ: a stored time in the
            future is taken as now.
        grace_ms: How long the slot of an absent static member stays reserved, in milliseconds.
    """
    away = {}
    for slot, stored in assignments.items():
        # A dynamic member's slot is its member id, which no later member can have.
        if stored is None or stored.member_id == slot:
            continue
        member = members.get(slot)
        if member is not None and (member.subscribes or member.member_id == stored.member_id):
            continue
        since_ms = now_ms if stored.away_since_ms is None else min(stored.away_since_ms, now_ms)
        if now_ms - since_ms < grace_ms:
            away[slot] = replace(stored, away_since_ms=since_ms)
    return away


def next_end_ms(away: Mapping[Slot, MemberAssignment], grace_ms: int) -> int | None:
    """Return when the first grace period ends, in milliseconds since 1970, or None if no member is away."""
    return min(
        (stored.away_since_ms + grace_ms for stored in away.values() if stored.away_since_ms is not None), default=None
    )


# Compute the transactions that publish a plan, from the data that the leader has read.
#
# A plan is compared with the *stored assignments*, not only with the group state, so it also completes a publication
# that an earlier leader did not finish. Its generation is above every generation in the group state, in an assignment
# or in the history.


#: The group state names at most this many unassigned partitions; the rest are only counted.
NAMED_UNASSIGNED = 100

#: The group state names at most this many causes: a thousand members may start at once.
MOST_CAUSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """
    All inputs of a plan, read after the leadership was verified.

    ``members`` has the newest member of each slot that is not in ``away``. ``topics`` has the partition numbers of each
    topic, and ``brokers`` is the number of registered brokers. ``assignments`` has None for an unreadable assignment.
    ``away`` has the assignments of slots whose static member may return. ``history`` has the generations with a history
    entry. ``patterns`` has what each pattern of a member matches. ``has_topics`` is true if the cluster was asked for
    all of its topics and has some. ``weights`` are empty if their znode is absent. If the znode is unreadable,
    ``weights`` has the last readable weights. ``group_state`` is None if its znode is absent or unreadable.
    ``group_state_version`` is None only if that znode is absent. ``forgetting`` is the write that removes departed
    drained members from the group's ``config``, or None if no such member is listed.
    """

    members: Mapping[Slot, MemberInfo]
    topics: Mapping[str, tuple[int, ...]]
    brokers: int
    group_state: GroupState | None = None
    group_state_version: int | None = None
    assignments: Mapping[Slot, MemberAssignment | None] = field(default_factory=dict)
    away: Mapping[Slot, MemberAssignment] = field(default_factory=dict)
    history: tuple[int, ...] = ()
    dynamic_config: DynamicConfig = field(default_factory=DynamicConfig)
    forgetting: Put | None = None
    weights: Weights = field(default_factory=dict)
    patterns: Mapping[str, PatternMatch] = field(default_factory=dict)
    has_topics: bool = False

    def topics_of(self, member: MemberInfo) -> tuple[str, ...]:
        """Return the topics that a member subscribes to, or that its pattern matches."""
        if member.pattern is None:
            return member.subscription
        return self.patterns.get(member.pattern, PatternMatch()).topics

    @property
    def subscriptions(self) -> dict[Slot, tuple[str, ...]]:
        """
        The topics whose partitions each slot may get.

        A drained slot gets no topics. A slot whose member is away has the topics of its stored assignment.
        """
        wanted = {slot: self.topics_of(member) for slot, member in self.members.items()}
        wanted |= {slot: tuple(sorted({p.topic for p in stored.partitions})) for slot, stored in self.away.items()}
        return {slot: () if slot in self.dynamic_config.drained else topics for slot, topics in wanted.items()}

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """All partitions of all topics."""
        return frozenset(
            TopicPartition(topic, partition) for topic, numbers in self.topics.items() for partition in numbers
        )

    @property
    def subscribed(self) -> frozenset[str]:
        """The topics that at least one member subscribes to, whether they exist or not."""
        return frozenset(topic for member in self.members.values() for topic in self.topics_of(member))

    @property
    def missing(self) -> str:
        """
        The input that a plan lacks although members subscribe to topics, such as "broker", or "" if the plan lacks no
        input.

        A pattern may match no topic, but not because the whole cluster has none: then its list may be lost.
        """
        is_wanted = any(member.subscribes for member in self.members.values())
        if not is_wanted or (self.brokers and (self.topics or self.has_topics)):
            return ""
        return "topic of its subscription" if self.brokers else "broker"

    def racks(
        self, registered: Mapping[int, str | None], leaders: Mapping[str, Mapping[int, int]]
    ) -> dict[TopicPartition, str]:
        """
        Return the racks of partitions' preferred leaders. The group's settings override the racks of brokers.

        The result lacks partitions without a known rack. The preferred leader is the first replica. Another replica
        leads only while the broker of the first replica is down. To follow that replica would move partitions twice.

        Args:
            registered: The racks of brokers by id, as the brokers have registered them.
            leaders: The preferred leader of each partition number, by topic.
        """
        racks = {**registered, **dict(self.dynamic_config.broker_racks)}
        return {
            TopicPartition(topic, number): rack
            for topic, numbers in leaders.items()
            for number, broker in numbers.items()
            if (rack := racks.get(broker)) is not None
        }

    def spec(self, racks: Mapping[TopicPartition, str | None], lags: Mapping[TopicPartition, int | None]) -> GroupSpec:
        """
        Return the group as allocators see it.

        Args:
            racks: The racks of partitions' leaders, as far as they are known.
            lags: The lags of partitions in messages, as far as they are known.
        """
        stored, absent = self.stored, MemberSpec(frozenset())
        members = {slot: MemberSpec(frozenset(), its.capacity, its.rack) for slot, its in self.members.items()}
        return GroupSpec(
            {
                slot: replace(members.get(slot, absent), topics=frozenset(topics), owned=stored.get(slot, frozenset()))
                for slot, topics in self.subscriptions.items()
            },
            {each: PartitionSpec(self.weights.get(each), lags.get(each), racks.get(each)) for each in self.partitions},
        )

    @property
    def request(self) -> PlanRequest | None:
        """The operator's request that no published plan answers yet, or None."""
        request = self.dynamic_config.request
        answered = None if self.group_state is None else self.group_state.request_ms
        return None if request is None or request.at_ms == answered else request

    @property
    def stored(self) -> dict[Slot, frozenset[TopicPartition]]:
        """The partitions of each slot whose stored assignment is readable."""
        return {slot: stored.partitions for slot, stored in self.assignments.items() if stored is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    The allocation to publish.

    ``unassigned`` maps partitions to the reason why no member may own them. ``fallback`` describes what replaced the
    plan of an allocator that failed, or is "" if no allocator failed.
    """

    allocation: Allocation
    unassigned: Mapping[TopicPartition, str] = field(default_factory=dict)
    allocator: str = ""
    fallback: str = ""


#: Why a partition has no owner although members subscribe to its topic.
DRAINED = "all its subscribers are drained"


def allocate(
    inputs: Inputs,
    allocator: Allocator,
    racks: Mapping[TopicPartition, str | None],
    lags: Mapping[TopicPartition, int | None],
) -> Target:
    """
    Run an allocator, and return the target that the leader publishes.

    While a static member is away, no partition moves unnecessarily: the stored assignments stay as long as they fit.

    Args:
        inputs: The data that the leader has read.
        allocator: The group's allocator.
        racks: The racks of partitions' leaders, as far as they are known.
        lags: The lags of partitions in messages, as far as they are known.

    Raises:
        AllocatorError: The allocator raised an error, or returned an invalid allocation.
    """
    outcome = run_allocator(allocator, inputs.spec(racks, lags))
    unassigned = {
        partition: DRAINED if partition.topic in inputs.subscribed else reason
        for partition, reason in outcome.unassigned.items()
    }
    # The allocator does not know of absences.
    allocation = inputs.stored if inputs.away and still_fits(inputs) else outcome.allocation
    return Target(allocation=allocation, unassigned=unassigned, allocator=allocator_name(allocator))


@dataclass(frozen=True, slots=True)
class Publication:
    """
    The transactions that publish a plan, in order. A transaction is sent after the previous transaction was executed.

    ``folders`` are persistent znodes that must exist before the first write.
    """

    generation: int
    moved: int
    folders: tuple[str, ...]
    writes: tuple[tuple[Operation, ...], ...]


def plan(
    layout: GroupLayout,
    inputs: Inputs,
    target: Target,
    *,
    leader: MemberId,
    candidate: str,
    cause: str,
    now_ms: int,
    took_ms: int = 0,
) -> Publication | None:
    """
    Return the writes that make the stored assignments match the target.

    Return None if there is nothing to publish: the group state and the assignments match already, no operator has
    asked for a plan, and no drained member has left. Return None, too, if the group never had a member. A plan that
    fits into one transaction is published by one transaction. During a larger publication, the group state is
    ``publishing`` from the first transaction until the last. A further transaction then removes drained members that
    have left from the ``config``.

    Args:
        layout: The group's paths.
        inputs: The data that the leader has read.
        target: The allocation to publish, with an entry for every slot.
        leader: The publishing member's id.
        candidate: Path of the leader's election znode. Every write checks that this znode still exists.
        cause: The reason for the new plan, for operators.
        now_ms: Wall-clock time, milliseconds since 1970.
        took_ms: Milliseconds from the first change that caused this plan to the plan itself.
    """
    if not inputs.members and _is_untouched(inputs):
        return None
    group_state = _group_state(inputs, target, leader, cause, now_ms)
    changes = _changed_assignments(layout, inputs, target, group_state.generation)
    if (
        not _is_material(changes, layout, inputs)
        and inputs.group_state is not None
        and _is_equivalent(inputs.group_state, group_state)
        and inputs.forgetting is None
    ):
        return None
    proof = Check(candidate)
    opening: Create | Put
    if inputs.group_state_version is None:
        version = 0
        opening = Create(layout.group_state, group_state.encode())
    else:
        version = inputs.group_state_version + 1
        opening = Put(layout.group_state, group_state.encode(), inputs.group_state_version)
    # Later transactions require the version that the first one produces: once another leader or an operator has
    # written the group state, no remaining write of this plan can succeed.
    guard = (proof, Check(layout.group_state, version))
    done = replace(group_state, state=DONE).encode()
    moved = _moved(inputs, target)
    history = tuple(record(layout, _entry(group_state, moved, took_ms), inputs.history))
    batches = list(chunks(changes))
    writes: tuple[tuple[Operation, ...], ...]
    if len(batches) <= 1:
        # A single transaction is atomic, so the state can be "done" at once: no leader ever has to complete it.
        writes = ((proof, replace(opening, data=done), *(batches[0] if batches else ()), *history),)
    else:
        closing = (proof, Put(layout.group_state, done, version), *history)
        writes = ((proof, opening), *((*guard, *batch) for batch in batches), closing)
    if inputs.forgetting is not None:
        # The config may be as large as a transaction may be, so its write is a transaction of its own.
        writes += ((proof, inputs.forgetting),)
    return Publication(generation=group_state.generation, moved=moved, folders=_folders(layout, inputs), writes=writes)


def _is_untouched(inputs: Inputs) -> bool:
    """
    Return whether the group has no group state, assignment or history.

    An allocator process may be elected before the first member joins.
    """
    return inputs.group_state_version is None and not inputs.assignments and not inputs.history


def _is_material(changes: Iterable[Operation], layout: GroupLayout, inputs: Inputs) -> bool:
    """
    Return whether the changes justify a new generation.

    The deletion of departed members' empty assignments can wait for the next generation.
    """
    empty = {layout.assignment(slot) for slot, owned in inputs.stored.items() if not owned}
    return any(not isinstance(change, Delete) or change.path not in empty for change in changes)


def _is_equivalent(stored: GroupState, fresh: GroupState) -> bool:
    """
    Return whether the stored state is ``done``, and the fresh state would add nothing to it.

    Generation, leader, cause and time are not compared. Two texts of ``fallback`` are equivalent unless only one is
    empty: the allocator's error may differ in every plan.
    """
    compared = ("members", "partitions", "unassigned", "allocator", "request_ms", "patterns")
    same = all(getattr(stored, name) == getattr(fresh, name) for name in compared)
    return stored.state == DONE and same and bool(stored.fallback) == bool(fresh.fallback)


def _changed_assignments(layout: GroupLayout, inputs: Inputs, target: Target, generation: int) -> list[Operation]:
    """
    Return the writes for the assignments that differ from the target.

    Slots that gain partitions come first, then other changed slots, then deletions. So a member that gains a partition
    is notified before the member that loses the partition, and watches the owner znode by the time of the release.
    """
    ranked: list[tuple[bool, Slot, Operation]] = []
    for slot, wanted in target.allocation.items():
        stored = inputs.assignments.get(slot)
        fresh = _assignment(inputs, slot, generation, wanted)
        if stored is not None and replace(stored, generation=generation) == fresh:
            continue
        path, data = layout.assignment(slot), fresh.encode()
        gains = stored is None or bool(wanted - stored.partitions)
        ranked.append((not gains, slot, Put(path, data) if slot in inputs.assignments else Create(path, data)))
    gone = [Delete(layout.assignment(slot)) for slot in sorted(inputs.assignments.keys() - target.allocation.keys())]
    return [write for _, _, write in sorted(ranked, key=lambda row: row[:2])] + gone


def _assignment(inputs: Inputs, slot: Slot, generation: int, wanted: frozenset[TopicPartition]) -> MemberAssignment:
    """Return a slot's new assignment. If the slot's member is away, the assignment keeps that member's id."""
    if slot in inputs.members:
        return MemberAssignment(generation, inputs.members[slot].member_id, wanted)
    return replace(inputs.away[slot], generation=generation, partitions=wanted)


def _entry(group_state: GroupState, moved: int, took_ms: int) -> HistoryEntry:
    return HistoryEntry(
        generation=group_state.generation,
        cause=group_state.cause,
        leader=group_state.leader,
        moved=moved,
        members=group_state.members,
        partitions=group_state.partitions,
        took_ms=took_ms,
        created_at_ms=group_state.created_at_ms,
    )


def _group_state(inputs: Inputs, target: Target, leader: MemberId, cause: str, now_ms: int) -> GroupState:
    """Return the group state of the next generation. The generation is above every stored generation."""
    generations = [stored.generation for stored in inputs.assignments.values() if stored is not None]
    request_ms = None
    if inputs.group_state is not None:
        generations.append(inputs.group_state.generation)
        # While the settings cannot be read, the request that was answered last stays answered.
        request_ms = inputs.group_state.request_ms
    if inputs.dynamic_config.request is not None:
        request_ms = inputs.dynamic_config.request.at_ms
    reasons: dict[str, int] = {}
    for reason in target.unassigned.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    return GroupState(
        generation=1 + max([*generations, *inputs.history], default=0),
        state=PUBLISHING,
        leader=leader,
        allocator=target.allocator,
        cause=cause,
        members=sum(1 for member in inputs.members.values() if member.subscribes),
        partitions=sum(map(len, target.allocation.values())),
        unassigned=reasons,
        unassigned_names=tuple(str(partition) for partition in sorted(target.unassigned)[:NAMED_UNASSIGNED]),
        fallback=target.fallback,
        created_at_ms=now_ms,
        request_ms=request_ms,
        patterns=inputs.patterns,
    )


def _moved(inputs: Inputs, target: Target) -> int:
    """Return how many partitions move from one slot to another."""
    before = {partition: slot for slot, owned in inputs.stored.items() for partition in owned}
    return sum(
        1 for slot, owned in target.allocation.items() for partition in owned if before.get(partition, slot) != slot
    )


def _folders(layout: GroupLayout, inputs: Inputs) -> tuple[str, ...]:
    """Return the parent znodes of history entries, and of subscribed topics' owner znodes and offset znodes."""
    return (
        layout.history,
        *(
            folder
            for topic in sorted(inputs.topics.keys() & inputs.subscribed)
            for folder in (layout.topic_owners(topic), layout.topic_offsets(topic))
        ),
    )


def fallback_target(inputs: Inputs, fresh: Target, reason: str) -> Target:
    """
    Return the target to publish if the group's allocator failed.

    The target is the last plan, if that plan still fits. Otherwise, the target is ``fresh``, the result of the sticky
    allocator.
    """
    if still_fits(inputs):
        return replace(fresh, allocation=inputs.stored, fallback=f"last plan kept: {reason}")
    return replace(fresh, fallback=f"sticky used: {reason}")


def still_fits(inputs: Inputs) -> bool:
    """
    Return whether the stored assignments are a valid plan for these inputs.

    The assignments are valid if they have the same slots, if each slot has only topics that it may get, and if each
    existing partition of these topics is assigned exactly once.
    """
    stored, subscriptions = inputs.stored, inputs.subscriptions
    owned = [partition for slot in stored for partition in stored[slot]]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    return (
        stored.keys() == subscriptions.keys()
        and len(owned) == len(set(owned))
        and set(owned) == {partition for partition in inputs.partitions if partition.topic in wanted}
        and all(partition.topic in subscriptions[slot] for slot in stored for partition in stored[slot])
    )


def describe_change(before: Inputs | None, after: Inputs) -> str:
    """
    Describe for operators what changed between two plans: ``join of m1, new partitions of t``, or "" for no change.

    A leaving member drops its subscription before it leaves, so any other member that disappears has died or lost its
    session (an expiry). A new leader cannot tell the two apart: it compares the members with the stored assignments.

    Args:
        before: The inputs of the last published plan, or None if this leader has published no plan yet.
        after: The inputs of this plan.
    """
    if before is None and after.group_state is None and not after.assignments:
        return ""
    if before is None:
        # This leader cannot tell a leave from an expiry: only the previous leader saw the members that are gone.
        causes = [*_requested(after.request), f"leader change, {counted(after.members, 'member')}"]
        causes += [f"join of {slot}" for slot in sorted(after.members.keys() - after.assignments.keys())]
        causes += [
            f"leave or expiry of {slot}"
            for slot in sorted(after.assignments.keys() - after.members.keys() - after.away.keys())
        ]
        return _shortened(causes)
    request = after.dynamic_config.request
    if request == before.dynamic_config.request:
        request = None
    causes = [*_requested(request), *_membership_changes(before, after)]
    # The reason of a request says what the operator has changed with it.
    if request is None and after.dynamic_config != before.dynamic_config:
        causes.append("config")
    # Until the weights are read again, both are the same object: skip the comparison of up to 100,000 weights.
    if after.weights is not before.weights and after.weights != before.weights:
        causes.append("weights")
    # A topic that a pattern matches was wanted before it existed, and is wanted after its deletion.
    lasting = sorted(before.patterns.keys() & after.patterns.keys())
    causes += [
        f"pattern {each:.40}" for each in lasting if before.patterns[each].problem != after.patterns[each].problem
    ]
    created, deleted = (
        {topic for pattern in lasting if not its[pattern].problem for topic in its[pattern].topics}
        for its in (after.patterns, before.patterns)
    )
    wanted_before, wanted_after = before.subscribed | created, after.subscribed | deleted
    for topic in sorted(after.topics.keys() | before.topics.keys()):
        then, now = before.topics.get(topic), after.topics.get(topic)
        if (then is None and topic not in wanted_before) or (now is None and topic not in wanted_after):
            continue
        if then is None:
            causes.append(f"new topic {topic}")
        elif now is None:
            causes.append(f"deleted topic {topic}")
        elif now != then:
            causes.append(f"new partitions of {topic}")
    return _shortened(causes)


def _requested(request: PlanRequest | None) -> list[str]:
    return [] if request is None else [f"operator: {request.reason}"]


def _shortened(causes: list[str]) -> str:
    shown = causes[:MOST_CAUSES]
    return ", ".join([*shown, f"and {len(causes) - len(shown)} more"] if len(causes) > len(shown) else shown)


def describe_allocator(stored: GroupState | None, target: Target) -> str:
    """Describe whether the allocator failed or recovered since the stored group state was written, or return ""."""
    failed, fails = stored is not None and bool(stored.fallback), bool(target.fallback)
    if failed == fails:
        return ""
    return "allocator failed" if fails else "allocator recovered"


def _membership_changes(before: Inputs, after: Inputs) -> list[str]:
    """Describe joins, returns, leaves, expiries, absences and new subscriptions."""
    then, now = before.members, after.members
    causes = [f"{'return' if slot in before.away else 'join'} of {slot}" for slot in sorted(now.keys() - then.keys())]
    for slot in sorted(then.keys() - now.keys()):
        causes.append(
            f"{'leave' if not then[slot].subscribes else 'absence' if slot in after.away else 'expiry'} of {slot}"
        )
    causes += [f"end of grace of {slot}" for slot in sorted(before.away.keys() - after.away.keys() - now.keys())]
    for slot in sorted(now.keys() & then.keys()):
        if now[slot].member_id != then[slot].member_id:
            causes.append(f"return of {slot}")
        elif (set(now[slot].subscription), now[slot].pattern) != (set(then[slot].subscription), then[slot].pattern):
            causes.append(f"{'subscription' if now[slot].subscribes else 'leave'} of {slot}")
    return causes
