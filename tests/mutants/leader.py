"""Mutants of the leader: its election, its plans and their publication, and the ownership monitor."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_LEADER_DRIVER = "coordination/leader/leader_driver.py"
_PARTITION_PLANNER = "coordination/leader/partition_planner.py"
_PLANNER = "group/leader/planner.py"
_LEADER_STATE = "group/leader/leader_state.py"
_CANDIDATE = "group/leader/candidate.py"
_WATCHED = "coordination/leader/watched_values.py"
_PLAN_READER = "coordination/leader/plan_reader.py"
_OWNERSHIP_MONITOR = "coordination/leader/ownership_monitor.py"
_VALIDATION = "allocators/validation.py"

MUTANTS = (
    # The leader
    Mutant(
        "a leader whose proof was refused does not read the candidates again",
        _LEADER_DRIVER,
        "            self._on_doubt()\n",
        "            pass\n",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "a leader proves its leadership by a check of the root instead of its election znode",
        _LEADER_DRIVER,
        "proving = self._session.submit([Check(candidate)])",
        'proving = self._session.submit([Check("/")])',
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "a plan is published without a check of the leader's election znode",
        _PLANNER,
        "    proof = Check(candidate)\n",
        '    proof = Check("/")\n',
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "the leader overwrites a group state that has changed since it was read",
        _PLANNER,
        "opening = Put(layout.group_state, group_state.encode(), inputs.group_state_version)",
        "opening = Put(layout.group_state, group_state.encode(), -1)",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a plan gets the generation of the one before",
        _PLANNER,
        "        generation=1 + max(",
        "        generation=max(",
    ),
    Mutant(
        "a plan's generation ignores those of the stored assignments",
        _PLANNER,
        "    generations = [stored.generation for stored in inputs.assignments.values() if stored is not None]\n",
        "    generations = []\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a plan is compared with the group state instead of the stored assignments",
        _PLANNER,
        "        not _is_material(changes, layout, inputs)\n        and inputs.group_state is not None",
        "        inputs.group_state is not None",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "an interrupted publication counts as complete",
        _PLANNER,
        "return stored.state == DONE and same and",
        "return same and",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a publication continues after a refused write",
        _LEADER_STATE,
        "    if not isinstance(answer, Done):\n        return _replan_later(",
        "    if False:\n        return _replan_later(",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "a leader ignores all changes after its first plan",
        _LEADER_STATE,
        "        case Changed(cause, now_s, urgent) if leader.phase is not LeaderPhase.NONE:",
        "        case Changed(cause, now_s, urgent) if leader.phase is LeaderPhase.SETTLING:",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "a change during a plan is forgotten",
        _LEADER_STATE,
        "    for cause in leader.causes:\n        idle = _changed(idle, cause, now_s)\n",
        "",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    # The election
    Mutant(
        "an election znode outlives the session that created it",
        "coordination/leader/election.py",
        "ephemeral=True",
        "ephemeral=False",
    ),
    Mutant(
        "the leader does not create folders again that an operator has deleted",
        _LEADER_DRIVER,
        "        self._folders.clear()\n        if isinstance(answer, Refused)",
        "        if isinstance(answer, Refused)",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "a candidate reads the next lower election znode without a watch",
        "coordination/leader/election.py",
        "await self._session.exists(path, self._changed)",
        "await self._session.exists(path)",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "the candidate with the second lowest election znode leads as well",
        _CANDIDATE,
        "    if not lower:\n",
        "    if len(lower) < 2:\n",
        "tests/unit/group/leader/test_candidate.py",
    ),
    # The writes of a plan
    Mutant(
        "a write of a publication does not check the version of the group state",
        _PLANNER,
        "    guard = (proof, Check(layout.group_state, version))\n",
        "    guard = (proof,)\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a member that loses a partition is notified before the one that gains it",
        _PLANNER,
        "ranked.append((not gains, slot,",
        "ranked.append((gains, slot,",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "unchanged member assignments are written again",
        _PLANNER,
        "if stored is not None and replace(stored, generation=generation) == fresh:",
        "if False:",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "an unchanged plan is published",
        _PLANNER,
        "_is_equivalent(inputs.group_state, group_state)\n    ):\n        return None\n",
        "_is_equivalent(inputs.group_state, group_state)\n    ):\n        pass\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "the assignments of departed members are never deleted",
        _PLANNER,
        "    gone = [Delete(layout.assignment(slot)) for slot in sorted(inputs.assignments.keys() - target"
        ".allocation.keys())]\n",
        "    gone: list[Operation] = []\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a stored plan that does not fit any more is kept when the allocator fails",
        _PLANNER,
        "    if still_fits(inputs):\n",
        "    if True:\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "the leader does not create the owners folders of topics",
        _PLANNER,
        "for folder in (layout.topic_owners(topic), layout.topic_offsets(topic))",
        "for folder in (layout.topic_offsets(topic),)",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a publication limits its transactions by operations but not by bytes",
        "group/znodes/transactions.py",
        "if chunk and (len(chunk) == MOST_OPERATIONS or size + added > MOST_BYTES):",
        "if chunk and len(chunk) == MOST_OPERATIONS:",
        "tests/unit/group/leader/test_planner.py",
    ),
    # The inputs and the time of a plan
    Mutant(
        "a leader plans although its leadership was not proved",
        _LEADER_DRIVER,
        '            if not self.check(proof, "leadership could not be proved"):\n',
        "            if False:\n",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "a leader reads the inputs of a plan before it proves its leadership",
        _LEADER_DRIVER,
        "            proving = self._session.submit([Check(candidate)])\n"
        "            proof, make_plan = await asyncio.gather(proving, self._planner.read())\n",
        "            make_plan = await self._planner.read()\n"
        "            proof = await self._session.submit([Check(candidate)])\n",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "a leader plans although it found no broker or no topic",
        _PARTITION_PLANNER,
        "if inputs.subscribed and (not inputs.brokers or not inputs.topics):",
        "if False:",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "an allocator may run without a time limit",
        _PARTITION_PLANNER,
        "asyncio.timeout(self._config.allocator_timeout_ms / 1000)",
        "asyncio.timeout(None)",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "changes without end postpone the plan for ever",
        _LEADER_STATE,
        "due_s=max(leader.due_s, min(quiet_s, leader.bound_s))",
        "due_s=max(leader.due_s, quiet_s)",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "the first leader of a group does not wait for the initial delay",
        _LEADER_STATE,
        "if succeeds else debounce.initial_delay_ms)",
        "if succeeds else 0)",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "an urgent change waits for the debounce",
        _LEADER_STATE,
        "return (replace(changed, due_s=now_s) if urgent and changed.due_s is not None else changed), ()",
        "return changed, ()",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "the place of an absent static member is not kept",
        "group/leader/static_members.py",
        "if now_ms - since_ms < grace_ms:",
        "if False:",
        "tests/unit/group/leader/test_static_members.py",
    ),
    Mutant(
        "a new leader restarts the grace of an absent static member",
        "group/leader/static_members.py",
        "since_ms = now_ms if stored.away_since_ms is None else min(stored.away_since_ms, now_ms)",
        "since_ms = now_ms",
        "tests/unit/group/leader/test_static_members.py",
    ),
    Mutant(
        "the older of two members with one instance id gets their slot",
        _PLAN_READER,
        "newest[found[1].slot][0] < found[0]",
        "newest[found[1].slot][0] > found[0]",
        "tests/unit/coordination/leader/test_plan_reader.py",
    ),
    Mutant(
        "a value that changed during its read is cached",
        _WATCHED,
        "            if self._reading.pop(what, None) is reading:\n                self._known[what] = values[name]",
        "            if True:\n                self._known[what] = values[name]",
        "tests/unit/coordination/leader/test_plan_reader.py",
    ),
    Mutant(
        "a znode that cannot be read ends all planning",
        _WATCHED,
        '            log.error("group %s: %s; ignoring it", self._group, error)\n',
        "            raise\n",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "partitions move although the place of an absent static member is kept",
        _PARTITION_PLANNER,
        "        if inputs.away and still_fits(inputs):\n",
        "        if False:\n",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "the leader does not plan at the end of a grace",
        _PARTITION_PLANNER,
        'call_later(delay_s, self._requests.changed, "end of grace")',
        "call_later(delay_s, lambda: None)",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "the return of an absent static member waits for the debounce",
        _PARTITION_PLANNER,
        'changed("return", urgent=True)',
        'changed("return", urgent=False)',
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "the leader never reads again what it has cached unless a watch fires",
        _PARTITION_PLANNER,
        "        self._reader.forget()\n",
        "",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "unreadable weights count as no weights instead of the previous ones",
        _PLAN_READER,
        "            return self._weights\n",
        "            return {}\n",
        "tests/unit/coordination/leader/test_plan_reader.py",
    ),
    # Checks of allocators, owners and leadership
    Mutant(
        "an allocator may assign a partition twice",
        _VALIDATION,
        "found = its.pop(number, None) if",
        "found = its.get(number) if",
        "tests/unit/allocators/test_round_robin.py",
    ),
    Mutant(
        "an allocator may leave out a partition",
        _VALIDATION,
        "    if missing:\n",
        "    if False:\n",
        "tests/unit/allocators/test_round_robin.py",
    ),
    Mutant(
        "no alarm is raised for a partition with a wrong owner",
        "group/leader/ownership_audit.py",
        "if now_s - found.since_s >= limit_s:",
        "if False:",
        "tests/unit/group/leader/test_ownership_audit.py",
    ),
    Mutant(
        "the ownership monitor checks suspicious partitions only in their turn",
        _OWNERSHIP_MONITOR,
        "return sorted({*islice(owned, start, self._next), *(p for p in owned if p in self._suspicions)})",
        "return sorted(islice(owned, start, self._next))",
        "tests/unit/coordination/leader/test_ownership_monitor.py",
    ),
    Mutant(
        "a leader that resigned keeps monitoring owners",
        _LEADER_DRIVER,
        "        self._planner.stop()\n        self._feed(leader_state.Deposed())\n",
        "        self._feed(leader_state.Deposed())\n",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "a candidate creates a second election znode after a lost answer",
        _CANDIDATE,
        "if name.startswith(candidate.uuid)), None)",
        "if name == candidate.name), None)",
        "tests/unit/group/leader/test_candidate.py",
    ),
    Mutant(
        "a leader whose election znode was deleted keeps leading",
        _CANDIDATE,
        "name=None), (*resign, CreateCandidate())",
        "name=None), (CreateCandidate(),)",
        "tests/unit/group/leader/test_candidate.py",
    ),
    Mutant(
        "a plan's generation ignores those in the history",
        _PLANNER,
        "generation=1 + max([*generations, *inputs.history], default=0)",
        "generation=1 + max(generations, default=0)",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a candidate creates its election znode without a check of the member znode",
        "coordination/leader/election.py",
        "                Check(self._proof),\n",
        '                Check("/"),\n',
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "another error text of a failing allocator causes a new generation",
        _PLANNER,
        "bool(stored.fallback) == bool(fresh.fallback)",
        "stored.fallback == fresh.fallback",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "the recovery of an allocator is reported as a manual change",
        _PARTITION_PLANNER,
        "filter(None, (changed, describe_allocator(inputs.group_state, target)))",
        "filter(None, (changed,))",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "the completion of an interrupted publication is reported as a manual change",
        _PARTITION_PLANNER,
        "        if self._planned_from is not self._before:\n",
        "        if False:\n",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "another result of the same allocator is reported as a manual change",
        _PARTITION_PLANNER,
        'return "allocator" if stored == published != wanted else "manual"',
        'return "manual"',
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "a leader that is elected again during a check of the owners runs two series of checks",
        _OWNERSHIP_MONITOR,
        "        if self._timer is not timer:\n",
        "        if self._timer is None:\n",
        "tests/unit/coordination/leader/test_ownership_monitor.py",
    ),
    Mutant(
        "a leader that is elected again keeps the suspicions of its earlier term",
        _OWNERSHIP_MONITOR,
        "        self._suspicions.clear()\n",
        "",
        "tests/unit/coordination/leader/test_ownership_monitor.py",
    ),
)
