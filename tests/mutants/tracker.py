"""Mutants of the offset tracker, and of the parts that apply its decisions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OFFSET_TRACKER = "group/member/offset_tracker.py"
_PARTITION_OFFSETS = "group/member/partition_offsets.py"
_TOPIC_INCARNATIONS = "coordination/offsets/topic_incarnations.py"
_BROKER_COMMITS = "coordination/offsets/broker_commits.py"
_OFFSET_TRACKER_TESTS = "tests/unit/group/member/test_offset_tracker.py"

MUTANTS = (
    # Claims
    Mutant(
        "an unopened claim does not become outdated when its topic is created again",
        _OFFSET_TRACKER,
        "for partition, claim in self._claims.items():",
        "for partition, claim in self._open.copy().items():",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "the end of unopened claims drops the offsets of open partitions",
        _OFFSET_TRACKER,
        "unopened = self._claims.keys() - self._open.keys()",
        "unopened = frozenset(self._claims)",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "the end of a few unopened claims drops all of them",
        _OFFSET_TRACKER,
        "self.end(unopened if partitions is None else unopened & frozenset(partitions))",
        "self.end(unopened)",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "a session keeps the incarnations of claims that an earlier session did not open",
        "coordination/member/owned_partitions.py",
        "        self._tracker.end_unopened()\n",
        "",
        "tests/sim/test_late_topic_metadata.py",
    ),
    Mutant(
        "a claim is opened before brokers have confirmed that they serve the group's offsets",
        "coordination/offsets/claim_opening.py",
        "            await self._brokers.check_served(partitions)\n",
        "            pass\n",
        "tests/sim/test_broker_offsets.py",
    ),
    # Commits
    Mutant(
        "a commit of some partitions stores the offsets of all",
        _OFFSET_TRACKER,
        "listed = self._open if partitions is None else self._open.keys() & partitions",
        "listed = self._open",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "a commit does not store what was finished since an interrupted one",
        "coordination/offsets/owned_offsets.py",
        "return Attempt(stored, late - stored, superseded)",
        "return Attempt(stored, frozenset(), superseded)",
        "tests/sim/test_interrupted_commits.py",
    ),
    Mutant(
        "offsets are read before the writes of brokers are visible on the member's session",
        _BROKER_COMMITS,
        "        await self._writer.prove()\n",
        "",
        "tests/unit/coordination/session/test_gated_writes.py",
    ),
    Mutant(
        "the answer to a repeated commit resolves the first one",
        _OFFSET_TRACKER,
        "            if commit.offset not in self._open[partition].sent\n",
        "",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "offsets of earlier commits still count as in flight after a later one was stored",
        _OFFSET_TRACKER,
        "            state.sent.clear()\n",
        "",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "a member adopts its own offset that a broker has written late",
        _PARTITION_OFFSETS,
        " or stored.offset == self.requested:",
        ":",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "a broker's late write counts as the member's own after another offset was adopted",
        _OFFSET_TRACKER,
        "                self._open[partition].requested = None\n",
        "",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "a broker's late write over unreadable data counts as the member's own",
        _OFFSET_TRACKER,
        "state.version, state.unreadable, state.requested = version, True, None",
        "state.version, state.unreadable = version, True",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "brokers overwrite an offset that another writer stored before the commit",
        _BROKER_COMMITS,
        "if partition not in foreign and self._tracker",
        "if self._tracker",
        "tests/sim/test_broker_offsets.py",
    ),
    # Topic incarnations
    Mutant(
        "a recreated topic is not announced to the task that restarts its partitions",
        _TOPIC_INCARNATIONS,
        "        self.recreations.put_nowait((topic, created))\n",
        "",
        "tests/unit/coordination/offsets/test_topic_incarnations.py",
    ),
    Mutant(
        "offsets of the old log may be stored until the restart in the new log begins",
        _TOPIC_INCARNATIONS,
        "        self._tracker.recreated(topic, created)\n",
        "",
        "tests/unit/coordination/offsets/test_topic_incarnations.py",
    ),
    Mutant(
        "an earlier incarnation of a topic replaces the newest known one",
        _OFFSET_TRACKER,
        "max(claim.newest, created)",
        "created",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "a reset of a position in the old log still applies in the new one",
        _OFFSET_TRACKER,
        "state.origin, state.reset, state.seek_mark = StartOrigin.NEW_LOG, None, object()",
        "state.origin = StartOrigin.NEW_LOG",
        _OFFSET_TRACKER_TESTS,
    ),
    # Resets
    Mutant(
        "an offset that another writer sets does not end a chosen reset",
        _OFFSET_TRACKER,
        "offsets.origin, offsets.reset = origin, None",
        "offsets.origin = origin",
        "tests/unit/group/member/test_pending_reset.py",
    ),
    Mutant(
        "a reset is stored although another one has replaced it",
        _OFFSET_TRACKER,
        "offsets.reset is reset and not offsets.outdated",
        "offsets.reset is not None and not offsets.outdated",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "delivery continues after a reset at the policy's position, not at the stored offset",
        _OFFSET_TRACKER,
        "reset.offset_after(offsets.finished), StartOrigin.RESET",
        "reset.position, StartOrigin.RESET",
        _OFFSET_TRACKER_TESTS,
    ),
    # Releases
    Mutant(
        "a release stores finished offsets although the application commits by itself",
        _OFFSET_TRACKER,
        "commits = self.rules.autocommit and not self.rules.through_brokers",
        "commits = not self.rules.through_brokers",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "a release stores finished offsets although brokers store the commits",
        _OFFSET_TRACKER,
        "commits = self.rules.autocommit and not self.rules.through_brokers",
        "commits = self.rules.autocommit",
        _OFFSET_TRACKER_TESTS,
    ),
    Mutant(
        "a release leaves a broker's late write of the old log in the new one",
        _OFFSET_TRACKER,
        "found.version == state.adopted and not self.rules.through_brokers",
        "found.version == state.adopted",
        _OFFSET_TRACKER_TESTS,
    ),
)
