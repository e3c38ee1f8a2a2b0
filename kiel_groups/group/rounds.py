"""
Decide when a group of programs rebalances, and how its members get their assignments.

The members of such a group are programs, such as workers, that share other work than partitions. A round is one
rebalance of the group: its members join, and get their assignments of one generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kiel_groups.group.planner import Publication
from kiel_groups.group.znodes.contents import DONE
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.round_contents import JOINING, RoundAssignment, RoundMember, RoundState
from kiel_groups.group.znodes.transactions import Check, Create, Delete, Operation, Put, chunks
from kiel_groups.model import MemberId
from kiel_groups.wording import some

# The rules of rounds: how the members of a group of programs get their assignments of one generation.
#
# Rules
#   1. A round begins if a live member waits for a later generation than the newest one, if a member of the newest
#      generation is gone, or if the newest round was not finished. A member waits if it is new, if it has given its
#      assignment back, or if its metadata has changed.
#   2. The generation of a round is above every stored generation, and not below any generation that a member waits for.
#      If the newest round is not known, the members may have completed the generations in their znodes, so the next
#      generation is above these, too.
#   3. A member that reads of a round gives its assignment back, and then joins: it writes the generation into its
#      member znode, with the metadata that it offers now.
#   4. The round waits for all live members. After the rebalance timeout, it continues without those that have not
#      joined. They join a later round. What they still own is protected by their claims. A leader whose own member has
#      not joined by then, or whose program has not assigned after another rebalance timeout, ends its session.
#   5. The members of a round must know a protocol in common. The leader is accepted first, then the other members in
#      the order of their registration. A member that shares no protocol with all accepted members is refused.
#   6. Of the protocols that all members know, the one is chosen that most members prefer. If several are preferred
#      equally often, the one is chosen that the first member prefers.
#   7. All assignments of a generation are written before its state is ``done``, and members read them only then.


#: The most members that a cause names.
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInputs:
    """
    The data that the leader has read to decide about a round.

    ``members`` are the live members whose znodes are readable, in the order of their registration. ``state`` is None if
    the group state's znode is absent or unreadable. ``state_version`` is None only if that znode is absent.
    ``assignments`` has the generation of each member's stored assignment, 0 for an unreadable assignment. ``known`` is
    the newest generation that the leader's own member has read so far.
    """

    members: Sequence[RoundMember]
    state: RoundState | None = None
    state_version: int | None = None
    assignments: Mapping[MemberId, int] = field(default_factory=dict)
    known: int = 0

    @property
    def newest(self) -> int:
        """The newest generation that is stored, or that the leader has read before."""
        return max(self.state.generation if self.state else 0, *self.assignments.values(), self.known)


def round_cause(inputs: RoundInputs) -> str:
    """Return why a round must begin, or "" if no round must begin."""
    state = inputs.state
    if not inputs.members:
        return ""
    if state is None:
        return "first round" if not inputs.assignments else "manual"
    live = {member.member_id for member in inputs.members}
    causes: list[str] = []
    if state.state != DONE:
        causes.append("round interrupted")
    waiting = [member.member_id for member in inputs.members if member.joined > state.generation]
    if new := [each for each in waiting if each not in state.members]:
        causes.append(f"join of {some(new, most=_MOST_NAMES)}")
    if again := [each for each in waiting if each in state.members]:
        causes.append(f"rejoin of {some(again, most=_MOST_NAMES)}")
    if gone := [each for each in state.members if each not in live]:
        causes.append(f"leave or expiry of {some(gone, most=_MOST_NAMES)}")
    return ", ".join(causes)


class Opening(NamedTuple):
    """
    The start of a round: its state, the transaction that writes this state, and the znode's ``version`` after that.
    """

    state: RoundState
    write: tuple[Operation, ...]
    version: int


def opening(
    layout: GroupLayout, inputs: RoundInputs, *, leader: MemberId, candidate: str, cause: str, now_ms: int
) -> Opening:
    """
    Return the state of a new round, and the transaction that starts the round.

    Args:
        layout: The group's paths.
        inputs: The data that the leader has read. The group has a member.
        leader: The leader's member id.
        candidate: The path of the leader's election znode. The transaction fails if that znode is gone.
        cause: Why the round begins.
        now_ms: Wall-clock time, milliseconds since 1970.
    """
    state = RoundState(
        generation=_next_generation(inputs), state=JOINING, leader=leader, cause=cause, created_at_ms=now_ms
    )
    proof, path, data, version = Check(candidate), layout.group_state, state.encode(), inputs.state_version
    if version is None:
        return Opening(state, (proof, Create(path, data)), 0)
    return Opening(state, (proof, Put(path, data, version)), version + 1)


def _next_generation(inputs: RoundInputs) -> int:
    joined = max(member.joined for member in inputs.members)
    following = inputs.newest + 1
    if inputs.state is not None and joined <= following:
        return following
    # The state was deleted, or replaced by an older one. A member that has completed a generation would not notice a
    # round of the same generation, and would never join it.
    return max(following, joined + 1)


def latecomers(members: Sequence[RoundMember], generation: int) -> list[MemberId]:
    """Return the ids of the members that have not joined this generation."""
    return [member.member_id for member in members if member.joined != generation]


class Choice(NamedTuple):
    """The protocol of a round, the metadata of its members, and the reason for each refused member."""

    protocol: str
    members: Mapping[MemberId, bytes]
    refused: Mapping[MemberId, str]


def choose(members: Sequence[RoundMember], generation: int, leader: MemberId) -> Choice:
    """
    Choose the protocol of a generation for the members that have joined it (rules 5 and 6).

    The function considers the leader first, then the other members in the given order. If no member is accepted, the
    protocol is "".
    """
    accepted: list[RoundMember] = []
    refused: dict[MemberId, str] = {}
    common: frozenset[str] = frozenset()
    for member in sorted(members, key=lambda each: each.member_id != leader):
        if member.joined != generation:
            continue
        known = frozenset(each.name for each in member.offer.protocols)
        shared = known & common if accepted else known
        if not shared:
            others = f"; the others have {', '.join(sorted(common))} in common" if accepted else ""
            refused[member.member_id] = f"it offers {', '.join(sorted(known)) or 'no protocol'}{others}"
            continue
        accepted.append(member)
        common = shared
    if not accepted:
        return Choice("", {}, refused)
    votes = Counter(next(each.name for each in m.offer.protocols if each.name in common) for m in accepted)
    preferred = [each.name for each in accepted[0].offer.protocols if each.name in common]
    protocol = max(preferred, key=lambda name: (votes[name], -preferred.index(name)))
    metadata = {m.member_id: next(e.metadata for e in m.offer.protocols if e.name == protocol) for m in accepted}
    return Choice(protocol, metadata, refused)


def publication(
    layout: GroupLayout,
    begun: Opening,
    choice: Choice,
    assignments: Mapping[MemberId, bytes],
    *,
    stored: Sequence[MemberId],
    candidate: str,
) -> Publication:
    """
    Return the transactions that write the assignments of a round and end the round.

    Args:
        layout: The group's paths.
        begun: The start of the round, as ``opening`` has returned it.
        choice: The round's protocol and members.
        assignments: The assignment of each member. A member that is left out gets an empty assignment.
        stored: The members that have a stored assignment. The writes replace or delete these assignments.
        candidate: The path of the leader's election znode. Every transaction checks that znode.
    """
    generation = begun.state.generation
    writes: list[Operation] = []
    for member_id in choice.members:
        data = RoundAssignment(generation, member_id, assignments.get(member_id, b"")).encode()
        path = layout.assignment(member_id)
        writes.append(Put(path, data) if member_id in stored else Create(path, data))
    writes += [Delete(layout.assignment(each)) for each in stored if each not in choice.members]
    done = replace(
        begun.state, state=DONE, protocol=choice.protocol, members=tuple(choice.members), refused=choice.refused
    )
    proof, closing = Check(candidate), Put(layout.group_state, done.encode(), begun.version)
    batches = list(chunks(writes))
    if len(batches) <= 1:
        transactions: tuple[tuple[Operation, ...], ...] = ((proof, *(batches[0] if batches else ()), closing),)
    else:
        guard = (proof, Check(layout.group_state, begun.version))
        transactions = (*((*guard, *batch) for batch in batches), (proof, closing))
    return Publication(generation=generation, moved=0, folders=(), writes=transactions)
