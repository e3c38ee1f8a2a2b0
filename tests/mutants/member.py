"""Mutants of a member: its assignment, its claims, their release, and releases by force."""

from __future__ import annotations

from tests.mutants.mutant import ON_SERVERS, Mutant

__all__ = ["MUTANTS"]

_OFFSET_TRACKER = "group/member/offset_tracker.py"
_PARTITION_OFFSETS = "group/member/partition_offsets.py"
_OWNER_ZNODES = "coordination/member/owner_znodes.py"
_OWNED_PARTITIONS = "coordination/member/owned_partitions.py"
_MEMBER_ROLE = "coordination/member/member_role.py"
_CLAIMS = "group/member/claims.py"
_ADMISSION = "coordination/member/admission.py"
_LISTENER_CALLS = "clients/delivery/listener_calls.py"
_FORCE_RELEASE = "admin/force_release.py"

MUTANTS = (
    # Claims
    Mutant(
        "a contended partition counts as claimed",
        _OWNER_ZNODES,
        "            claimed |= ownership.mine\n",
        "            claimed |= doubtful\n",
        "tests/sim/test_claims.py",
    ),
    Mutant(
        "an idle partition is released together with a busy one",
        _OWNED_PARTITIONS,
        "        busy = self._handler.stop(partitions)\n",
        "        busy = self._handler.stop(partitions) & frozenset()\n",
        "tests/sim/test_drains.py",
    ),
    Mutant(
        "an owner znode outlives the session that created it",
        _OWNER_ZNODES,
        "return (Create(self._layout.owner(partition), self._owner, ephemeral=True),)",
        "return (Create(self._layout.owner(partition), self._owner, ephemeral=False),)",
    ),
    Mutant(
        "a member awaits a partition without a watch on its owner znode",
        _OWNER_ZNODES,
        "self._session.exists_many(paths, list(watchers.values()))",
        "self._session.exists_many(paths)",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a claimed partition counts as owned before its position is read",
        _CLAIMS,
        "moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.OPENING)\n",
        "moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.OWNED)\n",
        "tests/unit/group/member/test_claims.py",
    ),
    Mutant(
        "a member keeps an owned partition that its assignment revokes",
        _CLAIMS,
        "            move(partition, Phase.DRAINING)\n",
        "            pass\n",
    ),
    Mutant(
        "the end of a session does not stop the delivery of its partitions",
        _CLAIMS,
        "return replace(claims, phases={}, ended=True), ((Lose(lost),) if lost else ())",
        "return replace(claims, phases={}, ended=True), ()",
    ),
    Mutant(
        "a member verifies its owner znodes on a server that may lag",
        _OWNER_ZNODES,
        "        await self._writer.prove()\n        gone = ",
        "        gone = ",
        "tests/sim/test_claims.py",
    ),
    # Releases
    Mutant(
        "a release does not commit the finished offset",
        _OFFSET_TRACKER,
        "is_due = (state.unreadable or offset != state.committed) and not state.outdated",
        "is_due = False",
    ),
    Mutant(
        "a release overwrites an offset that an operator has set",
        _OWNER_ZNODES,
        "return (self._offsets.write(partition, decision.offset, decision.version), deletion)",
        "return (self._offsets.write(partition, decision.offset, -1), deletion)",
    ),
    Mutant(
        "a release with something to commit deletes the owner znode alone",
        _OWNER_ZNODES,
        "return (self._offsets.write(partition, decision.offset, decision.version), deletion)",
        "return (deletion,)",
    ),
    # Static members, offsets that operators set
    Mutant(
        "a replaced member keeps its partitions and claims more",
        _CLAIMS,
        "replace(claims, leaving=True, replaced=True)",
        "replace(claims, replaced=True)",
        "tests/unit/group/member/test_claims.py",
    ),
    Mutant(
        "an idle owner does not adopt an offset that an operator has set",
        _OWNED_PARTITIONS,
        "        await self._offsets.owned.adopt_foreign_offsets(self._owned)\n",
        "",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "an offset that an operator has set counts as one that a broker stored for the member",
        _PARTITION_OFFSETS,
        "or stored.offset == self.requested:",
        "or self.requested is not None:",
        f"{ON_SERVERS}_resets.py::test_a_busy_owner_adopts_a_reset",
    ),
    # Drains, assignments, audits
    Mutant(
        "a drain does not wait for records in flight",
        _OWNED_PARTITIONS,
        "asyncio.ensure_future(self._handler.drained(partitions))",
        "asyncio.ensure_future(asyncio.sleep(0))",
    ),
    Mutant(
        "a revocation stops the delivery of partitions that stay",
        _OWNED_PARTITIONS,
        "busy = self._handler.stop(partitions)",
        "busy = self._handler.stop(self._owned() | partitions) & partitions",
    ),
    Mutant(
        "an absent member assignment revokes all partitions",
        _OWNED_PARTITIONS,
        "            return claims.AssignmentRead(None)\n        try:",
        "            return claims.AssignmentRead(frozenset())\n        try:",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "an unreadable member assignment revokes all partitions",
        _OWNED_PARTITIONS,
        '            self._metrics.count("znodes_unreadable")\n            return claims.AssignmentRead(None)',
        '            self._metrics.count("znodes_unreadable")\n            return claims.AssignmentRead(frozenset())',
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a member ignores an assignment whose generation is lower than that of an earlier one",
        _OWNED_PARTITIONS,
        "        if found.member_id == self._context.member_id:\n",
        '        self._newest = max(getattr(self, "_newest", 0), found.generation)\n'
        "        if found.generation < self._newest:\n"
        "            return claims.AssignmentRead(None)\n"
        "        if found.member_id == self._context.member_id:\n",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a dynamic member stops because the assignment in its slot names another member",
        _OWNED_PARTITIONS,
        "is_replaced = self._config.instance_id and await",
        "is_replaced = await",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a member reads its assignment without a watch",
        _OWNED_PARTITIONS,
        "claims.Replaced:\n        node = await self._session.get(self._assignment_path, self._assignment_changed)\n",
        "claims.Replaced:\n        node = await self._session.get(self._assignment_path)\n",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a hint during each read of the assignment postpones the audit for ever",
        _OWNED_PARTITIONS,
        "if loop.time() >= audit_due_s:",
        "if loop.time() >= audit_due_s and not self._due.is_set():",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a hint during a read of the assignment is forgotten",
        _OWNED_PARTITIONS,
        "            self._due.clear()\n            read = await self._read_assignment()\n",
        "            read = await self._read_assignment()\n            self._due.clear()\n",
        "tests/sim/test_stale_reads.py",
    ),
    Mutant(
        "a member uses start positions that it read before the topic was created again",
        _OWNED_PARTITIONS,
        "if created != before and any(start.created < created for start in starts.values()):",
        "if False:",
        "tests/sim/test_stale_reads.py",
    ),
    Mutant(
        "an unexpected error ends the automatic commits",
        "clients/connected/auto_commit.py",
        "            except Exception as error:\n                self._failed(error)",
        "            except KielGroupsError as error:\n                self._failed(error)",
        "tests/unit/clients/connected/test_auto_commit.py",
    ),
    Mutant(
        "a member does not audit unless it gets a hint",
        _OWNED_PARTITIONS,
        "asyncio.timeout_at(audit_due_s)",
        "asyncio.timeout_at(None)",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "every hint restarts the interval of the audit",
        _OWNED_PARTITIONS,
        "            self._due.clear()\n",
        "            self._due.clear()\n            audit_due_s = loop.time() + self._context.audit_interval_s()\n",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "the audit does not find that an owner znode was deleted",
        _OWNED_PARTITIONS,
        "gone = await self._owner_znodes.verify(self._owned())",
        "gone: frozenset[TopicPartition] = frozenset()",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "another session's owner znode counts as the member's own claim",
        _OWNER_ZNODES,
        "if node is not None and node.owner == self._session.id)",
        "if node is not None)",
    ),
    Mutant(
        "an owner does not notice that its topic was created again",
        "coordination/offsets/topic_incarnations.py",
        "        if before is not None and seen != before:\n",
        "        if False:\n",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "the read of a topic on a lost session is repeated without a pause",
        "coordination/offsets/topic_incarnations.py",
        "                except SessionLostError:\n",
        "                except KeyError:\n",
        "tests/unit/coordination/offsets/test_topic_incarnations.py",
    ),
    # Joins, and the application's listener
    Mutant(
        "a member joins while foreign members are in the group",
        _ADMISSION,
        "    await _check_foreign(session, layout)\n",
        "",
        "tests/sim/test_admission.py",
    ),
    Mutant(
        "a member joins although its settings differ from the group's",
        _ADMISSION,
        "if differences := mine.differences(group):",
        "if (differences := mine.differences(group)) and False:",
        "tests/sim/test_admission.py",
    ),
    Mutant(
        "the claim limit ignores the length of the chroot",
        "group/leader/claim_limit.py",
        "left -= chroot_bytes + len(layout.owner(partition))",
        "left -= len(layout.owner(partition))",
        "tests/unit/group/leader/test_claim_limit.py",
    ),
    Mutant(
        "two hooks of a listener run at the same time",
        _LISTENER_CALLS,
        "        async with self._lock:\n            task",
        "        if True:\n            task",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    Mutant(
        "a revocation without a hook does not wait for the running hook",
        _LISTENER_CALLS,
        "            async with self._lock:\n                pass\n",
        "            pass\n",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    Mutant(
        "a partition whose revoked hook has completed is reported as lost, too",
        _LISTENER_CALLS,
        "unreported = frozenset(partitions) - self._revoked",
        "unreported = frozenset(partitions)",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    Mutant(
        "the loss of a later claim is not reported",
        _LISTENER_CALLS,
        "        self._revoked.difference_update(partitions)\n\n    async def revoked",
        "\n    async def revoked",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    Mutant(
        "on_partitions_lost waits for the hook that is running",
        _LISTENER_CALLS,
        "            running.task.cancel()\n",
        "            pass\n",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    # Releases by force
    Mutant(
        "a release by force does not delete the member znode",
        _FORCE_RELEASE,
        "for path in (layout.member(member_id), layout.consumer_id(member_id)):",
        "for path in (layout.consumer_id(member_id),):",
        "tests/sim/test_releases.py",
    ),
    Mutant(
        "a release by force deletes owner znodes without waiting for the end of the lease",
        _FORCE_RELEASE,
        "    while waited_ms < wait_ms and",
        "    while False and",
        "tests/sim/test_releases.py",
    ),
    Mutant(
        "a release by force accepts a wait that is shorter than the member's session timeout",
        _FORCE_RELEASE,
        "wait_ms = max(granted_ms, wait_ms or 0)",
        "wait_ms = granted_ms if wait_ms is None else wait_ms",
        "tests/sim/test_releases.py",
    ),
    Mutant(
        "a release by force deletes the owner znode of a later claim",
        _FORCE_RELEASE,
        "if stat is not None and stat.czxid == czxid:",
        "if stat is not None:",
        "tests/sim/test_releases.py",
    ),
    Mutant(
        "a member whose znode was deleted stops because of its dead predecessor's assignment",
        "coordination/member/owned_partitions.py",
        "is_replaced = self._config.instance_id and await self._session.exists(self._member_path) is not None",
        "is_replaced = self._config.instance_id",
        "tests/sim/test_member_assignments.py",
    ),
    # What a session asks of its member
    Mutant(
        "a member does not restore its deleted consumer id",
        _MEMBER_ROLE,
        "        await self.registration.restore_consumer_id()\n",
        "        pass\n",
        "tests/sim/test_registration.py",
    ),
    Mutant(
        "a member does not read its assignment again after a reconnection",
        _MEMBER_ROLE,
        "        self.owned_partitions.recheck()\n",
        "        pass\n",
        "tests/sim/test_reconnection.py",
    ),
)
