"""Mutants of the offset store ``broker-v1``: offsets in Kafka, for groups that ZooKeeper coordinates."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_STORE = "coordination/kafka_offsets/kafka_store.py"
_CLAIMS = "coordination/kafka_offsets/kafka_claims.py"
_STARTS = "coordination/kafka_offsets/group_starts.py"
_OWNED_PARTITIONS = "coordination/member/owned_partitions.py"
_OWNER_ZNODES = "coordination/member/owner_znodes.py"
_SIM = "tests/sim/test_kafka_offsets.py"

MUTANTS = (
    # Requests
    Mutant(
        "offsets are sent to Kafka through a shut gate",
        _STORE,
        "            await self._writer.wait_ready()\n            waiting =",
        "            waiting =",
        _SIM,
    ),
    Mutant(
        "the start of a released claim is stored in Kafka",
        _CLAIMS,
        "return is_known and self._tracker.claimed(partition) is claimed[partition]",
        "return is_known",
        _SIM,
    ),
    Mutant(
        "a release leaves its unopened claims to be opened",
        _OWNER_ZNODES,
        "        self._tracker.end_unopened(partitions)\n        await self._writer.prove()\n",
        "        await self._writer.prove()\n",
        _SIM,
    ),
    Mutant(
        "a commit to a coordinator that moves is not repeated",
        _STORE,
        "if asyncio.get_running_loop().time() + pause_s >= min(until_s, self._give_up_s):",
        "if True:",
        _SIM,
    ),
    Mutant(
        "a leaving member waits for the coordinator as long as any other",
        _STORE,
        "self._give_up_s = asyncio.get_running_loop().time() + within_s",
        "self._give_up_s = math.inf",
        _SIM,
    ),
    Mutant(
        "a commit that the coordinator has not confirmed is not looked up",
        _STORE,
        "            await self._resolve(offsets, outcome)",
        "            pass",
        _SIM,
    ),
    Mutant(
        "an offset of another claim confirms a commit",
        _STORE,
        "(note.created, note.claim) == (wanted.created, wanted.claim)",
        "note.created == wanted.created",
        _SIM,
    ),
    # Releases
    Mutant(
        "a release does not store offsets in Kafka",
        _OWNED_PARTITIONS,
        "                await self._offsets.owned.store_left(partitions)\n",
        "",
        _SIM,
    ),
    Mutant(
        "a release deletes an owner znode without a look at its owner",
        _OWNER_ZNODES,
        "        waiting = (await self._read_owners(partitions)).mine\n        gone, released",
        "        waiting = frozenset(partitions)\n        gone, released",
        _SIM,
    ),
    # Logs
    Mutant(
        "an offset of a deleted topic is a position in the new log",
        _CLAIMS,
        "if log_of in (None, created):",
        "if True:",
        _SIM,
    ),
    Mutant(
        "an offset without a note is taken for one of a deleted topic",
        _CLAIMS,
        "            if log_of in (None, created):\n                found",
        "            log_of = log_of or 0\n            if log_of == created:\n                found",
        _SIM,
    ),
    Mutant(
        "the start of a new log is noted for the old one",
        _STORE,
        "_new(earliest[partition], state)._replace(created=created)",
        "_new(earliest[partition], state)",
        _SIM,
    ),
    # The first offsets
    Mutant(
        "a partition without an offset in Kafka starts at its earliest offset although the group began later",
        _STARTS,
        "max(offset, first.offsets.get(each.partition, 0))",
        "offset",
        _SIM,
    ),
    Mutant(
        "a partition starts before the first record that its log still has",
        _STARTS,
        "max(offset, first.offsets.get(each.partition, 0))",
        "first.offsets.get(each.partition, 0)",
        _SIM,
    ),
    Mutant(
        "a group begins a topic that was created again at its end",
        _STARTS,
        'policy = "earliest" if is_new_log or in_kafka or in_znodes else self._reset',
        'policy = "earliest" if in_kafka or in_znodes else self._reset',
        _SIM,
    ),
    Mutant(
        "first offsets of a deleted topic are those of the present one",
        _STARTS,
        "if first is not None and first.created == created:",
        "if first is not None:",
        _SIM,
    ),
    Mutant(
        "offsets of idle partitions expire in Kafka",
        "coordination/kafka_offsets/offset_renewal.py",
        "                    await self._owned.attempt(again)",
        "                    pass",
        _SIM,
    ),
)
