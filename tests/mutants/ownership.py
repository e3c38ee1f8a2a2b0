"""A partition has at most one owner, and an owner keeps what it owns until it has given it back."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        "a contended partition counts as claimed",
        "members/zookeeper/owner_znodes.py",
        "            claimed |= ownership.mine\n",
        "            claimed |= doubtful\n",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "an owner znode outlives the session that created it",
        "members/zookeeper/owner_znodes.py",
        "return (Create(self._layout.owner(partition), self._owner, ephemeral=True),)",
        "return (Create(self._layout.owner(partition), self._owner, ephemeral=False),)",
    ),
    Mutant(
        "a member awaits a partition without a watch on its owner znode",
        "members/zookeeper/owner_znodes.py",
        "self._session.exists_many(paths, list(watchers.values()))",
        "self._session.exists_many(paths)",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a claimed partition counts as owned before its position is read",
        "group/claims.py",
        "moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.OPENING)\n",
        "moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.OWNED)\n",
        "tests/unit/group/test_claims.py",
    ),
    Mutant(
        "a member keeps an owned partition that its assignment revokes",
        "group/claims.py",
        "            move(partition, Phase.DRAINING)\n",
        "            pass\n",
    ),
    Mutant(
        "a release with something to commit deletes the owner znode alone",
        "members/zookeeper/owner_znodes.py",
        "return (self._offsets.write(partition, decision.offset, decision.version), deletion)",
        "return (deletion,)",
    ),
    Mutant(
        "a drain does not wait for records in flight",
        "members/zookeeper/owned_partitions.py",
        "asyncio.ensure_future(self._handler.drained(partitions))",
        "asyncio.ensure_future(asyncio.sleep(0))",
    ),
    Mutant(
        "a revocation stops the delivery of partitions that stay",
        "members/zookeeper/owned_partitions.py",
        "busy = self._handler.stop(partitions)",
        "busy = self._handler.stop(self._owned() | partitions) & partitions",
    ),
    Mutant(
        "an absent member assignment revokes all partitions",
        "members/zookeeper/owned_partitions.py",
        "            return claims.AssignmentRead(None)\n        try:",
        "            return claims.AssignmentRead(frozenset())\n        try:",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "an unreadable member assignment revokes all partitions",
        "members/zookeeper/owned_partitions.py",
        '            self._metrics.count("znodes_unreadable")\n            return claims.AssignmentRead(None)',
        '            self._metrics.count("znodes_unreadable")\n            return claims.AssignmentRead(frozenset())',
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "an audit does not check the offsets that a later owner rewrites",
        "members/zookeeper/owner_znodes.py",
        "return await self._writer.holds([*owners, *offsets])",
        "return await self._writer.holds(owners)",
        "tests/sim/test_audits.py",
    ),
    Mutant(
        "the leaders of a former topic count as those of the new one",
        "members/zookeeper/owner_znodes.py",
        "if found[0] == self._topics.creation(each.topic)}",
        "if True}",
        "tests/unit/members/zookeeper/test_partition_leaders.py",
    ),
    Mutant(
        "an audit does not read topics again",
        "members/offsets/topic_incarnations.py",
        "        if changed != self._audited:\n",
        "        if False:\n",
        "tests/sim/test_audits.py",
    ),
    Mutant(
        "another session's owner znode counts as the member's own claim",
        "members/zookeeper/owner_znodes.py",
        "if node is not None and node.owner == self._session.id)",
        "if node is not None)",
    ),
    Mutant(
        "a member joins while foreign members are in the group",
        "members/zookeeper/registration.py",
        "    await _check_foreign(session, layout)\n",
        "",
        "tests/sim/test_admission.py",
    ),
    Mutant(
        "a member joins although its settings differ from the group's",
        "members/zookeeper/registration.py",
        "if differences := mine.differences(group):",
        "if (differences := mine.differences(group)) and False:",
        "tests/sim/test_admission.py",
    ),
    Mutant(
        "two hooks of a listener run at the same time",
        "clients/delivery/listener_calls.py",
        "        async with self._lock:\n            task",
        "        if True:\n            task",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    Mutant(
        "a release by force does not delete the member znode",
        "ops/actions/release.py",
        "for path in (layout.member(self.member_id), layout.consumer_id(self.member_id)):",
        "for path in (layout.consumer_id(self.member_id),):",
        "tests/sim/test_releases.py",
    ),
    Mutant(
        "a release by force deletes owner znodes without waiting for the end of the lease",
        "ops/actions/release.py",
        "        while waited_ms < self.wait_ms and",
        "        while False and",
        "tests/sim/test_releases.py",
    ),
    Mutant(
        "a release by force accepts a wait that is shorter than the member's session timeout",
        "ops/actions/release.py",
        "max(info.session_timeout_ms, wait_ms or 0))",
        "info.session_timeout_ms if wait_ms is None else wait_ms)",
        "tests/sim/test_releases.py",
    ),
    Mutant(
        "a release by force deletes the owner znode of a later claim",
        "ops/actions/release.py",
        "if stat is not None and stat.czxid == czxid:",
        "if stat is not None:",
        "tests/sim/test_releases.py",
    ),
    Mutant(
        "the previous subscription still counts as registered after an unknown outcome",
        "members/zookeeper/registration.py",
        "                self._registered = None\n",
        "",
        "tests/sim/test_seed_regressions.py",
    ),
    Mutant(
        "a join that is cancelled twice leaves its session open",
        "zookeeper/session.py",
        "        self._begin_closing()\n"
        "        return asyncio.ensure_future(self._wait_closed())\n"
        "\n"
        "    async def _wait_closed(self) -> None:\n",
        "        return asyncio.ensure_future(self._wait_closed())\n"
        "\n"
        "    async def _wait_closed(self) -> None:\n"
        "        self._begin_closing()\n",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "a member takes its own registration, whose answer was lost, for another member's",
        "members/zookeeper/registration.py",
        "        elif unanswered and answer.failure is Failure.NODE_EXISTS:\n",
        "        elif False:\n",
        "tests/sim/test_registration.py",
    ),
    Mutant(
        "a partition of an unsubscribed topic is assigned",
        "group/subscription.py",
        "if others := sorted(partition for partition in wanted if partition.topic not in self.topics):",
        "if others := [partition for partition in wanted if not self.topics]:",
        "tests/property/test_subscription_laws.py",
    ),
    Mutant(
        "a member joins before its partitions are given back",
        "group/member_state.py",
        "        and state.holding is Holding.NOTHING\n        and state.coordinator is not None\n",
        "        and state.coordinator is not None\n",
        "tests/unit/group/test_member_state.py",
    ),
    Mutant(
        "the answer to a former sync opens partitions",
        "group/member_state.py",
        "        case SyncAnswered(join, code) if join == state.join and state.phase is Phase.SYNCING:\n",
        "        case SyncAnswered(join, code) if state.phase is Phase.SYNCING:\n",
        "tests/unit/group/test_member_state.py",
    ),
    Mutant(
        "a member that was removed keeps its partitions",
        "group/member_state.py",
        "    effects = () if state.holding is Holding.NOTHING else (Lose(),)\n    phase =",
        "    effects: tuple[Effect, ...] = ()\n    phase =",
        "tests/unit/group/test_member_state.py",
    ),
    Mutant(
        "the gate stays open after the partitions are given back",
        "members/brokers/member.py",
        "        await self._hooks.prepare(gate)\n        gate.shut()\n",
        "        await self._hooks.prepare(gate)\n",
        "tests/sim/test_broker_groups.py::test_a_leader_survives_an_outage_of_the_brokers",
    ),
    Mutant(
        "partitions are opened beside a rebalance",
        "members/brokers/member.py",
        "            completing.cancel()\n            await asyncio.wait({completing})\n",
        "            completing.cancel()\n",
        "tests/unit/members/brokers/test_joins_and_assignments.py",
    ),
    Mutant(
        "a drain continues after the gate has closed",
        "members/brokers/consumer_hooks.py",
        "return gate.deadline_s - now_s - reserve_s if gate.is_open(now_s) else 0.0",
        "return 1.0",
        "tests/unit/members/brokers/test_consumer_hooks.py",
    ),
    Mutant(
        "a release deletes an owner znode without a look at its owner",
        "members/zookeeper/owner_znodes.py",
        "        waiting = (await self._read_owners(partitions)).mine\n        gone, released",
        "        waiting = frozenset(partitions)\n        gone, released",
        "tests/sim/test_kafka_offsets.py",
    ),
    Mutant(
        "the end of a former session is reported to the present membership",
        "members/programs/zookeeper_coordinator.py",
        "        if target is not None and target.coordinator == number:\n",
        "        if target is not None:\n",
        "tests/unit/members/programs/test_zookeeper_coordinator.py",
    ),
    Mutant(
        "a request outlasts its session",
        "members/programs/zookeeper_coordinator.py",
        "either: set[asyncio.Future[Any]] = {asking, session.over}",
        "either: set[asyncio.Future[Any]] = {asking}",
        "tests/unit/members/programs/test_zookeeper_coordinator.py",
    ),
    Mutant(
        "two sinks share a consumer group",
        "workers/runners/runner_interface.py",
        'f"connect_{shown}_{digest[:_DIGEST_CHARACTERS]}"',
        'f"connect_{shown}"',
        "tests/unit/workers/runners/test_sink_task_runner.py",
    ),
    Mutant(
        "a member that is refused leaves folders in a group of others",
        "members/zookeeper/group_session.py",
        "        await self._kind.admit(self.session, self._layout, self._config)\n",
        "        await self.session.ensure(self._layout.parents)\n"
        "        await self._kind.admit(self.session, self._layout, self._config)\n",
        "tests/sim/test_program_groups.py",
    ),
    Mutant(
        "a program takes the name of a group of another client",
        "members/zookeeper/registration.py",
        "    if node is None and found is None and await _has_consumers(session, layout):\n",
        "    if False:\n",
        "tests/sim/test_program_groups.py",
    ),
    Mutant(
        "partitions of an assignment that is dropped before its drain begins are opened",
        "members/brokers/member.py",
        "            self._completing.cancel()\n",
        "            pass\n",
        "tests/unit/members/brokers/test_joins_and_assignments.py",
    ),
)
