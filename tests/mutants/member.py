"""A member: its slice, its claims, and how it hands them over."""

from __future__ import annotations

from tests.mutants.mutant import ON_SERVERS, Mutant

__all__ = ["MUTANTS"]

_CLAIMING = "coordination/member/owner_znodes.py"
_HOLDING = "coordination/member/owned_partitions.py"
_CLAIMS = "group/member/claims.py"
_ADMISSION = "coordination/member/admission.py"
_LISTENING = "clients/delivery/listener_calls.py"
_FORCE_RELEASE = "admin/force_release.py"

MUTANTS = (
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
        "self._session.exists_many(paths, list(watchers.values()))",
        "self._session.exists_many(paths)",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a partition that is held before its position is read",
        _CLAIMS,
        "moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.OPENING)\n",
        "moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.HELD)\n",
        "tests/unit/group/member/test_claims.py",
    ),
    Mutant(
        "a claim that is kept although it is not wanted",
        _CLAIMS,
        "            move(partition, Phase.DRAINING)\n",
        "            pass\n",
    ),
    Mutant(
        "a lost session that goes on handing out",
        _CLAIMS,
        "return replace(claims, phases={}, ended=True), ((Lose(lost),) if lost else ())",
        "return replace(claims, phases={}, ended=True), ()",
    ),
    Mutant(
        "claims that are looked at on a server that lags",
        _CLAIMING,
        "        await self._writer.prove()\n        mine, _ = await self._owned_and_free(partitions)\n",
        "        mine, _ = await self._owned_and_free(partitions)\n",
        "tests/sim/test_claims.py",
    ),
    # Hand-over
    Mutant(
        "a release without a commit",
        _CLAIMING,
        "if (state.unreadable or offset != state.committed) and not state.outdated:",
        "if False:",
    ),
    Mutant(
        "a release that overwrites an operator's reset",
        _CLAIMING,
        "return (self._store.write(partition, offset, state.version), deletion)",
        "return (self._store.write(partition, offset, -1), deletion)",
    ),
    Mutant(
        "a commit after the release",
        _CLAIMING,
        "return (self._store.write(partition, offset, state.version), deletion)",
        "return (deletion,)",
    ),
    # Static members, resets
    Mutant(
        "a member that was replaced and claims on",
        _CLAIMS,
        "replace(claims, leaving=True, replaced=True)",
        "replace(claims, replaced=True)",
        "tests/unit/group/member/test_claims.py",
    ),
    Mutant(
        "a reset that an idle owner does not see",
        _HOLDING,
        "        await self._offsets.adopt_foreign_offsets()\n",
        "",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a reset beside a broker's own write that is taken for that write",
        "coordination/offsets/broker_store.py",
        "if stored.version != versions[partition] and stored.offset != self._sent.get(partition)",
        "if False",
        f"{ON_SERVERS}_resets.py::test_a_busy_owner_adopts_a_reset",
    ),
    # What a slice says, and what nobody says
    Mutant(
        "a drain that does not wait for the application",
        _HOLDING,
        "asyncio.ensure_future(self._handler.drained(partitions))",
        "asyncio.ensure_future(asyncio.sleep(0))",
    ),
    Mutant(
        "a hand-over that stops what stays",
        _HOLDING,
        "busy = self._handler.stop(partitions)",
        "busy = self._handler.stop(self._owned() | partitions) & partitions",
    ),
    Mutant(
        "an absent slice that takes everything away",
        _HOLDING,
        "            return claims.AssignmentRead(None)\n        try:",
        "            return claims.AssignmentRead(frozenset())\n        try:",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "an unreadable slice that takes everything away",
        _HOLDING,
        '            self._metrics.count("znodes_unreadable")\n            return claims.AssignmentRead(None)',
        '            self._metrics.count("znodes_unreadable")\n            return claims.AssignmentRead(frozenset())',
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a member that follows rising generations only",
        _HOLDING,
        "        if found.member_id == self._member_id:\n",
        '        self._newest = max(getattr(self, "_newest", 0), found.generation)\n'
        "        if found.generation < self._newest:\n"
        "            return claims.AssignmentRead(None)\n"
        "        if found.member_id == self._member_id:\n",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a dynamic member that is stopped by another one's slice",
        _HOLDING,
        "is_replaced = self._config.instance_id and await",
        "is_replaced = await",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a slice that is read without a watch",
        _HOLDING,
        "claims.Replaced:\n        node = await self._session.get(self._assignment_path, self._look.set)\n",
        "claims.Replaced:\n        node = await self._session.get(self._assignment_path)\n",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "hints that come during each read and put the regular look off",
        _HOLDING,
        "if loop.time() >= audit_due_s:",
        "if loop.time() >= audit_due_s and not self._look.is_set():",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a hint that comes while the slice is read and that is forgotten",
        _HOLDING,
        "            self._look.clear()\n            read = await self._read_assignment()\n",
        "            read = await self._read_assignment()\n            self._look.clear()\n",
        "tests/sim/test_windows.py",
    ),
    Mutant(
        "positions of a topic that is created again before they are used",
        _HOLDING,
        "if created != before and any(start.created < created for start in starts.values()):",
        "if False:",
        "tests/sim/test_windows.py",
    ),
    Mutant(
        "an automatic commit that ends with its first surprise",
        "clients/delivery/connected_consumer.py",
        '            except Exception:\n                log.exception("an automatic commit failed',
        '            except KeyError:\n                log.exception("an automatic commit failed',
        "tests/unit/clients/delivery/test_automatic_commit.py",
    ),
    Mutant(
        "a member that looks only where it is told to",
        _HOLDING,
        "asyncio.timeout_at(audit_due_s)",
        "asyncio.timeout_at(None)",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a regular look that every hint puts off",
        _HOLDING,
        "            self._look.clear()\n",
        "            self._look.clear()\n"
        "            audit_due_s = loop.time() + jittered_s(self._config.reconcile_interval_ms)\n",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a claim that was deleted by hand and that nobody misses",
        _HOLDING,
        "gone = await self._owner_znodes.verify(self._owned())",
        "gone: frozenset[TopicPartition] = frozenset()",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "an owner znode of anybody that counts as one's own",
        _CLAIMING,
        "if node and node.owner == self._session.id}",
        "if node}",
    ),
    Mutant(
        "a topic created again under its owner that is read on",
        "coordination/offsets/topic_incarnations.py",
        "        if before is not None and seen != before:\n",
        "        if False:\n",
        "tests/sim/test_following.py",
    ),
    Mutant(
        "a look on a lost session that is made again without a pause",
        "coordination/offsets/topic_incarnations.py",
        "                except SessionLostError:\n",
        "                except KeyError:\n",
        "tests/unit/coordination/offsets/test_topic_incarnations.py",
    ),
    # Joining, and the application's callbacks
    Mutant(
        "a member that joins beside foreign ones",
        _ADMISSION,
        "    await _check_foreign(session, layout)\n",
        "",
        "tests/sim/test_admission.py",
    ),
    Mutant(
        "a member of other settings that joins",
        _ADMISSION,
        "if differences := mine.differences(group):",
        "if (differences := mine.differences(group)) and False:",
        "tests/sim/test_admission.py",
    ),
    Mutant(
        "a cap of claims that forgets the chroot",
        "group/leader/claim_limit.py",
        "left -= chroot_bytes + len(layout.owner(partition))",
        "left -= len(layout.owner(partition))",
        "tests/unit/group/leader/test_planner.py",
    ),
    Mutant(
        "two callbacks of a listener at once",
        _LISTENING,
        "        async with self._lock:\n",
        "        if True:\n",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    Mutant(
        "a loss that waits for the callback that runs",
        _LISTENING,
        "            running.task.cancel()\n",
        "            pass\n",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    # Releases by force
    Mutant(
        "a release by force that leaves the member where it is",
        _FORCE_RELEASE,
        "for path in (layout.member(member_id), layout.consumer_id(member_id)):",
        "for path in (layout.consumer_id(member_id),):",
        "tests/sim/test_releasing.py",
    ),
    Mutant(
        "a release by force that does not wait",
        _FORCE_RELEASE,
        "    while waited_ms < wait_ms and",
        "    while False and",
        "tests/sim/test_releasing.py",
    ),
    Mutant(
        "a release by force that waits as briefly as it is told",
        _FORCE_RELEASE,
        "wait_ms = max(granted_ms, wait_ms or 0)",
        "wait_ms = granted_ms if wait_ms is None else wait_ms",
        "tests/sim/test_releasing.py",
    ),
    Mutant(
        "a release by force that takes what is owned anew",
        _FORCE_RELEASE,
        "if stat is not None and stat.czxid == czxid:",
        "if stat is not None:",
        "tests/sim/test_releasing.py",
    ),
    Mutant(
        "a member whose znode was deleted and that stops for its dead predecessor",
        "coordination/member/owned_partitions.py",
        "is_replaced = self._config.instance_id and await self._session.exists(self._member_path) is not None",
        "is_replaced = self._config.instance_id",
        "tests/sim/test_following.py",
    ),
)
