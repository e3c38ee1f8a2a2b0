"""Offsets: where a claim starts, what is committed, and whose word counts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_CLAIMING = "coordination/claiming.py"
_OFFSETS = "coordination/offset_store.py"
_COMMITS = "coordination/offsets.py"
_SUBSCRIPTION = "group/subscription.py"

MUTANTS = (
    # Offsets
    Mutant(
        "a claim that does not write its offset back",
        _OFFSETS,
        "            outcome = await self._writer.write(items, lambda *_: None, renew=renew)\n",
        "            return {p: found.version for p, found in stored.items()}, offsets\n"
        "            outcome = await self._writer.write(items, lambda *_: None, renew=renew)\n",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "a commit at any version",
        _OFFSETS,
        "return Put(self._layout.offset(partition), encode_offset(offset), version)",
        "return Put(self._layout.offset(partition), encode_offset(offset), -1)",
    ),
    Mutant(
        "a commit of an unknown outcome that counts as somebody else's",
        _OFFSETS,
        "elif partition in outcome.unknown and (found.version, found.offset) == (version + 1, offset):",
        "elif False:",
        "tests/sim/test_interrupted_commits.py",
    ),
    Mutant(
        "a reset to what was about to be committed that is taken for that commit",
        _OFFSETS,
        "elif partition in outcome.unknown and (found.version, found.offset)",
        "elif (found.version, found.offset)",
        "tests/sim/test_found_once.py",
    ),
    Mutant(
        "new partitions that follow the reset policy",
        _OFFSETS,
        'return "earliest" if known else self._reset',
        "return self._reset",
    ),
    Mutant(
        "only one's own offsets are created",
        _OFFSETS,
        "        numbers = tuple(sorted({*numbers, *(partition.partition for partition in mine)}))",
        "        numbers = tuple(sorted({partition.partition for partition in mine}))",
    ),
    Mutant(
        "a topic created again that is not noticed at a claim",
        _OFFSETS,
        "node.mzxid < created",
        "False",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "a start in a new log of what is in it already",
        _SUBSCRIPTION,
        "if p.topic == topic and state.created < created}",
        "if p.topic == topic}",
        "tests/sim/test_offsets_by_hand.py",
    ),
    Mutant(
        "what is being handed over goes on in a log that is gone",
        _COMMITS,
        "sorted(self._subscription.mark_recreated(topic, created))",
        "sorted(self._subscription.mark_recreated(topic, created) & self._held())",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "an owner that tries but once to start over",
        _COMMITS,
        "        while outdated := sorted(",
        "        if outdated := sorted(",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "a topic that is only deleted and that counts as created again",
        "coordination/holding.py",
        "if created != before and any(",
        "if any(",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "a write that does not wait to hear of a new topic",
        "coordination/fenced.py",
        "            await self._catch_up()\n",
        "",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "a write that may have to wait after it was asked whether it still holds",
        "coordination/fenced.py",
        "if not self._renew(pending, batch, renew) or not self._is_open:",
        "if not self._renew(pending, batch, renew) or await self._session.trusted():",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "a claim that forgets, while brokers are silent, that its topic was created again",
        _OFFSETS,
        "            self._outdated |= set(partitions)\n",
        "",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "a release that is sent as it was made ready",
        _CLAIMING,
        ", renew=self._renewed",
        "",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "a commit that is sent as it was made ready",
        _OFFSETS,
        "                renew=lambda partition, written: None if is_outdated(partition) else written,\n",
        "",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "a claim that takes over what is of a log that is gone",
        _OFFSETS,
        "self._writer.write(items, lambda *_: None, renew=renew)",
        "self._writer.write(items, lambda *_: None)",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "offsets in a log that is gone that are committed",
        _SUBSCRIPTION,
        "return not self.outdated and (self.unreadable",
        "return (self.unreadable",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "an offset in a log that is gone that is restored by who leaves",
        _CLAIMING,
        "        if state.outdated:\n",
        "        if False:\n",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "an offset in a log that is gone in the place of garbage",
        _CLAIMING,
        "if state.unreadable and not state.outdated:",
        "if state.unreadable:",
        "tests/sim/test_topics_made_anew.py",
    ),
    Mutant(
        "offsets of others that are made anew by who claims",
        _OFFSETS,
        "unknown = set() if stored else await self._claimed_after(topic, numbers, changed)",
        "unknown = set(numbers)",
        "tests/sim/test_offsets_by_hand.py",
    ),
    Mutant(
        "a folder of offsets whose last change is read before what is in it",
        _OFFSETS,
        "names, node = await asyncio.gather(self._session.children(folder), self._session.exists(folder))",
        "node, names = await asyncio.gather(self._session.exists(folder), self._session.children(folder))",
        "tests/sim/test_offsets_by_hand.py",
    ),
    Mutant(
        "new partitions that follow the policy of a first look",
        _OFFSETS,
        "            if stored:\n                # Another",
        "            if False:\n                # Another",
        "tests/sim/test_found_once.py",
    ),
    Mutant(
        "garbage for an offset that is left to the next owner",
        _CLAIMING,
        "            if found and state and found.offset is None:\n",
        "            if False:\n",
        "tests/sim/test_offsets_by_hand.py",
    ),
    Mutant(
        "a foreign offset that is not adopted",
        "coordination/offsets.py",
        "        self._subscription.seek(partition, offset)\n",
        "",
    ),
    Mutant(
        "a commit of one's own that nobody waited for and that counts as somebody else's",
        _CLAIMING,
        "if found and state and found.offset is not None and state.made(found.offset, found.version):",
        "if False:",
        "tests/sim/test_interrupted_commits.py",
    ),
    # Whose commit it was
    Mutant(
        "a commit that stays on its way when it was refused",
        _COMMITS,
        "        self._subscription.mark_answered(sent)\n",
        "",
        "tests/sim/test_commits_after_interrupted_ones.py",
    ),
    Mutant(
        "an interrupted commit that is known by its offset alone",
        _SUBSCRIPTION,
        "return version == self.version + 1 and offset in self.sent",
        "return offset in self.sent",
        "tests/sim/test_whose_commit.py",
    ),
    Mutant(
        "an interrupted commit that is known by its version alone",
        _SUBSCRIPTION,
        "return version == self.version + 1 and offset in self.sent",
        "return version == self.version + 1",
        "tests/sim/test_commits_after_interrupted_ones.py",
    ),
    Mutant(
        "a commit of an unknown outcome that is known by its offset alone",
        _OFFSETS,
        "(found.version, found.offset) == (version + 1, offset)",
        "found.offset == offset",
        "tests/sim/test_whose_commit.py",
    ),
    Mutant(
        "a commit of an unknown outcome that is known by its version alone",
        _OFFSETS,
        "(found.version, found.offset) == (version + 1, offset)",
        "found.version == version + 1",
        "tests/sim/test_whose_commit.py",
    ),
    Mutant(
        "a commit that is cancelled with its caller",
        "clients/consuming.py",
        'return asyncio.shield(spawn(self.member.commit(metadata), "commit"))',
        'return spawn(self.member.commit(metadata), "commit")',
        "tests/unit/test_commit_goes_on.py",
    ),
    Mutant(
        "two commits at once",
        _COMMITS,
        "        async with self.writing:\n            return await self.store_finished",
        "        if True:\n            return await self.store_finished",
        "tests/sim/test_whose_commit.py",
    ),
    Mutant(
        "an offset that was deleted and that a release does not store",
        _CLAIMING,
        "if isinstance(operation, Delete) or failure is not Failure.NO_NODE or state is None:",
        "if True:",
        "tests/sim/test_whose_commit.py",
    ),
    Mutant(
        "a topic created again whose offsets follow the reset policy",
        _OFFSETS,
        'return await self._starting(topic, partitions, "earliest")',
        "return await self._starting(topic, partitions, self._reset)",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "a broker that is waited for beyond the lease",
        "coordination/broker_offset_store.py",
        "asyncio.timeout_at(until_s)",
        "asyncio.timeout_at(None)",
        "tests/unit/test_gate_paths.py",
    ),
    # What people do to offsets
    Mutant(
        "a claim that writes over what came since it read",
        _OFFSETS,
        "Put(self._layout.offset(partition), encode_offset(found.offset), found.version),",
        "Put(self._layout.offset(partition), encode_offset(found.offset), ANY_VERSION),",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "a release that does not wait for a commit",
        "coordination/holding.py",
        "        async with self._offsets.writing:\n            if self._config.autocommit",
        "        if True:\n            if self._config.autocommit",
        "tests/sim/test_releasing.py",
    ),
    Mutant(
        "a folder of offsets that was deleted and that nobody makes",
        _OFFSETS,
        "            await self._session.ensure(folders)\n        return folderless",
        "            pass\n        return folderless",
        "tests/sim/test_offsets_by_hand.py",
    ),
    Mutant(
        "a creation that fails for its folder and is asked for again",
        _OFFSETS,
        "if failure is Failure.NO_NODE and not isinstance(refused, Create):",
        "if failure is Failure.NO_NODE:",
        "tests/sim/test_offsets_by_hand.py",
    ),
    Mutant(
        "partitions that were lost and whose offsets are committed on",
        "coordination/holding.py",
        "        self._subscription.unassign(partitions)\n        self._handler.lost(partitions)\n",
        "        self._handler.lost(partitions)\n",
    ),
)
