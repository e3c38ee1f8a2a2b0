"""Mutants of commits with an unknown outcome, and of offsets that operators change."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OWNER_ZNODES = "coordination/member/owner_znodes.py"
_ZOOKEEPER_STORE = "coordination/offsets/zookeeper_store.py"
_OWNED_OFFSETS = "coordination/offsets/owned_offsets.py"
_START_OFFSETS = "coordination/offsets/start_offsets.py"
_SUBSCRIPTION = "group/member/subscription.py"

MUTANTS = (
    # Commits whose answer was lost
    Mutant(
        "a refused commit still counts as in flight",
        _OWNED_OFFSETS,
        "        self._subscription.mark_answered(sent)\n",
        "",
        "tests/sim/test_interrupted_commits.py",
    ),
    Mutant(
        "an interrupted commit is identified by its offset alone",
        _SUBSCRIPTION,
        "return version == self.version + 1 and offset in self.sent",
        "return offset in self.sent",
        "tests/sim/test_commit_conflicts.py",
    ),
    Mutant(
        "an interrupted commit is identified by its version alone",
        _SUBSCRIPTION,
        "return version == self.version + 1 and offset in self.sent",
        "return version == self.version + 1",
        "tests/sim/test_interrupted_commits.py",
    ),
    Mutant(
        "a commit with an unknown outcome is identified by its offset alone",
        _ZOOKEEPER_STORE,
        "(found.version, found.offset) == (version + 1, offset)",
        "found.offset == offset",
        "tests/sim/test_commit_conflicts.py",
    ),
    Mutant(
        "a commit with an unknown outcome is identified by its version alone",
        _ZOOKEEPER_STORE,
        "(found.version, found.offset) == (version + 1, offset)",
        "found.version == version + 1",
        "tests/sim/test_commit_conflicts.py",
    ),
    Mutant(
        "a commit is cancelled together with its caller",
        "clients/delivery/connected_consumer.py",
        'return asyncio.shield(spawn(self.member.commit_on_session(metadata), "commit"))',
        'return spawn(self.member.commit_on_session(metadata), "commit")',
        "tests/unit/clients/delivery/test_cancelled_commit.py",
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
        _OWNER_ZNODES,
        " or self._store.sent(partition, found.offset)",
        "",
        "tests/unit/coordination/offsets/test_late_broker_writes.py",
    ),
    Mutant(
        "a broker's late write counts as an operator's offset in the new log",
        "coordination/offsets/broker_store.py",
        "    versions_identify_writers = False\n",
        "",
        "tests/sim/test_broker_offsets.py",
    ),
    Mutant(
        "a commit waits for a broker beyond the end of the lease",
        "coordination/offsets/broker_store.py",
        "asyncio.timeout_at(until_s)",
        "asyncio.timeout_at(None)",
        "tests/unit/coordination/session/test_gated_writes.py",
    ),
    # Offsets that operators change
    Mutant(
        "a claim overwrites an offset that was stored after its read",
        _ZOOKEEPER_STORE,
        "Put(self._layout.offset(partition), encode_offset(found.offset), found.version),",
        "Put(self._layout.offset(partition), encode_offset(found.offset), ANY_VERSION),",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "a release does not wait for a commit in flight",
        "coordination/member/owned_partitions.py",
        "        async with self._offsets.writing:\n            if self._config.autocommit",
        "        if True:\n            if self._config.autocommit",
        "tests/sim/test_broker_offsets.py",
    ),
    Mutant(
        "a deleted offsets folder is not created again",
        _ZOOKEEPER_STORE,
        "            await self._session.ensure(folders)\n        return orphaned",
        "            pass\n        return orphaned",
        "tests/sim/test_damaged_offsets.py",
    ),
    Mutant(
        "a creation that is refused because its folder is missing is repeated for ever",
        _ZOOKEEPER_STORE,
        "if failure is Failure.NO_NODE and not isinstance(refused, Create):",
        "if failure is Failure.NO_NODE:",
        "tests/sim/test_damaged_offsets.py",
    ),
    Mutant(
        "offsets of lost partitions are still committed",
        "coordination/member/owned_partitions.py",
        "        self._subscription.unassign(partitions)\n        self._handler.lost(partitions)\n",
        "        self._handler.lost(partitions)\n",
    ),
)
