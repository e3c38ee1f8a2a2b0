"""Mutants of commits of chosen offsets, of commits with callbacks, and of closes with a time limit."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OFFSET_TRACKER = "group/member/offset_tracker.py"
_PARTITION_OFFSETS = "group/member/partition_offsets.py"
_CHOSEN_COMMITS = "coordination/offsets/chosen_commits.py"
_CONSUMER_COMMITS = "clients/methods/consumer_commits.py"
_CLOSE_LIMIT = "coordination/session/close_limit.py"
_CLOSE_LIMIT_TESTS = "tests/unit/coordination/session/test_close_limit.py"
_SESSION_SUPERVISOR = "coordination/member/session_supervisor.py"
_AUTO_COMMIT = "clients/connected/auto_commit.py"
_CHOSEN_OFFSETS_TESTS = "tests/unit/group/member/test_chosen_offsets.py"
_CHOSEN_COMMITS_TESTS = "tests/sim/test_chosen_commits.py"
_CONSUMER_COMMITS_TESTS = "tests/unit/clients/methods/test_consumer_commits.py"
_SESSION_SUPERVISOR_TESTS = "tests/unit/coordination/member/test_session_supervisor.py"
_AUTO_COMMIT_TESTS = "tests/unit/clients/connected/test_auto_commit.py"

MUTANTS = (
    # What the tracker allows
    Mutant(
        "an application commits an offset of the old log",
        _PARTITION_OFFSETS,
        "        if self.outdated:\n            return Refusal.OUTDATED\n",
        "",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "an application commits an offset before its claim",
        _PARTITION_OFFSETS,
        "        if offset < self.floor:\n            return Refusal.BEFORE_FLOOR\n",
        "",
        "tests/property/test_offset_tracker_laws.py",
    ),
    Mutant(
        "an application cannot commit the offset at which its claim started",
        _PARTITION_OFFSETS,
        "if offset < self.floor:",
        "if offset <= self.floor:",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "an application commits an offset beyond its position",
        _PARTITION_OFFSETS,
        "        if offset > self.position:\n            return Refusal.BEYOND_POSITION\n",
        "",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "an offset of a claim that was lost is a mistake of the application",
        _OFFSET_TRACKER,
        "            self._remember_allowed(partition)\n            self._claims.pop",
        "            self._claims.pop",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "an offset before an operator's reset is a mistake of the application",
        _OFFSET_TRACKER,
        "        if origin is not StartOrigin.SEEK:\n            self._remember_allowed(partition)\n",
        "",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "an offset of the old log is a mistake of the application",
        _OFFSET_TRACKER,
        "        self._remember_allowed(partition)\n        state.created = created\n",
        "        state.created = created\n",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "the tracker remembers the last of several claims only",
        _OFFSET_TRACKER,
        "= allowed.union(self._earlier.get(partition))",
        "= allowed",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "the callback of a commit that fails early overtakes the one before it",
        _CONSUMER_COMMITS,
        "                await before.wait()\n",
        "                pass\n",
        _CONSUMER_COMMITS_TESTS,
    ),
    Mutant(
        "simulated groups accept a chosen offset that was never delivered",
        _PARTITION_OFFSETS,
        "if offset > self.position:",
        "if offset > self.position + 10**9:",
    ),
    Mutant(
        "an application commits an offset beyond the end of a truncated log",
        _PARTITION_OFFSETS,
        "if self.reset is not None and offset > self.reset.end:\n            return Refusal.BEYOND_LOG",
        "if False:\n            return Refusal.BEYOND_LOG",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "a commit stores the offsets that are not refused",
        _OFFSET_TRACKER,
        "return ChosenCommits({} if refusals else commits, refusals)",
        "return ChosenCommits(commits, refusals)",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "an operator's offset leaves the floor of the claim where it was",
        _OFFSET_TRACKER,
        "        else:\n            offsets.floor = offset\n",
        "        else:\n            offsets.floor = min(offsets.floor, offset)\n",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "a seek back does not lower the floor of the claim",
        _OFFSET_TRACKER,
        "offsets.floor, offsets.seek_mark = min(offsets.floor, offset), object()",
        "offsets.seek_mark = object()",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "an application cannot commit what it had processed before a reset",
        _OFFSET_TRACKER,
        "        offsets.floor = min(offsets.committed, offsets.position)\n",
        "",
        _CHOSEN_OFFSETS_TESTS,
    ),
    Mutant(
        "a new log keeps the floor of the old one",
        _OFFSET_TRACKER,
        "state.start = state.position = state.finished = state.floor = offset",
        "state.start = state.position = state.finished = offset",
        "tests/unit/group/member/test_chosen_offsets.py",
    ),
    Mutant(
        "a close without automatic commits commits",
        _OFFSET_TRACKER,
        "        self.rules = replace(self.rules, autocommit=False)\n",
        "        pass\n",
        _CHOSEN_OFFSETS_TESTS,
    ),
    # How they are stored
    Mutant(
        "a chosen commit does not wait for other commits",
        _CHOSEN_COMMITS,
        "        async with self._owned.writing:\n",
        "        if True:\n",
        _CHOSEN_COMMITS_TESTS,
    ),
    Mutant(
        "a chosen commit that another writer has superseded is not reported",
        _CHOSEN_COMMITS,
        "                self._check(attempt, commits, stored)\n",
        "",
        _CHOSEN_COMMITS_TESTS,
    ),
    Mutant(
        "a chosen commit after an interrupted one is not sent again",
        _CHOSEN_COMMITS,
        "waiting = {partition: offsets[partition] for partition in attempt.repeat}",
        "waiting = {}",
        _CHOSEN_COMMITS_TESTS,
    ),
    Mutant(
        "a member stops because an application has committed a partition that it does not own",
        "coordination/member/group_member.py",
        "        except CommitFailedError:\n            # It concerns these offsets only.\n            raise\n",
        "",
        _CHOSEN_COMMITS_TESTS,
    ),
    # The methods of the consumer
    Mutant(
        "a chosen commit counts the record in flight",
        _CONSUMER_COMMITS,
        "        chosen = {partition: value.offset for partition, value in offsets.items()}\n",
        "        connected.reader.records.in_flight.count()\n"
        "        chosen = {partition: value.offset for partition, value in offsets.items()}\n",
        _CONSUMER_COMMITS_TESTS,
    ),
    Mutant(
        "the default callback replaces that of the call",
        _CONSUMER_COMMITS,
        "notify = callback or self._default_callback",
        "notify = self._default_callback or callback",
        _CONSUMER_COMMITS_TESTS,
    ),
    Mutant(
        "an error that a callback has got is logged as never retrieved",
        _CONSUMER_COMMITS,
        "        notified.add_done_callback(lambda done: done.cancelled() or done.exception())\n",
        "",
        _CONSUMER_COMMITS_TESTS,
    ),
    # Closes and retries
    Mutant(
        "a close with a time limit waits for the close of a session",
        _SESSION_SUPERVISOR,
        "await session.close_within(limit)",
        "await session.close()",
        _SESSION_SUPERVISOR_TESTS,
    ),
    Mutant(
        "a close with a time limit waits for a join to end",
        _SESSION_SUPERVISOR,
        "await cancelled_by({self._task}, limit)",
        "await cancelled_by({self._task}, CloseLimit())",
        _SESSION_SUPERVISOR_TESTS,
    ),
    Mutant(
        "a close with a time limit waits for the closes of lost sessions",
        _SESSION_SUPERVISOR,
        "                async with limit.timeout():\n                    await asyncio.wait(self._closing)",
        "                async with CloseLimit().timeout():\n                    await asyncio.wait(self._closing)",
        _SESSION_SUPERVISOR_TESTS,
    ),
    Mutant(
        "a later call of close does not shorten the close",
        _CLOSE_LIMIT,
        "                timeout.reschedule(_when(end(self._by_s)))\n",
        "                pass\n",
        _CLOSE_LIMIT_TESTS,
    ),
    Mutant(
        "a later call of close prolongs the close",
        _CLOSE_LIMIT,
        "self._by_s = min(self._by_s, asyncio.get_running_loop().time() + timeout_s)",
        "self._by_s = asyncio.get_running_loop().time() + timeout_s",
        _CLOSE_LIMIT_TESTS,
    ),
    Mutant(
        "the application may use up the whole time of a close",
        _CLOSE_LIMIT,
        "if reserves else 0.0",
        "if reserves is None else 0.0",
        _CLOSE_LIMIT_TESTS,
    ),
    Mutant(
        "tasks of a session whose close has no time are left",
        "coordination/session/session_tasks.py",
        "    def cancel(self) -> Awaitable[object]:",
        "    async def cancel(self) -> object:",
        "tests/unit/coordination/session/test_cancelled_tasks.py",
    ),
    Mutant(
        "members that lost their sessions together join together",
        _SESSION_SUPERVISOR,
        "lambda: self._runtime.uniform(0.5, 1.5)",
        "lambda: 1.0",
        _SESSION_SUPERVISOR_TESTS,
    ),
    Mutant(
        "each failed join is logged",
        _SESSION_SUPERVISOR,
        "        if cause == self._cause:\n            return\n",
        "",
        _SESSION_SUPERVISOR_TESTS,
    ),
    Mutant(
        "a join that fails again after a success is not logged",
        _SESSION_SUPERVISOR,
        "        self._cause = None\n        return session\n",
        "        return session\n",
        _SESSION_SUPERVISOR_TESTS,
    ),
    Mutant(
        "an automatic commit logs each failure",
        _AUTO_COMMIT,
        "        if cause == self._cause:\n            return\n",
        "",
        _AUTO_COMMIT_TESTS,
    ),
    Mutant(
        "an automatic commit that fails again after a success is not logged",
        _AUTO_COMMIT,
        "                    self._cause = None\n",
        "",
        _AUTO_COMMIT_TESTS,
    ),
)
