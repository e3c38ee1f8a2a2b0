"""
The invariants of a simulated group of workers.

============================  ========================================================================================
claims                        Work is polled, and delivers, while the owner znode of its fencing token exists. After an
                              operator has deleted that znode, the worker has some time to notice it. No process runs
                              the same work twice at a time. Only its owner, its session's end or an operator deletes an
                              owner znode.
writes                        Statuses, source offsets and task configurations are written by the owner of the work.
source offsets                They are not beyond what was delivered, and do not move back.
configuration                 Its offset grows by one with each change. Work is not started with an older configuration
                              than that of the assignment of its worker.
failures                      Work is FAILED for a reason that the scenario contains. No supervisor fails.
the end                       Within a time limit after the last fault, each connector that is STARTED runs once with
                              its newest settings, and its tasks, too; no other work runs. Statuses and owner znodes
                              say so. Tasks deliver. Workers that leave keep no task and no znode.
============================  ========================================================================================
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kiel_groups.errors import KielGroupsError, ProtocolError
from kiel_groups.group.znodes.layout import CONNECTOR, connector_of
from kiel_groups.group.znodes.worker_contents import (
    SourceOffset,
    StoredConnector,
    WorkStatus,
    parse_config_offset,
)
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Change, Kind
from tests.sim.invariants.invariant import Violation
from tests.sim.programs.program_process import is_expected
from tests.sim.worker_groups.recording_connectors import MISBEHAVES, Run

if TYPE_CHECKING:
    from tests.sim.worker_groups.sim_worker import SimWorker
    from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["WorkerChecker"]

#: How long after a close tasks that it has cancelled may take to end, in seconds.
ENDING_S = 3.0
#: How long writes may be under way after an operator has deleted the owner znode that they check, in seconds: a session
#: whose connection has stalled lasts as long.
RELEASING_S = 10.0
#: How long a worker may take to notice that an operator has deleted its owner znode, in seconds.
NOTICED_S = 15.0
#: Texts of which the trace of failed work has one.
REASONS = (MISBEHAVES, "did not stop within", "/connect/connectors/", "/connect: ")


class _Claim(NamedTuple):
    session_id: int
    token: int


class WorkerChecker:
    """Checks a run: workers and the ensemble report what happens."""

    def __init__(self, world: WorkerWorld) -> None:
        self._world = world
        self._layout = world.workers_layout
        self.deliveries = self.stores = self.changes = 0
        #: The claims by the work, and when an operator has deleted the claim with a token.
        self._claims: dict[str, _Claim] = {}
        self._deleted_s: dict[int, float] = {}
        #: By the work: the session whose claim an operator has deleted last, and when.
        self._robbed: dict[str, tuple[int, float]] = {}
        #: The runs of connectors and tasks that have not ended.
        self.runs: defaultdict[str, list[Run]] = defaultdict(list)
        #: The number up to which all numbers of a task are delivered, and those that are delivered beyond it.
        self._delivered: defaultdict[str, int] = defaultdict(int)
        self._beyond: defaultdict[str, set[int]] = defaultdict(set)
        self._stored: dict[str, int] = {}
        #: The configuration offset, the connectors, and the revisions of each by the offset of the change.
        self._offset = 0
        self._connectors: dict[str, StoredConnector] = {}
        self._revisions: defaultdict[str, list[tuple[int, dict[str, int]]]] = defaultdict(list)

    def violation(self, text: str) -> Violation:
        """Create a violation, and record it, so that it ends the run even if the product's code catches it."""
        violation = Violation(text)
        self._world.timeline.failures.append(violation)
        return violation

    def step(self) -> None:
        """Do nothing: all checks follow reports."""

    # Reports of the ensemble

    def committed(self, entry: Entry) -> None:
        """Check what was written."""
        layout = self._layout
        if entry.error is not None:
            return
        claims = dict(self._claims)
        for change in entry.changes:
            folder, _, rest = change.path.removeprefix(f"{layout.config}/").partition("/")
            if change.path == layout.config:
                self._config_committed(change)
            elif not rest:
                continue
            elif folder == "owners" and "/" in rest:
                self._owner_committed(entry, change, _work_of(rest))
        for change in entry.changes:
            folder, _, rest = change.path.removeprefix(f"{layout.config}/").partition("/")
            if not rest or change.path == layout.config:
                continue
            if folder == "connectors":
                self._connector_committed(entry, change, claims)
            elif folder == "status":
                self._status_committed(entry, change, claims)
            elif folder == "offsets" and "/" in rest:
                self._source_offset_committed(entry, change, claims)

    def _is_operator(self, entry: Entry) -> bool:
        client_id = self._world.operator.client_id
        return client_id is not None and client_id[0] == entry.session_id

    def _owner_committed(self, entry: Entry, change: Change, work: str) -> None:
        if change.kind is Kind.CREATED:
            self._claims[work] = _Claim(change.znode.owner, change.znode.czxid)
        elif change.kind is Kind.DELETED:
            del self._claims[work]
            if self._is_operator(entry):
                self._deleted_s[change.znode.czxid] = self._world.timeline.now_s
                self._robbed[work] = (change.znode.owner, self._world.timeline.now_s)
            elif entry.session_id != change.znode.owner:
                if self._was_robbed(entry, work):
                    # The worker was releasing its own.
                    self._deleted_s[change.znode.czxid] = self._world.timeline.now_s
                    return
                raise self.violation(f"session {entry.session_id:x} deletes the owner znode of {work}")

    def _was_robbed(self, entry: Entry, work: str) -> bool:
        """
        Return whether an operator has deleted the claim of this writer, whose writes may still be under way.

        ZooKeeper cannot check whose znode a transaction checks or deletes, and another worker may have claimed the work
        before the writer notices the deletion.
        """
        robbed, at_s = self._robbed.get(work, (0, 0.0))
        return entry.session_id == robbed and self._world.timeline.now_s < at_s + RELEASING_S

    def _config_committed(self, change: Change) -> None:
        if change.kind is Kind.CREATED:
            return
        try:
            offset = parse_config_offset(change.znode.data, change.path)
        except ProtocolError:
            return
        if change.znode.data:
            self.changes += 1
            if offset != self._offset + 1:
                raise self.violation(f"configuration offset {offset} follows {self._offset}")
            self._offset = offset

    def _connector_committed(self, entry: Entry, change: Change, claims: dict[str, _Claim]) -> None:
        name = connector_of(change.path.rpartition("/")[2])
        assert name is not None
        before = self._connectors.pop(name, None)
        if change.kind is Kind.DELETED:
            return
        try:
            stored = StoredConnector.parse(name, change.znode.data, change.path)
        except ProtocolError:
            return
        self._connectors[name] = stored
        if before is not None and stored.tasks != before.tasks and stored.tasks is not None:
            self._check_owner(entry, name, claims, "the tasks")
        revisions = {name: int(stored.config["rev"])}
        for number, task in enumerate(stored.tasks or ()):
            revisions[f"{name}-{number}"] = int(task["rev"])
        self._revisions[name].append((stored.offset, revisions))

    def _status_committed(self, entry: Entry, change: Change, claims: dict[str, _Claim]) -> None:
        if change.kind is Kind.DELETED or self._is_operator(entry):
            return
        try:
            status = WorkStatus.parse(change.znode.data, change.path)
        except ProtocolError:
            return
        work = _work_of(change.path.removeprefix(f"{self._layout.statuses}/"))
        self._check_owner(entry, work, claims, "the status")
        if status.state == "FAILED" and not any(reason in status.trace for reason in REASONS):
            raise self.violation(f"{work} is FAILED: {status.trace}")

    def _source_offset_committed(self, entry: Entry, change: Change, claims: dict[str, _Claim]) -> None:
        offset = SourceOffset.parse(change.znode.data, change.path)
        work, following = str(offset.partition["task"]), int(offset.offset["next"])  # type: ignore[arg-type]
        if change.kind is Kind.DELETED:
            self._stored.pop(work, None)
            return
        self.stores += 1
        self._check_owner(entry, work, claims, "the source offset")
        if following - 1 > self._delivered[work]:
            raise self.violation(f"source offset {following} of {work} is beyond {self._delivered[work]}")
        if following < self._stored.get(work, 0):
            raise self.violation(f"source offset {following} of {work} follows {self._stored[work]}")
        self._stored[work] = following

    def _check_owner(self, entry: Entry, work: str, claims: dict[str, _Claim], what: str) -> None:
        claim = claims.get(work)
        if claim is not None and self._was_robbed(entry, work):
            return
        if claim is None or claim.session_id != entry.session_id:
            raise self.violation(f"session {entry.session_id:x} writes {what} of {work}, which belongs to {claim}")

    # Reports of connectors and tasks

    def starting(self, run: Run) -> None:
        """Check the start of a run."""
        for other in self.runs[run.work]:
            if other.worker is run.worker:
                raise self.violation(f"{run.worker.name} starts {run.work} beside its run with token {other.token}")
        self.runs[run.work].append(run)
        assigned = run.worker.herder.assigned_offset
        changes = self._revisions[run.work.partition("-")[0]]
        known = sum(offset <= assigned for offset, _ in changes)
        # Requests of users may be written in another order than that of their revisions.
        allowed = [revisions.get(run.work, 0) for _, revisions in changes[max(0, known - 1) :]]
        if known and run.revision not in allowed and run.revision < allowed[0]:
            raise self.violation(
                f"{run.worker.name} starts {run.work} with revision {run.revision}; that of its assignment is"
                f" {allowed[0]}"
            )

    def began(self, run: Run, following: int) -> None:
        """Check where a task begins."""
        if following - 1 > self._delivered[run.work]:
            raise self.violation(f"{run.work} begins at {following}, and {self._delivered[run.work]} was delivered")

    def stopping(self, run: Run) -> None:
        """Note the end of a run."""
        with suppress(ValueError):
            self.runs[run.work].remove(run)

    def polling(self, run: Run) -> None:
        """Check that a task may read from its source."""
        self.check_claim(run.work, run.token, "is polled")

    def delivering(self, work: str, token: int, number: int) -> None:
        """Check that a task may deliver."""
        self.deliveries += 1
        self.check_claim(work, token, f"delivers {number}")
        for run in self.runs[work]:
            if run.token == token:
                run.delivered = number

    def check_claim(self, work: str, token: int, what: str) -> None:
        """Check that a task may do something now."""
        claim = self._claims.get(work)
        if claim is not None and claim.token == token:
            return
        deleted_s = self._deleted_s.get(token)
        # A blocked event loop notices nothing.
        since_s = max(deleted_s or 0.0, self._world.present.process.blocked_until_s)
        if deleted_s is None or self._world.timeline.now_s > since_s + NOTICED_S:
            raise self.violation(
                f"{work} {what} in {self._world.present.name} with token {token}; its claim is {claim}"
            )

    def delivered(self, work: str, number: int) -> None:
        """Note what a broker has stored."""
        beyond = self._beyond[work]
        if number > self._delivered[work]:
            beyond.add(number)
        while self._delivered[work] + 1 in beyond:
            self._delivered[work] += 1
            beyond.remove(self._delivered[work])

    # Reports of workers

    def failed(self, worker: SimWorker, error: KielGroupsError) -> None:
        """Check an error with which a worker fails for good."""
        if not is_expected(error):
            raise self.violation(f"{worker.name} fails: {type(error).__name__}: {error}")

    def killed(self, worker: SimWorker) -> None:
        """Forget the runs of a process."""
        for runs in self.runs.values():
            runs[:] = [run for run in runs if run.worker is not worker]

    def closed(self, worker: SimWorker) -> None:
        """Check soon that a worker that has left keeps no task, except of plugins that hang."""
        self._world.timeline.after(ENDING_S, self._check_tasks, worker)

    def _check_tasks(self, worker: SimWorker) -> None:
        hangs = any(run.worker is worker and self._may_hang(run.work) for runs in self.runs.values() for run in runs)
        if worker.process.killed or worker.process.frozen or hangs:
            return
        left = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(worker.process.loop)]
        if left:
            raise self.violation(f"{worker.name} has left, and keeps {len(left)} tasks: {left}")

    def _may_hang(self, work: str) -> bool:
        """Return whether the plugin of some work hangs, or has hung until a moment ago."""
        ended_s = self._world.hung_until_s.get(work, -math.inf)
        return work in self._world.hanging or self._world.timeline.now_s < ended_s + ENDING_S

    def progress(self) -> dict[str, int]:
        """Return what each running task of a source has delivered."""
        sinks = self._world.scenario.sinks
        return {
            run.work: run.delivered
            for runs in self.runs.values()
            for run in runs
            if run.token and run.work.rpartition("-")[0] not in sinks
        }

    def running_sinks(self) -> list[str]:
        """Return the sinks that have to run, and have tasks."""
        return [
            name
            for name, stored in sorted(self._connectors.items())
            if name in self._world.scenario.sinks and stored.target == "STARTED" and stored.tasks
        ]

    # Conditions: each returns what is missing, or ""

    def unsettled(self) -> str:
        """Return which work does not run as the configuration says."""
        if self._world.is_changing:
            return "the last change is not written"
        tree, layout = self._world.ensemble.tree, self._layout
        expected: dict[str, tuple[str, int]] = {}
        for znode in tree.children(layout.connectors):
            if missing := self._add_expected(connector_of(znode) or "", expected):
                return missing
        for work in sorted(expected.keys() | self._claims.keys() | self.runs.keys()):
            if missing := self._unsettled_work(work, *expected.get(work, ("", 0))):
                return missing
        for name in tree.children(layout.statuses):
            if name not in tree.children(layout.connectors):
                return f"a status of {name} is left"
        for worker in self._world.running:
            if worker.herder.hooks.is_rebalancing:
                return f"{worker.name} is rebalancing"
            if worker.metrics.total("work_supervisors_failed"):
                return f"a supervisor of {worker.name} has failed"
        return ""

    def _add_expected(self, name: str, expected: dict[str, tuple[str, int]]) -> str:
        """Add the state and the revision of each piece of work of a connector."""
        stored = self._connectors.get(name)
        if stored is None:
            expected[name] = ("FAILED", 0)
            return ""
        is_started, revision = stored.target == "STARTED", int(stored.config["rev"])
        state = "RUNNING" if is_started else "PAUSED"
        expected[name] = (state, revision)
        wanted = self._world.task_configs(name, revision, int(stored.config["tasks.max"]))
        if is_started and list(stored.tasks or ()) != list(wanted):
            return f"{name} has the tasks {stored.tasks}, and wants {wanted}"
        for number, task in enumerate(stored.tasks or ()):
            expected[f"{name}-{number}"] = (state, int(task["rev"]))
        return ""

    def _unsettled_work(self, work: str, state: str, revision: int) -> str:
        owners = [each for each in self._world.running if self._owns(each, work)]
        runs = [(run.worker.name, run.revision) for run in self.runs[work]]
        if not state:
            return f"{work} is claimed by {owners}, and runs as {runs}" if work in self._claims or runs else ""
        if not owners:
            return f"{work} has no owner, but {self._claims.get(work)}"
        name = owners[0].name
        if runs != ([(name, revision)] if state == "RUNNING" else []):
            return f"{work} runs as {runs}; expected {state} of revision {revision} in {name}"
        connector, _, number = work.partition("-")
        path = self._layout.status(connector, int(number) if number else None)
        znode = self._world.ensemble.tree.znodes.get(path)
        if znode is None:
            return f"{work} has no status"
        try:
            status = WorkStatus.parse(znode.data, path)
        except ProtocolError as error:
            return str(error)
        if (status.state, status.worker) != (state, f"{name}:8083"):
            return f"{work} has {status}; expected {state} in {name}"
        return ""

    def _owns(self, worker: SimWorker, work: str) -> bool:
        claim = self._claims.get(work)
        return claim is not None and claim.session_id == worker.session_id

    def stuck(self, before: dict[str, int]) -> str:
        """Return which running task has delivered nothing since ``progress`` returned ``before``."""
        for work, number in self.progress().items():
            if number <= before.get(work, 0):
                return f"{work} delivers nothing after {number}"
        return ""

    def unclosed(self) -> str:
        """Return which worker has not left, and which znode is left."""
        for worker in self._world.consumers:
            if worker.closing and not (worker.closed or worker.process.killed):
                return f"{worker.name} has not left"
        layout, tree = self._world.layout, self._world.ensemble.tree
        left = [
            path for folder in (layout.members, layout.election, self._layout.workers) for path in tree.children(folder)
        ]
        return f"znodes are left: {left}, claims {self._claims}" if left or self._claims else ""


def _work_of(path: str) -> str:
    """Return the text of the work whose znode has this path below its folder: ``c``, ``c/connector`` or ``c/0``."""
    connector, _, number = path.partition("/")
    return connector if number in {"", CONNECTOR} else f"{connector}-{number}"
