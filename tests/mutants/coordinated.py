"""Mutants of members of groups that brokers coordinate."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_STATE = "group/coordinated/member_state.py"
_CODES = "group/coordinated/coordinator_codes.py"
_GATE = "clients/coordinator/generation_gate.py"
_HEARTBEAT = "clients/coordinator/coordinator_heartbeat.py"
_MEMBER = "clients/coordinator/coordinated_member.py"
_HELD = "clients/coordinator/held_assignment.py"
_HOOKS = "clients/coordinated/consumer_hooks.py"
_COMMITS = "clients/coordinated/coordinator_commits.py"
_STARTS = "clients/coordinated/start_positions.py"

_STATE_TEST = "tests/unit/group/coordinated/test_member_state.py"
_FAILURES_TEST = "tests/unit/group/coordinated/test_failure_counts.py"
_CODES_TEST = "tests/unit/group/coordinated/test_coordinator_codes.py"
_GATE_TEST = "tests/unit/clients/coordinator/test_generation_gate.py"
_HEARTBEAT_TEST = "tests/unit/clients/coordinator/test_coordinator_heartbeat.py"
_JOINS_TEST = "tests/unit/clients/coordinator/test_joins_and_assignments.py"
_ENDS_TEST = "tests/unit/clients/coordinator/test_member_ends.py"
_HOOKS_TEST = "tests/unit/clients/coordinated/test_consumer_hooks.py"
_LOST_TEST = "tests/unit/clients/coordinated/test_lost_offsets.py"
_GROUPS_TEST = "tests/sim/test_broker_groups.py"

MUTANTS = (
    # The state machine
    Mutant(
        "a member joins before its partitions are given back",
        _STATE,
        "        and state.holding is Holding.NOTHING\n        and state.coordinator is not None\n",
        "        and state.coordinator is not None\n",
        _STATE_TEST,
    ),
    Mutant(
        "a member joins beside a commit in flight",
        _STATE,
        "        and not state.in_flight\n",
        "",
        _STATE_TEST,
    ),
    Mutant(
        "a failed join is repeated without a pause",
        _STATE,
        "        and not state.is_pausing\n    )",
        "    )",
        _STATE_TEST,
    ),
    Mutant(
        "an answer about a former generation ends the present membership",
        _STATE,
        "if (generation, member_id) == (state.generation, state.member_id) and state.phase is Phase.STABLE:",
        "if state.phase is Phase.STABLE:",
        _STATE_TEST,
    ),
    Mutant(
        "an answer to a former search names the coordinator",
        _STATE,
        "        case CoordinatorFound(discovery, coordinator) if discovery == state.discovery:\n",
        "        case CoordinatorFound(discovery, coordinator):\n",
        _STATE_TEST,
    ),
    Mutant(
        "the answer to a former sync opens partitions",
        _STATE,
        "        case SyncAnswered(join, code) if join == state.join and state.phase is Phase.SYNCING:\n",
        "        case SyncAnswered(join, code) if state.phase is Phase.SYNCING:\n",
        _STATE_TEST,
    ),
    Mutant(
        "a member that was removed keeps its partitions",
        _STATE,
        "    effects = () if state.holding is Holding.NOTHING else (Lose(),)\n    phase =",
        "    effects: tuple[Effect, ...] = ()\n    phase =",
        _STATE_TEST,
    ),
    Mutant(
        "a member that was removed joins with its former id",
        _STATE,
        '    lost = replace(state, phase=phase, holding=Holding.NOTHING, member_id="", generation=NO_GENERATION)\n',
        "    lost = replace(state, phase=phase, holding=Holding.NOTHING, generation=NO_GENERATION)\n",
        _STATE_TEST,
    ),
    Mutant(
        "a request to rejoin during a join is forgotten",
        _STATE,
        "        case Rejoin():\n",
        "        case Rejoin() if state.phase is not Phase.JOINING:\n",
        _STATE_TEST,
    ),
    Mutant(
        "a member that has never joined sends a leave request",
        _STATE,
        "    if state.is_member and state.coordinator is not None:\n",
        "    if state.coordinator is not None:\n",
        _STATE_TEST,
    ),
    Mutant(
        "a member beats in vain while it drains for brokers without a rebalance timeout",
        _STATE,
        "        return while_draining or not self.rejoin_due\n",
        "        return True\n",
        _STATE_TEST,
    ),
    Mutant(
        "a coordinator that refuses a join without an id is asked in a loop",
        _STATE,
        "return (unknown, ()) if state.member_id else _pausing(unknown)",
        "return unknown, ()",
        _STATE_TEST,
    ),
    Mutant(
        "a member does not look for a coordinator that cannot replicate its commits",
        _CODES,
        "        _C.REQUEST_TIMED_OUT: _R.FIND,\n",
        "",
        _CODES_TEST,
    ),
    Mutant(
        "a member that the coordinator has removed rejoins as if it still were in the group",
        _CODES,
        "_REMOVED: Mapping[int, Reaction] = {_C.ILLEGAL_GENERATION: _R.LOST,",
        "_REMOVED: Mapping[int, Reaction] = {_C.ILLEGAL_GENERATION: _R.REJOIN,",
        _CODES_TEST,
    ),
    # The gate
    Mutant(
        "the lease of a generation lasts as long as its session",
        _GATE,
        "LEASE_SHARE = 0.5\n",
        "LEASE_SHARE = 1.0\n",
        _GATE_TEST,
    ),
    Mutant(
        "a gate that was shut is opened again by a heartbeat",
        _GATE,
        "return now_s < self._deadline_s and not self._is_shut",
        "return now_s < self._deadline_s",
        _GATE_TEST,
    ),
    Mutant(
        "a gate ignores the end of its lease",
        _GATE,
        "return now_s < self._deadline_s and not self._is_shut",
        "return not self._is_shut",
        _GROUPS_TEST + "::test_a_stopped_member_does_not_deliver_beside_the_next_owner",
    ),
    Mutant(
        "a heartbeat of another generation renews the lease",
        _GATE,
        "        if token == self.token:\n            self.confirmed_s",
        "        if True:\n            self.confirmed_s",
        _GATE_TEST,
    ),
    Mutant(
        "commits during a rebalance extend the lease without an end",
        _GATE,
        "            self._deadline_s = max(self._deadline_s, min(sent_s + self._lease_s, removed_s))\n",
        "            self._deadline_s = max(self._deadline_s, sent_s + self._lease_s)\n",
        _GROUPS_TEST + "::test_commits_do_not_extend_a_lease_on_brokers_of_0_9",
    ),
    Mutant(
        "an accepted commit counts as a proof of a stable group",
        _GATE,
        "            self._deadline_s = max(self._deadline_s, min(sent_s + self._lease_s, removed_s))\n",
        "            self.renew(token, sent_s)\n",
        _GATE_TEST,
    ),
    # Heartbeats
    Mutant(
        "a heartbeat opens the gate again after the end of the lease",
        _HEARTBEAT,
        "            if target.gate.is_open(now_s):\n",
        "            if True:\n",
        _HEARTBEAT_TEST,
    ),
    Mutant(
        "the heartbeat after a refused sync renews the lease",
        _HEARTBEAT,
        "self._beat(target, self._runtime.boot_time_s(), renews=False)",
        "self._beat(target, self._runtime.boot_time_s(), renews=True)",
        _GROUPS_TEST + "::test_a_stopped_member_does_not_deliver_beside_the_next_owner",
    ),
    Mutant(
        "a heartbeat of a generation renews the lease from the moment of its answer",
        _HEARTBEAT,
        "            target.gate.renew(target.gate.token, sent_s)\n",
        "            target.gate.renew(target.gate.token, self._runtime.boot_time_s())\n",
        _HEARTBEAT_TEST,
    ),
    Mutant(
        "a heartbeat that the coordinator refuses renews the lease",
        _HEARTBEAT,
        "        if answer.code == CoordinatorCode.NO_ERROR and renews:\n",
        "        if answer.code is not None and renews:\n",
        _HEARTBEAT_TEST,
    ),
    Mutant(
        "a coordinator that refuses connections gets heartbeats in a loop",
        _HEARTBEAT,
        "self._due_s = max(now_s, self._sent_s + self._interval_s) if is_urgent else",
        "self._due_s = now_s if is_urgent else",
        _HEARTBEAT_TEST,
    ),
    Mutant(
        "an error of one heartbeat ends all heartbeats",
        _HEARTBEAT,
        "            self._is_waiting = False\n            return self._interval_s\n",
        "            return None\n",
        _HEARTBEAT_TEST,
    ),
    Mutant(
        "a client whose event loop was closed keeps its membership",
        _HEARTBEAT,
        "            self._target, self._to_leave = None, target\n        if (leaving",
        "            self._target = None\n        if (leaving",
        _HEARTBEAT_TEST,
    ),
    # The driver
    Mutant(
        "a member that was given up sends the join that it had decided on",
        _MEMBER,
        "        if (join, Phase.JOINING) != (self._state.join, self._state.phase):\n            return",
        "        if self._state.phase is not Phase.JOINING:\n            return",
        _GROUPS_TEST + "::test_a_join_does_not_wait_behind_one_that_was_given_up",
    ),
    Mutant(
        "the pauses between failed syncs do not grow, because each join succeeds",
        "group/coordinated/member_state.py",
        "phase=Phase.SYNCING, generation=answer.generation, member_id=answer.member_id)",
        "phase=Phase.SYNCING, generation=answer.generation, member_id=answer.member_id, failures=0)",
        _FAILURES_TEST,
    ),
    Mutant(
        "a loss that raises leaves out what follows it",
        _HELD,
        "            asyncio.get_running_loop().call_soon(self._crashed, error)\n",
        "            raise\n",
        _ENDS_TEST,
    ),
    Mutant(
        "the error of a hook has no traceback",
        _MEMBER,
        "exc_info=trace, extra",
        "extra",
        _ENDS_TEST,
    ),
    Mutant(
        "the gate stays open after the partitions are given back",
        _HELD,
        "        await self._hooks.prepare(gate)\n        gate.shut()\n",
        "        await self._hooks.prepare(gate)\n",
        _GROUPS_TEST + "::test_a_leader_survives_an_outage_of_the_brokers",
    ),
    Mutant(
        "the gate of a lost membership stays open",
        _HELD,
        "        gate.shut()\n        self.gate = self._hook = None\n",
        "        self.gate = self._hook = None\n",
        _JOINS_TEST,
    ),
    Mutant(
        "partitions are opened beside a rebalance",
        _HELD,
        "            completing.cancel()\n            await asyncio.wait({completing})\n",
        "            completing.cancel()\n",
        _JOINS_TEST,
    ),
    Mutant(
        "partitions of an assignment that is dropped before its drain begins are opened",
        _HELD,
        "            self._completing.cancel()\n",
        "            pass\n",
        _JOINS_TEST,
    ),
    Mutant(
        "the offset that a process remembers of a deleted topic is a start in the next one",
        "clients/coordinated/coordinator_commits.py",
        " if number == self._seen.number(each.topic)}",
        "}",
        "tests/unit/clients/coordinated/test_renewed_topics.py",
    ),
    Mutant(
        "offsets of a deleted topic are committed until the partition restarts",
        "clients/coordinated/renewed_topics.py",
        "        self.tracker.recreated(topic, number)\n",
        "",
        "tests/unit/clients/coordinated/test_renewed_topics.py",
    ),
    Mutant(
        "a lost membership goes on opening partitions",
        _HELD,
        "        if hook is not None:\n            hook.cancel()\n",
        "",
        _JOINS_TEST,
    ),
    Mutant(
        "the lease of a generation begins when the sync is answered",
        _MEMBER,
        "new_gate(token, self._sync_sent_s)",
        "new_gate(token, now_s)",
        _JOINS_TEST,
    ),
    Mutant(
        "a drain gets no more time than the lease",
        _HEARTBEAT,
        "            target.gate.renew_in_rebalance(target.gate.token, sent_s)\n",
        "            pass\n",
        _JOINS_TEST,
    ),
    Mutant(
        "a close that is cancelled leaves its member in the group",
        _MEMBER,
        "            if not self._ended.is_set():\n                self._leave_by_thread()\n",
        "            if not self._ended.is_set():\n",
        _ENDS_TEST,
    ),
    # The consumer
    Mutant(
        "a rebalance does not wait for records in flight",
        _HOOKS,
        "        late = await self._drain(gate, parts)\n",
        "        late = frozenset()\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a drain goes on after the gate has closed",
        _HOOKS,
        "return gate.deadline_s - now_s - reserve_s if gate.is_open(now_s) else 0.0",
        "return 1.0",
        _HOOKS_TEST,
    ),
    Mutant(
        "a rebalance does not commit what is finished",
        _HOOKS,
        "        await self._commit_last(partitions - late)\n",
        "",
        _HOOKS_TEST,
    ),
    Mutant(
        "a lost partition is delivered",
        _HOOKS,
        "        self._tracker.end(partitions)\n        self._handler.lost(partitions)\n",
        "        self._tracker.end(partitions)\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "offsets are committed while the gate is shut",
        _COMMITS,
        "or not gate.is_open(self._runtime.boot_time_s())\n",
        "or gate.is_shut\n",
        _GROUPS_TEST + "::test_what_is_finished_after_the_end_of_the_lease_is_not_committed",
    ),
    Mutant(
        "a commit is repeated in a later generation",
        _COMMITS,
        "            gate = self._open_gate(gate)\n",
        "            gate = self._open_gate(None)\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a refused commit counts as stored",
        _COMMITS,
        "for partition, code in answers.items() if code == NO_ERROR}",
        "for partition, code in answers.items()}",
        _HOOKS_TEST,
    ),
    Mutant(
        "an offset that expired in the coordinator is reset by the policy",
        _COMMITS,
        "{partition: self._stored[partition] for partition in missing if partition in self._stored}",
        "{partition: self._stored[partition] for partition in () if partition in self._stored}",
        _LOST_TEST,
    ),
    Mutant(
        "a start position is delivered although the coordinator does not have it",
        _STARTS,
        "        for partition in created.keys() - saved:\n",
        "        for partition in saved - created.keys():\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a start position is not stored before its first record is delivered",
        _STARTS,
        "saved = await self._offsets.store(created) if created else frozenset()",
        "saved = frozenset(created)",
        _HOOKS_TEST,
    ),
    Mutant(
        "a partition that was added to its topic starts at the end",
        _STARTS,
        "or partition.partition >= self._first_counts.get(partition.topic, 0)",
        "or partition.partition < 0",
        _HOOKS_TEST,
    ),
    Mutant(
        "a heartbeat that crosses the leave is a failure",
        _MEMBER,
        "if target.gate.token != self.token or self._state.phase is Phase.LEAVING:",
        "if False:",
        _ENDS_TEST,
    ),
    Mutant(
        "the end of the lease is logged at each heartbeat",
        _HELD,
        "        if is_over == self._is_over:\n            return\n",
        "",
        _ENDS_TEST,
    ),
    Mutant(
        "a member whose assignment cannot be read stops",
        _HELD,
        "            await self._rejoin_later(gate, joined, error)\n            return\n",
        "            raise\n",
        "tests/unit/clients/coordinator/test_joins_and_assignments.py",
    ),
)
