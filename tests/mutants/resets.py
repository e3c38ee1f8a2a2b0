"""Mutants of resets, for positions that a log does not have, and of the release of unopened claims."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OFFSET_TRACKER = "group/member/offset_tracker.py"
_PARTITION_OFFSETS = "group/member/partition_offsets.py"
_OWNED_OFFSETS = "coordination/offsets/owned_offsets.py"
_OWNED_PARTITIONS = "coordination/member/owned_partitions.py"
_OWNER_ZNODES = "coordination/member/owner_znodes.py"
_POSITION_RESET = "clients/delivery/position_reset.py"
_RECORD_DELIVERY_TESTS = "tests/unit/clients/delivery/test_record_delivery.py"
_POSITION_RESET_TESTS = "tests/unit/clients/delivery/test_position_reset.py"

MUTANTS = (
    Mutant(
        "a reset to the stored offset leaves unreadable data in its place",
        _OFFSET_TRACKER,
        "is_stored = offset == offsets.committed and not offsets.unreadable",
        "is_stored = offset == offsets.committed",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "a broker's late write over a stored reset counts as the member's own commit",
        _OWNED_OFFSETS,
        "                self._tracker.requested({partition: None})\n",
        "",
        "tests/sim/test_broker_offsets.py",
    ),
    Mutant(
        "a release has brokers store an offset that a reset has replaced",
        _OWNED_PARTITIONS,
        "partitions - self._tracker.resetting()",
        "partitions",
        "tests/sim/test_broker_offsets.py",
    ),
    Mutant(
        "a chosen reset is not stored",
        _OWNED_OFFSETS,
        "                self._settle({partition: commit}, await self._store.commit_reset({partition: commit}))\n",
        "                self._tracker.stored(partition, commit.offset, commit.version)\n",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "a reset is stored although its topic was created again",
        "coordination/offsets/offset_znodes.py",
        "lambda partition, write: write if may_store(partition) else None)",
        "lambda partition, write: write)",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "the store of a reset does not end when the topic is created again",
        _OFFSET_TRACKER,
        "offsets.reset is reset and not offsets.outdated",
        "offsets.reset is reset",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "a release does not store the position that a reset chose",
        _OFFSET_TRACKER,
        "        if chosen is not None:\n",
        "        if False:\n",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "a reset skips unfinished records that the log still has",
        "group/member/pending_reset.py",
        "return min(owed, self.position) if owed < min(self.lost, self.end) else self.position",
        "return self.position",
        "tests/unit/group/member/test_pending_reset.py",
    ),
    Mutant(
        "a reset by the policy latest continues at the start of a log that retention has cut",
        "group/member/pending_reset.py",
        "if owed < min(self.lost, self.end) else",
        "if owed < self.end else",
        "tests/unit/group/member/test_pending_reset.py",
    ),
    Mutant(
        "a commit stores an offset beyond the end of a truncated log",
        _PARTITION_OFFSETS,
        "beyond_log = self.reset is not None and finished > self.reset.end",
        "beyond_log = False",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a reset skips records that the application has not committed itself yet",
        _PARTITION_OFFSETS,
        "self.finished if autocommit else self.committed)",
        "self.finished)",
        "tests/unit/group/member/test_pending_reset.py",
    ),
    Mutant(
        "a reset does not wait for older records that are buffered or in flight",
        _POSITION_RESET,
        "        await self._records.wait_until_consumed(partition, is_fetched)\n",
        "",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "records beyond the end of a truncated log are delivered",
        _POSITION_RESET,
        "        dropped = self._records.truncate(partition, reset.end)\n",
        "        dropped = 0\n",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a position that the log has is reset",
        _POSITION_RESET,
        "if found.start <= position <= found.end:",
        "if False:",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a reset replaces an offset that an operator has set during the look-up",
        _POSITION_RESET,
        "        if not is_fetched():\n            return None\n        if policy ==",
        "        if policy ==",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a reset is stored before the rest of its partition's batch is delivered",
        "clients/delivery/owned_records.py",
        "buffered = self.batch.has_records_of(partition) or self._fetcher.is_buffering(partition)",
        "buffered = self._fetcher.is_buffering(partition)",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "a waiting reset is not woken when records in flight are finished",
        "clients/delivery/in_flight.py",
        "        self.waiting += 1\n",
        "        self.waiting += 0\n",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "records in flight beyond the end of a truncated log count as finished",
        "clients/delivery/in_flight.py",
        "            each.truncate(partition, end)\n",
        "            pass\n",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "values in flight count as finished beyond the end of a truncated log",
        "clients/delivery/values_in_flight.py",
        "            elif span is not None and span.end > end:\n"
        "                delivered.spans[partition] = span._replace(end=end)\n",
        "",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a reset is kept although the records before it are fetched again",
        _OFFSET_TRACKER,
        "                offsets.finished = reset.end\n            offsets.reset = None\n",
        "                offsets.finished = reset.end\n",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a partition whose buffered records were all cut off stays in the ready queue",
        "clients/fetch/fetch_buffer.py",
        "        if not state.buffered:\n            self.ready.remove(state)\n",
        "        if not state.buffered:\n            pass\n",
        "tests/unit/clients/fetch/test_fetcher.py",
    ),
    Mutant(
        "a broker's refusal to list offsets counts as the error of the reset policy none",
        "clients/net/offset_lookup.py",
        "if error == OFFSET_OUT_OF_RANGE:",
        "if False:",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "the release of an unopened claim does not check the version of the offset",
        _OFFSET_TRACKER,
        "return Release(None, None if found is None else found.version)\n",
        "return Release(None, None)\n",
        "tests/sim/test_unopened_claims.py",
    ),
    Mutant(
        "the release of an unopened claim does not check whose owner znode it deletes",
        _OWNER_ZNODES,
        "_UnopenedClaims(stored, frozenset(unopened) - mine)",
        "_UnopenedClaims(stored, frozenset())",
        "tests/sim/test_unopened_claims.py",
    ),
)
