"""
Breakages of the core, each of which something must notice.

A mutant replaces one piece of source, exactly as it stands. ``killer`` names what notices: ``SIM``, some of the first
seeds of the simulator, or a test.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTANTS", "SIM", "Mutant"]

SIM = "sim"


class Mutant(NamedTuple):
    """``old`` stands once in ``file`` (below the package) and is replaced by ``new``."""

    name: str
    file: str
    old: str
    new: str
    killer: str = SIM


_FENCED = "coordination/fenced.py"
_CLAIMING = "coordination/claiming.py"
_OFFSETS = "coordination/offset_store.py"
_HOLDING = "coordination/holding.py"
_HEARTBEAT = "coordination/heartbeat.py"
_GATE = "coordination/gate.py"
_SESSION = "coordination/session.py"
_REQUESTS = "coordination/requests.py"
_LEADING = "coordination/leading.py"
_PLANNING = "group/planning.py"
_LEADER = "group/leader.py"
_ELECTION = "group/election.py"
_CLAIMS = "group/claims.py"
_LEASE = "group/lease.py"
_WATCHDOG = "coordination/watchdog.py"
_LIFE = "coordination/life.py"
#: Tests on real servers, by the beginning of their names.
_ON_SERVERS = "tests/integration/test_group"

MUTANTS = (
    # The lease
    Mutant(
        "a lease as long as the session",
        _LEASE,
        "return last_proof_s + session_timeout_ms / 1000 * (1 - reserve)",
        "return last_proof_s + session_timeout_ms / 1000 * 1.3",
    ),
    Mutant(
        "a lease that counts from the answer",
        _HEARTBEAT,
        "            self._gate.renew(sent_s)\n",
        "            self._gate.renew(boot_time_s())\n",
        "tests/unit/test_lease.py",
    ),
    Mutant(
        "a lease that pings renew",
        _SESSION,
        "                    found[number] = answer\n",
        "                    found[number] = answer\n                    self.gate.renew(machine.boot_time_s())\n",
    ),
    Mutant(
        "a lease that is never over",
        _GATE,
        "        if now_s < self.deadline_s:\n            return",
        "        if True:\n            return",
    ),
    Mutant(
        "a heartbeat that checks nothing of its own",
        _HEARTBEAT,
        "transaction.check(self._proof, -1)",
        'transaction.check("/", -1)',
    ),
    Mutant(
        "a heartbeat that is renewed by a refusal",
        _HEARTBEAT,
        "        if any(isinstance(result, NoNodeError) for result in answer.value):\n"
        '            self._gate.shut("member znode gone")\n'
        "            if not self._stopped:\n"
        '                self._on_dead("the member znode is gone")\n'
        "        elif not any(isinstance(result, Exception) for result in answer.value):\n",
        "        if answer.value:\n",
    ),
    Mutant(
        "a gate that opens again with kazoo's next session",
        _GATE,
        "return not self.suspended and self.shut_reason is None",
        "return not self.suspended",
    ),
    Mutant(
        "a socket that nobody shuts",
        _HEARTBEAT,
        "        if sent_s is not None and now_s - sent_s >= limit_s:",
        "        if sent_s is not None and now_s - sent_s >= 1000 * limit_s:",
        "tests/failures/test_ensembles.py::test_ensemble_member_killed_and_frozen",
    ),
    # Fences
    Mutant(
        "writes that do not prove the member",
        _FENCED,
        "return await self._session.transact([self._proof, *operations])",
        'return await self._session.transact([Check("/"), *operations])',
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "an unknown outcome that is read at once",
        _FENCED,
        "                await self.prove()\n                outcome.unknown.update(batch)",
        "                outcome.unknown.update(batch)",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a proof that is not waited for",
        _FENCED,
        "            answer = await self._transact(())\n            if isinstance(answer, Done):",
        "            answer = await self._transact(())\n            if True:",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a transaction that is too large for a server",
        _FENCED,
        "if batch and (count > most or size > MOST_BYTES):",
        "if batch and count > most:",
        "tests/sim/test_fences.py",
    ),
    # Claims
    Mutant(
        "a claim that outlives its session",
        _CLAIMING,
        "return (Create(self._layout.owner(partition), self._owner, ephemeral=True),)",
        "return (Create(self._layout.owner(partition), self._owner, ephemeral=False),)",
    ),
    Mutant(
        "an awaited partition without a watch",
        _CLAIMING,
        "node = await self._session.exists(self._layout.owner(partition), watcher)",
        "node = await self._session.exists(self._layout.owner(partition))",
        "tests/integration/test_group_membership.py",
    ),
    Mutant(
        "a partition that is held before its position is read",
        _CLAIMS,
        "moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.OPENING)\n",
        "moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.HELD)\n",
        "tests/unit/test_group_claims.py",
    ),
    Mutant(
        "a claim that is kept although it is not wanted",
        _CLAIMS,
        "if phase is Phase.HELD and not claims.keeps(partition):",
        "if False:",
    ),
    Mutant(
        "a lost session that goes on handing out",
        _CLAIMS,
        "return replace(claims, phases={}, ended=True), ((Lose(lost),) if lost else ())",
        "return replace(claims, phases={}, ended=True), ()",
    ),
    # Hand-over
    Mutant(
        "a release without a commit",
        _CLAIMING,
        "if state.uncommitted and self._commits:",
        "if False:",
    ),
    Mutant(
        "a release that overwrites an operator's reset",
        _CLAIMING,
        "return (self._store.write(partition, state.finished, state.version), deletion)",
        "return (self._store.write(partition, state.finished, -1), deletion)",
    ),
    Mutant(
        "a commit after the release",
        _CLAIMING,
        "return (self._store.write(partition, state.finished, state.version), deletion)",
        "return (deletion,)",
    ),
    # Offsets
    Mutant(
        "a claim that does not write its offset back",
        _OFFSETS,
        "            outcome = await self._writer.write(items, lambda *_: None)\n            versions |=",
        "            return {p: found.version for p, found in stored.items()}, offsets\n"
        "            outcome = await self._writer.write(items, lambda *_: None)\n            versions |=",
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
        "node.mzxid < topic_node.czxid",
        "False",
        "tests/sim/test_claims.py",
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
    # The session
    Mutant(
        "what was asked before the end is answered after it",
        _REQUESTS,
        '                sent.set_exception(SessionLostError(f"the ZooKeeper session is over: {reason}"))',
        "                pass",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a member that stays alive without its session",
        _SESSION,
        '            self._end("expired or closed by the server")',
        "            pass",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a subscription of an unknown fate that counts as told",
        "coordination/membership.py",
        "                self._registered = None\n",
        "",
        "tests/sim/test_found_once.py",
    ),
    Mutant(
        "a word to leave that is lost where a session opens at that moment",
        _SESSION,
        "            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):\n"
        "                await self._connected.wait()\n",
        "            await asyncio.wait_for(self._connected.wait(), self._config.connect_timeout_ms / 1000)\n",
        "tests/sim/test_leaving.py",
    ),
    # The leader
    Mutant(
        "a leader that is refused and does not doubt",
        _LEADING,
        "            self._on_doubt()\n",
        "            pass\n",
        "tests/sim/test_leading.py",
    ),
    Mutant(
        "a plan that does not prove its leader",
        _PLANNING,
        "    proof = Check(candidate)\n",
        '    proof = Check("/")\n',
        "tests/unit/test_group_planning.py",
    ),
    Mutant(
        "a pointer that anybody may overwrite",
        _PLANNING,
        "opening = Put(layout.pointer, pointer.encode(), inputs.pointer_version)",
        "opening = Put(layout.pointer, pointer.encode(), -1)",
        "tests/unit/test_group_planning.py",
    ),
    Mutant(
        "a generation that is the pointer's own",
        _PLANNING,
        "        generation=1 + max(",
        "        generation=max(",
    ),
    Mutant(
        "a generation above the pointer only",
        _PLANNING,
        "    generations = [stored.generation for stored in inputs.slices.values() if stored is not None]\n",
        "    generations = []\n",
        "tests/unit/test_group_planning.py",
    ),
    Mutant(
        "a pointer compared instead of slices",
        _PLANNING,
        "    if not _matters(changes, layout, inputs) and inputs.pointer is not None",
        "    if inputs.pointer is not None",
        "tests/unit/test_group_planning.py",
    ),
    Mutant(
        "a publication that nobody finishes",
        _PLANNING,
        "return stored.state == DONE and all(",
        "return all(",
        "tests/unit/test_group_planning.py",
    ),
    Mutant(
        "a publication that goes on after a refusal",
        _LEADER,
        "    if not isinstance(answer, Done):\n        return _again(",
        "    if False:\n        return _again(",
        "tests/unit/test_group_leader.py",
    ),
    Mutant(
        "a leader that plans once",
        _LEADER,
        "        case Changed(cause, now_s, urgent) if leader.duty is not Duty.NONE:",
        "        case Changed(cause, now_s, urgent) if leader.duty is Duty.SETTLING:",
        "tests/unit/test_group_leader.py",
    ),
    Mutant(
        "a change during a plan that is forgotten",
        _LEADER,
        "    for cause in leader.causes:\n        idle = _changed(idle, cause, now_s)\n",
        "",
        "tests/unit/test_group_leader.py",
    ),
    # The election
    Mutant(
        "a candidate that survives its session",
        "coordination/election.py",
        "ephemeral=True",
        "ephemeral=False",
    ),
    Mutant(
        "a candidate that watches nobody",
        "coordination/election.py",
        "await self._session.exists(path, self._changed)",
        "await self._session.exists(path)",
        "tests/sim/test_leading.py",
    ),
    Mutant(
        "the second lowest leads, too",
        _ELECTION,
        "    if not lower:\n",
        "    if len(lower) < 2:\n",
        "tests/unit/test_group_election.py",
    ),
    # The lease's end, and the paths that ask for it
    Mutant(
        "a lease that begins again after its end",
        _GATE,
        '            self.shut("lease over")\n',
        "            pass\n",
        "tests/unit/test_lease.py",
    ),
    Mutant(
        "a lease that is renewed after somebody saw its end",
        _GATE,
        "        if self.timeout_ms and self.shut_reason is None:\n",
        "        if self.timeout_ms:\n",
        "tests/unit/test_lease.py",
    ),
    Mutant(
        "a lease that outlasts a shorter timeout",
        _GATE,
        "self.deadline_s = min(self.deadline_s, lease_deadline(boot_time_s(), session_timeout_ms))",
        "pass",
        "tests/unit/test_lease.py",
    ),
    Mutant(
        "a write of an owner that asks no gate",
        _FENCED,
        "        await self._session.trusted()\n",
        "",
        "tests/unit/test_gate_paths.py",
    ),
    Mutant(
        "an old answer that stands for a new beat",
        _HEARTBEAT,
        "        if self._sent_s == sent_s:\n",
        "        if True:\n",
        "tests/unit/test_lease.py",
    ),
    # The watchdog
    Mutant(
        "a watchdog that counts what it slept through",
        _WATCHDOG,
        "min(now_s - self._last_s, self._pause_s), now_s",
        "now_s - self._last_s, now_s",
        "tests/unit/test_watchdog.py",
    ),
    Mutant(
        "a watchdog that waits for a blocked loop",
        _LIFE,
        "        self.session.abandon(reason)\n",
        "        self._loop.call_soon_threadsafe(self.session.end, reason)\n",
        f"{_ON_SERVERS}_watchdog.py::test_an_event_loop_is_blocked_for_good",
    ),
    Mutant(
        "a member that joins anew while its application hangs",
        "coordination/group_member.py",
        "if self._membership is not None and self._membership.stalled:",
        "if self._membership is None:",
        f"{_ON_SERVERS}_watchdog.py::test_an_application_hangs_in_a_record",
    ),
    # Static members, resets
    Mutant(
        "a member that was replaced and claims on",
        _CLAIMS,
        "replace(claims, leaving=True, replaced=True)",
        "replace(claims, replaced=True)",
        "tests/unit/test_group_claims.py",
    ),
    Mutant(
        "a reset that an idle owner does not see",
        _HOLDING,
        "        await self._offsets.follow_resets()\n",
        "",
        f"{_ON_SERVERS}_resets.py::test_an_idle_owner",
    ),
    Mutant(
        "a reset beside a broker's own write that is taken for that write",
        "coordination/broker_offset_store.py",
        "if stored.version != versions[partition] and stored.offset != self._sent.get(partition)",
        "if False",
        f"{_ON_SERVERS}_resets.py::test_a_busy_owner",
    ),
)
