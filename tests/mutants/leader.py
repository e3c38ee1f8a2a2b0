"""The leader: its election, its plans, and how they are published."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_LEADER_DRIVER = "coordination/leader/leader_driver.py"
_PLANNER = "group/leader/planner.py"
_LEADER_STATE = "group/leader/leader_state.py"
_CANDIDATE = "group/leader/candidate.py"
_PLAN_READER = "coordination/leader/plan_reader.py"
_OWNERSHIP_MONITOR = "coordination/leader/ownership_monitor.py"
_VALIDATION = "allocators/validation.py"

MUTANTS = (
    # The leader
    Mutant(
        "a leader that is refused and does not doubt",
        _LEADER_DRIVER,
        "            self._on_doubt()\n",
        "            pass\n",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "a plan that does not prove its leader",
        _PLANNER,
        "    proof = Check(candidate)\n",
        '    proof = Check("/")\n',
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a pointer that anybody may overwrite",
        _PLANNER,
        "opening = Put(layout.group_state, group_state.encode(), inputs.group_state_version)",
        "opening = Put(layout.group_state, group_state.encode(), -1)",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a generation that is the pointer's own",
        _PLANNER,
        "        generation=1 + max(",
        "        generation=max(",
    ),
    Mutant(
        "a generation above the pointer only",
        _PLANNER,
        "    generations = [stored.generation for stored in inputs.assignments.values() if stored is not None]\n",
        "    generations = []\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a pointer compared instead of slices",
        _PLANNER,
        "        not _is_material(changes, layout, inputs)\n        and inputs.group_state is not None",
        "        inputs.group_state is not None",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a publication that nobody finishes",
        _PLANNER,
        "return stored.state == DONE and same and",
        "return same and",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a publication that goes on after a refusal",
        _LEADER_STATE,
        "    if not isinstance(answer, Done):\n        return _replan_later(",
        "    if False:\n        return _replan_later(",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "a leader that plans once",
        _LEADER_STATE,
        "        case Changed(cause, now_s, urgent) if leader.duty is not LeaderPhase.NONE:",
        "        case Changed(cause, now_s, urgent) if leader.duty is LeaderPhase.SETTLING:",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "a change during a plan that is forgotten",
        _LEADER_STATE,
        "    for cause in leader.causes:\n        idle = _changed(idle, cause, now_s)\n",
        "",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    # The election
    Mutant(
        "a candidate that survives its session",
        "coordination/leader/election.py",
        "ephemeral=True",
        "ephemeral=False",
    ),
    Mutant(
        "a leader that takes folders for created which somebody has deleted",
        _LEADER_DRIVER,
        "        self._folders.clear()\n        if isinstance(answer, Refused)",
        "        if isinstance(answer, Refused)",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "a candidate that watches nobody",
        "coordination/leader/election.py",
        "await self._session.exists(path, self._changed)",
        "await self._session.exists(path)",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "the second lowest leads, too",
        _CANDIDATE,
        "    if not lower:\n",
        "    if len(lower) < 2:\n",
        "tests/unit/group/leader/test_candidate.py",
    ),
    # What a plan writes
    Mutant(
        "a batch that does not check the pointer",
        _PLANNER,
        "    guard = (proof, Check(layout.group_state, version))\n",
        "    guard = (proof,)\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "who loses is told before who gains",
        _PLANNER,
        "ranked.append((not gains, slot,",
        "ranked.append((gains, slot,",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "slices that did not change are written, too",
        _PLANNER,
        "if stored is not None and replace(stored, generation=generation) == fresh:",
        "if False:",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "an unchanged plan that is published",
        _PLANNER,
        "_is_equivalent(inputs.group_state, group_state)\n    ):\n        return None\n",
        "_is_equivalent(inputs.group_state, group_state)\n    ):\n        pass\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "slices of who is gone that stay for ever",
        _PLANNER,
        "    gone = [Delete(layout.assignment(slot)) for slot in sorted(inputs.assignments.keys() - target"
        ".allocation.keys())]\n",
        "    gone: list[Operation] = []\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a failing allocator that leaves a plan which does not fit",
        _PLANNER,
        "    if still_fits(inputs):\n",
        "    if True:\n",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "owners without a folder",
        _PLANNER,
        "for folder in (layout.topic_owners(topic), layout.topic_offsets(topic))",
        "for folder in (layout.topic_offsets(topic),)",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a publication in writes of any size",
        "group/znodes/transactions.py",
        "if chunk and (len(chunk) == MOST_OPERATIONS or size + added > MOST_BYTES):",
        "if chunk and len(chunk) == MOST_OPERATIONS:",
        "tests/unit/group/leader/test_planner.py",
    ),
    # What a plan is made from, and when
    Mutant(
        "a plan of what was read without a proof",
        _LEADER_DRIVER,
        '            if not self._check(proof, "leadership could not be proved"):\n',
        "            if False:\n",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "a leader that reads before it proves itself",
        _LEADER_DRIVER,
        "            proving = self._session.submit([Check(candidate)])\n"
        "            proof, inputs = await asyncio.gather(proving, self._reader.read())\n",
        "            inputs = await self._reader.read()\n"
        "            proof = await self._session.submit([Check(candidate)])\n",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "a plan with no broker or topic in sight",
        _LEADER_DRIVER,
        "if inputs.subscribed and (not inputs.brokers or not inputs.topics):",
        "if False:",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "an allocator that may take as long as it likes",
        _LEADER_DRIVER,
        "asyncio.timeout(self._config.allocator_timeout_ms / 1000)",
        "asyncio.timeout(None)",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "changes without end that are never planned",
        _LEADER_STATE,
        "due_s=max(leader.due_s, min(quiet_s, leader.bound_s))",
        "due_s=max(leader.due_s, quiet_s)",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "a first leader that does not wait for its group",
        _LEADER_STATE,
        "if succeeds else debounce.initial_delay_ms)",
        "if succeeds else 0)",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "who returns to a place that was kept waits like anybody",
        _LEADER_STATE,
        "return (replace(changed, due_s=now_s) if urgent and changed.due_s is not None else changed), ()",
        "return changed, ()",
        "tests/unit/group/leader/test_leader_state.py",
    ),
    Mutant(
        "a place that nobody keeps",
        "group/leader/static_members.py",
        "if now_ms - since_ms < grace_ms:",
        "if False:",
        "tests/unit/group/leader/test_static_members.py",
    ),
    Mutant(
        "a next leader that counts a grace anew",
        "group/leader/static_members.py",
        "since_ms = now_ms if stored.away_since_ms is None else min(stored.away_since_ms, now_ms)",
        "since_ms = now_ms",
        "tests/unit/group/leader/test_static_members.py",
    ),
    Mutant(
        "an older member that keeps the place of a newer one",
        _PLAN_READER,
        "newest[found[1].slot][0] < found[0]",
        "newest[found[1].slot][0] > found[0]",
        "tests/unit/coordination/leader/test_plan_reader.py",
    ),
    Mutant(
        "a value that changed while it was read and that is kept",
        _PLAN_READER,
        "            if self._reading.pop(what, None) is reading:\n                self._known[what] = values[name]",
        "            if True:\n                self._known[what] = values[name]",
        "tests/unit/coordination/leader/test_plan_reader.py",
    ),
    Mutant(
        "a znode that cannot be read and that ends all planning",
        _PLAN_READER,
        '            log.error("group %s: %s; ignoring it", self._layout.group, error)\n',
        "            raise\n",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "a place that is kept while its partitions move",
        _LEADER_DRIVER,
        "        if inputs.away and still_fits(inputs):\n",
        "        if False:\n",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "a grace whose end nobody sees",
        _LEADER_DRIVER,
        'call_later(delay_s, self.changed, "end of grace")',
        "call_later(delay_s, lambda: None)",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "who returns to a place that was kept and whom nobody looks for",
        _LEADER_DRIVER,
        'leader_state.Changed("return", _now_s(), urgent=True)',
        'leader_state.Changed("return", _now_s(), urgent=False)',
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "a leader that believes its watches for ever",
        _LEADER_DRIVER,
        "        self._reader.forget()\n",
        "",
        "tests/unit/coordination/leader/test_leader_driver.py",
    ),
    Mutant(
        "weights that do not count while they are garbled",
        _PLAN_READER,
        "            return self._weights\n",
        "            return {}\n",
        "tests/unit/coordination/leader/test_plan_reader.py",
    ),
    # Whom the leader trusts
    Mutant(
        "a partition that is handed out twice",
        _VALIDATION,
        "found = its.pop(number, None) if",
        "found = its.get(number) if",
        "tests/unit/allocators/test_round_robin.py",
    ),
    Mutant(
        "a partition that an allocator forgets",
        _VALIDATION,
        "    if missing:\n",
        "    if False:\n",
        "tests/unit/allocators/test_round_robin.py",
    ),
    Mutant(
        "a partition with a wrong owner that nobody tells of",
        "group/leader/ownership_audit.py",
        "if now_s - found.since_s >= limit_s:",
        "if False:",
        "tests/unit/group/leader/test_ownership_audit.py",
    ),
    Mutant(
        "a suspicion that waits for its turn",
        _OWNERSHIP_MONITOR,
        "return sorted({*islice(owned, start, self._next), *(p for p in owned if p in self._suspicions)})",
        "return sorted(islice(owned, start, self._next))",
        "tests/unit/coordination/leader/test_ownership_monitor.py",
    ),
    Mutant(
        "a leader that resigned and watches owners on",
        _LEADER_DRIVER,
        "        self._ownership_monitor.stop()\n        self._feed(leader_state.Deposed())\n",
        "        self._feed(leader_state.Deposed())\n",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "a candidate that makes another znode where the answer is lost",
        _CANDIDATE,
        "if name.startswith(candidate.uuid)), None)",
        "if name == candidate.name), None)",
        "tests/unit/group/leader/test_candidate.py",
    ),
    Mutant(
        "a leader that leads on without its znode",
        _CANDIDATE,
        "name=None), (*resign, CreateCandidate())",
        "name=None), (CreateCandidate(),)",
        "tests/unit/group/leader/test_candidate.py",
    ),
    Mutant(
        "a generation that stands in the history already",
        _PLANNER,
        "generation=1 + max([*generations, *inputs.history], default=0)",
        "generation=1 + max(generations, default=0)",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "a candidate that proves nothing",
        "coordination/leader/election.py",
        "                Check(self._proof),\n",
        '                Check("/"),\n',
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "an allocator that fails in other words, and a generation for it",
        _PLANNER,
        "bool(stored.fallback) == bool(fresh.fallback)",
        "stored.fallback == fresh.fallback",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "an allocator that recovers, laid to somebody's hand",
        _LEADER_DRIVER,
        "filter(None, (changed, describe_allocator(inputs.group_state, target)))",
        "filter(None, (changed,))",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "a plan that mends an interrupted one, laid to somebody's hand",
        _LEADER_DRIVER,
        "        if self._planned_from is not self._before:\n",
        "        if False:\n",
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "an allocator that answers otherwise, laid to somebody's hand",
        _LEADER_DRIVER,
        'return "allocator" if stored == published != wanted else "manual"',
        'return "manual"',
        "tests/sim/test_group_leader.py",
    ),
    Mutant(
        "who leads again during a look, and looks twice from then on",
        _OWNERSHIP_MONITOR,
        "        if self._timer is not timer:\n",
        "        if self._timer is None:\n",
        "tests/unit/coordination/leader/test_ownership_monitor.py",
    ),
    Mutant(
        "who leads again, and remembers what was suspicious before it resigned",
        _OWNERSHIP_MONITOR,
        "        self._suspicions.clear()\n",
        "",
        "tests/unit/coordination/leader/test_ownership_monitor.py",
    ),
)
