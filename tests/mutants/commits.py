"""Mutants of commits with an unknown outcome, and of offsets that operators change."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OFFSET_TRACKER = "group/member/offset_tracker.py"
_PARTITION_OFFSETS = "group/member/partition_offsets.py"
_OFFSET_ZNODES = "coordination/offsets/offset_znodes.py"
_BROKER_COMMITS = "coordination/offsets/broker_commits.py"
_CLAIM_OPENING = "coordination/offsets/claim_opening.py"
_NEW_LOGS = "coordination/offsets/new_logs.py"
_OWNED_PARTITIONS = "coordination/member/owned_partitions.py"
_OWNER_ZNODES = "coordination/member/owner_znodes.py"
_OWNED_OFFSETS = "coordination/offsets/owned_offsets.py"
_START_OFFSETS = "coordination/offsets/start_offsets.py"

MUTANTS = (
    # Commits whose answer was lost
    Mutant(
        "a refused commit still counts as in flight",
        "coordination/offsets/offset_znodes.py",
        "self._tracker.answered(sent, written.stored)",
        "self._tracker.answered({}, written.stored)",
        "tests/sim/test_interrupted_commits.py",
    ),
    Mutant(
        "an interrupted commit is identified by its offset alone",
        _PARTITION_OFFSETS,
        "return any(Commit(offset, self.version).has_stored(stored) for offset in self.sent)",
        "return stored.offset in self.sent",
        "tests/sim/test_commit_conflicts.py",
    ),
    Mutant(
        "an interrupted commit is identified by its version alone",
        _PARTITION_OFFSETS,
        "return any(Commit(offset, self.version).has_stored(stored) for offset in self.sent)",
        "return stored.version == self.version + 1",
        "tests/sim/test_interrupted_commits.py",
    ),
    Mutant(
        "a commit with an unknown outcome is identified by its offset alone",
        _OFFSET_ZNODES,
        "partition in outcome.unknown and wanted[partition].has_stored(found):",
        "partition in outcome.unknown and found.offset == wanted[partition].offset:",
        "tests/sim/test_commit_conflicts.py",
    ),
    Mutant(
        "a commit with an unknown outcome is identified by its version alone",
        _OFFSET_ZNODES,
        "partition in outcome.unknown and wanted[partition].has_stored(found):",
        "partition in outcome.unknown and found.version == wanted[partition].version + 1:",
        "tests/sim/test_commit_conflicts.py",
    ),
    Mutant(
        "a commit does not note that a broker stored an earlier one late",
        "coordination/offsets/broker_commits.py",
        "self._tracker.read(partition, stored)",
        "self._tracker.judge(partition, stored)",
        "tests/unit/coordination/offsets/test_late_broker_writes.py",
    ),
    Mutant(
        "a commit is cancelled together with its caller",
        "clients/connected/connected_consumer.py",
        'return shielded(self.member.commit_on_session(metadata), f"group {self._settings.group.group}: a commit")',
        'return spawn(self.member.commit_on_session(metadata), "commit")',
        "tests/unit/clients/connected/test_cancelled_commit.py",
    ),
    Mutant(
        "two commits of a member run at the same time",
        _OWNED_OFFSETS,
        "        async with self.writing:\n            return await self.store_finished",
        "        if True:\n            return await self.store_finished",
        "tests/sim/test_commit_conflicts.py",
    ),
    Mutant(
        "a release does not create an offset again that was deleted",
        _OWNER_ZNODES,
        "if isinstance(operation, Delete) or failure is not Failure.NO_NODE:",
        "if True:",
        "tests/sim/test_commit_conflicts.py",
    ),
    Mutant(
        "a claim in a recreated topic starts by the reset policy, not at the earliest offset",
        _START_OFFSETS,
        'return await self._look_up(partitions, "earliest")',
        "return await self._look_up(partitions, self._reset)",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "a release takes a broker's late write for the member for another writer's",
        _OFFSET_TRACKER,
        "(finding := state.judge(found)) is Finding.ADOPTED:",
        "(finding := state.judge(found)) is Finding.ADOPTED or found.offset == state.requested:",
        "tests/unit/coordination/offsets/test_late_broker_writes.py",
    ),
    Mutant(
        "a broker's late write counts as an operator's offset in the new log",
        _NEW_LOGS,
        "if is_set and not self._rules.through_brokers:",
        "if is_set:",
        "tests/sim/test_broker_offsets.py",
    ),
    Mutant(
        "a commit waits for a broker beyond the end of the lease",
        _BROKER_COMMITS,
        "asyncio.timeout_at(until_s)",
        "asyncio.timeout_at(None)",
        "tests/unit/coordination/session/test_gated_writes.py",
    ),
    # Offsets that operators change
    Mutant(
        "a claim overwrites an offset that was stored after its read",
        _OFFSET_ZNODES,
        "(self.write(partition, found.offset, found.version),)",
        "(self.write(partition, found.offset, -1),)",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "a release does not wait for a commit in flight",
        _OWNED_PARTITIONS,
        "        async with self._offsets.owned.writing:\n            if self._tracker",
        "        if True:\n            if self._tracker",
        "tests/sim/test_broker_offsets.py",
    ),
    Mutant(
        "a deleted offsets folder is not created again",
        _OFFSET_ZNODES,
        "            await self._session.ensure(folders)\n        return orphaned",
        "            pass\n        return orphaned",
        "tests/sim/test_damaged_offsets.py",
    ),
    Mutant(
        "a creation that is refused because its folder is missing is repeated for ever",
        _OFFSET_ZNODES,
        "if failure is Failure.NO_NODE and not isinstance(refused, Create):",
        "if failure is Failure.NO_NODE:",
        "tests/sim/test_damaged_offsets.py",
    ),
    Mutant(
        "offsets of lost partitions are still committed",
        _OWNED_PARTITIONS,
        "        self._tracker.end(partitions)\n        self._handler.lost(partitions)\n",
        "        self._handler.lost(partitions)\n",
    ),
)
