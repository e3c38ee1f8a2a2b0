"""Mutants of worker groups: what the leader assigns, and what a worker does with its assignment."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_PROTOCOL = "wire/groups/connect_protocol.py"
_SNAPSHOT = "workers/values/config_snapshot.py"
_ORDER = "workers/allocation/work_order.py"
_ROTATION = "workers/allocation/work_rotation.py"
_RETENTION = "workers/allocation/work_retention.py"
_READS = "workers/coordination/config_reads.py"
_ASSIGNER = "workers/coordination/work_assigner.py"
_PROTOCOLS = "workers/coordination/worker_protocols.py"
_HOOKS = "workers/coordination/worker_hooks.py"
_REQUESTS = "clients/coordinator/membership_requests.py"

_PROTOCOL_TEST = "tests/unit/wire/groups/test_connect_protocol.py"
_SNAPSHOT_TEST = "tests/unit/workers/values/test_config_snapshot.py"
_ROTATION_TEST = "tests/unit/workers/allocation/test_work_rotation.py"
_LAWS = "tests/property/test_work_allocation_laws.py"
_ASSIGNER_TEST = "tests/unit/workers/coordination/test_work_assigner.py"
_HOOKS_TEST = "tests/unit/workers/coordination/test_worker_hooks.py"
_UNSYNCED_TEST = "tests/unit/workers/coordination/test_unsynced_workers.py"
_REQUESTS_TEST = "tests/unit/clients/coordinator/test_membership_requests.py"

MUTANTS = (
    # The bytes
    Mutant(
        "a worker reads a task number below that of the connector",
        _PROTOCOL,
        "    if task < CONNECTOR_TASK:\n",
        "    if False:\n",
        _PROTOCOL_TEST,
    ),
    Mutant(
        "bytes after the end of a worker's metadata are accepted",
        _PROTOCOL,
        "    if version == 0:\n        reader.end()\n",
        "    pass\n",
        _PROTOCOL_TEST,
    ),
    Mutant(
        "a failed assignment is taken for an empty one",
        _PROTOCOL,
        "return self.error != _NO_ERROR",
        "return False",
        _PROTOCOL_TEST,
    ),
    # The allocation
    Mutant(
        "tasks of an inconsistent task set are assigned",
        _SNAPSHOT,
        "if entry is None or entry.problem or entry.tasks is None:",
        "if entry is None or entry.tasks is None:",
        _SNAPSHOT_TEST,
    ),
    Mutant(
        "tasks are assigned before connectors",
        _ORDER,
        "return [*connectors, *sorted(work for work in set(works) if isinstance(work, TaskId))]",
        "return [*sorted(work for work in set(works) if isinstance(work, TaskId)), *connectors]",
        _ROTATION_TEST,
    ),
    Mutant(
        "work is assigned in the order in which members have joined",
        _ROTATION,
        "for member in sorted(members)}",
        "for member in members}",
        _ROTATION_TEST,
    ),
    Mutant(
        "the members that had least get one piece more",
        _RETENTION,
        "key=lambda member: (-len(kept[member]), member)",
        "key=lambda member: (len(kept[member]), member)",
        _LAWS,
    ),
    Mutant(
        "a sticky member keeps more than its share",
        _RETENTION,
        "        moving += its[quotas[member] :]\n        del its[quotas[member] :]\n",
        "        pass\n",
        _LAWS,
    ),
    # The leader
    Mutant(
        "the leader assigns by a configuration that is behind",
        _ASSIGNER,
        "return self._config.newest if self._config.has(target) else None",
        "return self._config.newest",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "a leader that is behind does not read once more",
        _ASSIGNER,
        "            await self._config.fresh(current=True)\n",
        "            pass\n",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "a leader that is behind asks a server that lags behind, too",
        _ASSIGNER,
        "await self._config.fresh(current=True)",
        "await self._config.fresh()",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "the leader reads once more although it has the largest offset",
        _ASSIGNER,
        "        if not self._config.has(target):\n",
        "        if True:\n",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "the leader assigns by the smallest offset of all",
        _ASSIGNER,
        "target = max((state.offset for state in states.values()), default=NO_OFFSET)",
        "target = min((state.offset for state in states.values()), default=NO_OFFSET)",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "the leader names the largest offset in place of that by which it assigns",
        _ASSIGNER,
        "empty = WorkerAssignment(leader, self._url, snapshot.offset)",
        "empty = WorkerAssignment(leader, self._url, target)",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "a mismatch is sent to the leader only",
        _ASSIGNER,
        "            return dict.fromkeys(members, failed)\n",
        "            return dict.fromkeys([leader], failed)\n",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "a failed assignment is sent as an empty one",
        _ASSIGNER,
        "WorkerAssignment(leader, self._url, target, is_failed=True)",
        "WorkerAssignment(leader, self._url, target)",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "a worker without work gets no assignment",
        _ASSIGNER,
        "encode_assignment(_with_works(empty, allocation.get(member, ()))) for member in members}",
        "encode_assignment(_with_works(empty, its)) for member, its in allocation.items() if its}",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "a member with unreadable metadata fails the leader",
        _ASSIGNER,
        "except ProtocolError as error:",
        "except AllocatorError as error:",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "the owners of a former assignment stay known after a mismatch",
        _ASSIGNER,
        "        self.drop()\n        states = self._states",
        "        states = self._states",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "work that a removed worker names counts as its own",
        _ASSIGNER,
        "key=lambda member: (states[member].generation, member)",
        "key=lambda member: member",
        _ASSIGNER_TEST,
    ),
    Mutant(
        "the sticky protocol is offered last",
        _PROTOCOLS,
        "protocols.insert(0, ",
        "protocols.insert(1, ",
        _HOOKS_TEST,
    ),
    # The worker
    Mutant(
        "a worker joins with the configuration of its last join",
        _HOOKS,
        "snapshot = await self.config.fresh()",
        "snapshot = self.config.newest or await self.config.fresh()",
        _HOOKS_TEST,
    ),
    Mutant(
        "a configuration that cannot be read fails the member",
        _READS,
        "except (KielGroupsError, TimeoutError) as error:",
        "except TimeoutError as error:",
        _HOOKS_TEST,
    ),
    Mutant(
        "a read that hangs holds a join for ever",
        _READS,
        "            async with asyncio.timeout(_READ_LIMIT_S):\n",
        "            async with asyncio.timeout(None):\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a worker that is behind starts its work",
        _HOOKS,
        "        if not await self.config.reach(read.offset, _PATIENCE_S):\n",
        "        if False:\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a worker that stays behind never leaves",
        _READS,
        "            if passed_s >= limit_s:\n",
        "            if False:\n",
        _UNSYNCED_TEST,
    ),
    Mutant(
        "a leader that stays behind never leaves",
        _HOOKS,
        "        while self._runtime.boot_time_s() - began_s < _PATIENCE_S:\n",
        "        while True:\n",
        _UNSYNCED_TEST,
    ),
    Mutant(
        "a worker that has left joins again before it can read",
        _HOOKS,
        "        await self.config.readable(offset)\n",
        "",
        _UNSYNCED_TEST,
    ),
    Mutant(
        "a worker is not notified of a failed assignment",
        _HOOKS,
        "        await self._listener.on_assigned(assignment, generation)\n        factor",
        "        factor",
        _HOOKS_TEST,
    ),
    Mutant(
        "a failed assignment is revoked",
        _HOOKS,
        "        if read.is_failed:\n",
        "        self._has_started = True\n        if read.is_failed:\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a worker joins again at once after a mismatch",
        _HOOKS,
        "            await asyncio.sleep(self._pauses.next_s() * factor)\n",
        "            await asyncio.sleep(0.001)\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "the other workers join again as early as the leader after a mismatch",
        _HOOKS,
        "factor = 1 if self._attached.leads else _FOLLOWER_FACTOR",
        "factor = 1",
        _HOOKS_TEST,
    ),
    Mutant(
        "a leader that is still behind joins again",
        _HOOKS,
        "            if self.config.has(assignment.offset):\n",
        "            if True:\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a worker does not read the configuration again after a mismatch",
        _HOOKS,
        "            await self.config.fresh(current=True)\n            # A join",
        "            # A join",
        _HOOKS_TEST,
    ),
    Mutant(
        "no worker joins again after a mismatch",
        _HOOKS,
        "                self._attached.request_rejoin()\n",
        "",
        _HOOKS_TEST,
    ),
    Mutant(
        "pauses after mismatches stay long after an assignment",
        _HOOKS,
        "        self._pauses.reset()\n",
        "",
        _HOOKS_TEST,
    ),
    Mutant(
        "work is not revoked before a rejoin",
        _HOOKS,
        "            await self._listener.on_revoked(assignment.leader, assignment.connectors, assignment.tasks)\n",
        "            pass\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "an assignment that has ended stays known",
        _HOOKS,
        "self.assignment, self._gate, self._has_started = None, None, False",
        "self._gate, self._has_started = None, False",
        _HOOKS_TEST,
    ),
    Mutant(
        "the leader knows owners while work is given back",
        _HOOKS,
        "        # Before the work is given back: requests to its owners would fail.\n        self._assigner.drop()\n",
        "",
        _HOOKS_TEST,
    ),
    Mutant(
        "a former leader names owners",
        _HOOKS,
        "if self.is_rebalancing or not self._attached.leads:",
        "if self.is_rebalancing:",
        _HOOKS_TEST,
    ),
    Mutant(
        "the leader names owners while a rejoin is due",
        _HOOKS,
        "if self.is_rebalancing or not self._attached.leads:",
        "if not self._attached.leads:",
        _HOOKS_TEST,
    ),
    Mutant(
        "a worker is not notified that its membership is lost",
        _HOOKS,
        "        if had_started:\n            self._listener.on_lost()\n",
        "",
        _HOOKS_TEST,
    ),
    Mutant(
        "work that starts while the membership is lost is not stopped",
        _HOOKS,
        "        self._has_started = True\n        await self._listener.on_assigned(read, generation)\n",
        "        await self._listener.on_assigned(read, generation)\n        self._has_started = True\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a worker is notified of the loss of work that it has not started",
        _HOOKS,
        "        if had_started:\n",
        "        if True:\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "the gauges of a lost assignment stay",
        _HOOKS,
        "        self.assignment, self._gate, self._has_started = None, None, False\n        self._set_gauges()\n",
        "        self.assignment, self._gate, self._has_started = None, None, False\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a worker has no gauges before its first assignment",
        _HOOKS,
        "        self._last_generation = -1\n        self._set_gauges()\n",
        "        self._last_generation = -1\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a member that is given up while its hooks read joins later",
        _REQUESTS,
        "        self._sending = reading = asyncio.ensure_future(self._hooks.protocols())\n",
        "        reading = asyncio.ensure_future(self._hooks.protocols())\n",
        _REQUESTS_TEST,
    ),
)
