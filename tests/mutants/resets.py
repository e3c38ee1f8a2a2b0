"""Resets: a log that does not have the position of an owner; and claims that were never opened."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OWNER_ZNODES = "coordination/member/owner_znodes.py"
_POSITION_RESET = "clients/delivery/position_reset.py"
_RECORD_DELIVERY = "clients/delivery/record_delivery.py"
_RECORD_DELIVERY_TESTS = "tests/unit/clients/delivery/test_record_delivery.py"
_POSITION_RESET_TESTS = "tests/unit/clients/delivery/test_position_reset.py"

MUTANTS = (
    Mutant(
        "a reset that leaves garbage in the place of the same offset",
        "coordination/offsets/owned_offsets.py",
        "if offset == state.committed and not state.unreadable:",
        "if offset == state.committed:",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "a broker's late write over a reset that is taken for the member's own",
        "coordination/offsets/broker_store.py",
        "            self._sent.pop(partition, None)\n        return await super().put",
        "            pass\n        return await super().put",
        "tests/sim/test_broker_offsets.py",
    ),
    Mutant(
        "a release that requests brokers to store what a reset has replaced",
        "coordination/member/owned_partitions.py",
        "partitions - self._subscription.resetting()",
        "partitions",
        "tests/sim/test_broker_offsets.py",
    ),
    Mutant(
        "a reset that is not stored",
        "coordination/offsets/owned_offsets.py",
        "                await self._store_once({partition: offset}, self._store.put)\n",
        "                self._subscription.mark_committed(partition, offset, state.version)\n",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "a reset in a log that is gone",
        "coordination/offsets/owned_offsets.py",
        "await self._store_once({partition: offset}, self._store.put)",
        "await self._store_once({partition: offset}, lambda wanted, _: self._store.put(wanted, lambda _: False))",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "a hand-over that forgets what was chosen",
        _OWNER_ZNODES,
        "        if chosen is not None:\n",
        "        if False:\n",
        "tests/sim/test_resets.py",
    ),
    Mutant(
        "a reset that skips what is owed",
        "group/member/pending_reset.py",
        "return min(owed, self.position) if owed < min(self.lost, self.end) else self.position",
        "return self.position",
        "tests/unit/group/member/test_pending_reset.py",
    ),
    Mutant(
        "a reset that keeps to what retention has deleted",
        "group/member/pending_reset.py",
        "if owed < min(self.lost, self.end) else",
        "if owed < self.end else",
        "tests/unit/group/member/test_pending_reset.py",
    ),
    Mutant(
        "a commit beyond the end of a log that was cut",
        "group/member/subscription.py",
        "self.reset is not None and self.finished > self.reset.end",
        "False",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "an application that commits by itself, whose records a reset skips",
        "group/member/subscription.py",
        "self.finished if autocommit else self.committed)",
        "self.finished)",
        "tests/unit/group/member/test_pending_reset.py",
    ),
    Mutant(
        "a reset while something older is in flight",
        _POSITION_RESET,
        "        await self._delivery.wait_until_consumed(partition, is_fetched)\n",
        "",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "records beyond the end of a log that are delivered",
        _POSITION_RESET,
        "        dropped = self._delivery.truncate(partition, reset.end)\n",
        "        dropped = 0\n",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a reset of a position that the log has",
        _POSITION_RESET,
        "if start <= position <= end:",
        "if False:",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a reset of a partition that an operator has moved during the look-up",
        _POSITION_RESET,
        "        if not is_fetched():\n            return None\n        if start",
        "        if start",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a reset that is stored while older records of its batch are not delivered",
        _RECORD_DELIVERY,
        "return in_batch or self._fetcher.is_buffering(partition)",
        "return self._fetcher.is_buffering(partition)",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "a reset that other partitions' records hold up",
        _RECORD_DELIVERY,
        "        self._drains += 1\n        try:\n            while is_fetched()",
        "        self._drains += 0\n        try:\n            while is_fetched()",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "a record in flight that is cut off and counts",
        _RECORD_DELIVERY,
        "            each.truncate(partition, end)\n",
        "            pass\n",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "values in flight that count beyond the cut",
        "clients/delivery/in_flight.py",
        "            elif span is not None and span.end > end:\n"
        "                delivered.spans[partition] = span._replace(end=end)\n",
        "",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "values that come again under a reset that waits for them",
        _RECORD_DELIVERY,
        "state.finished, state.reset = min(state.finished, reset.end), None",
        "state.finished = min(state.finished, reset.end)",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a partition of which everything was cut off and that has its turn",
        "clients/fetch/fetch_buffer.py",
        "            self.ready.remove(state)\n",
        "            pass\n",
        "tests/unit/clients/fetch/test_fetcher.py",
    ),
    Mutant(
        "a log's range that brokers refuse to tell, taken for the policy's word",
        "clients/net/offset_lookup.py",
        "if listed.error == OFFSET_OUT_OF_RANGE:",
        "if False:",
        _POSITION_RESET_TESTS,
    ),
    Mutant(
        "a claim of another member that is given back unopened",
        _OWNER_ZNODES,
        "return (deletion,) if found is None else (Check(self._layout.offset(partition), found.version), deletion)",
        "return (deletion,)",
        "tests/sim/test_unopened_claims.py",
    ),
    Mutant(
        "an unopened claim that is given back without a look at whose it is",
        _OWNER_ZNODES,
        "        return stored, set(unopened) - mine\n",
        "        return stored, set()\n",
        "tests/sim/test_unopened_claims.py",
    ),
)
