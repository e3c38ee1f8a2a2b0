"""Convert between the values that workers share and what their znodes contain."""

from __future__ import annotations

import logging
from typing import NamedTuple

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.worker_contents import StoredConnector, StoredStatus
from kiel_groups.group.znodes.worker_layout import WorkerLayout
from kiel_groups.workers.values.config_snapshot import ConnectorEntry, TargetState
from kiel_groups.workers.values.work_ids import TaskId, Work
from kiel_groups.workers.values.work_status import WorkState, WorkStatus

__all__ = ["Written", "entry_of", "owner_path", "status_data", "status_of", "status_path"]

log = logging.getLogger(__name__)


#: The command that replaces all settings of a connector.
_REPLACE = "'kiel-groups connectors config NAME --file FILE'"


class Written(NamedTuple):
    """The data of a znode, and the zxid of the transaction that wrote it."""

    data: bytes
    mzxid: int


def _task_of(work: Work) -> int | None:
    return work.task if isinstance(work, TaskId) else None


def owner_path(layout: WorkerLayout, work: Work) -> str:
    """Return the path of the znode by which a worker claims a connector or a task."""
    return layout.owner(work.connector, _task_of(work))


def status_path(layout: WorkerLayout, work: Work) -> str:
    """Return the path of the status of a connector or a task."""
    return layout.status(work.connector, _task_of(work))


def entry_of(name: str, path: str, data: bytes, czxid: int) -> ConnectorEntry:
    """Return a connector's configuration; if its znode has garbage, an entry without settings that says what to do."""
    try:
        stored = StoredConnector.parse(name, data, path)
    except ProtocolError as error:
        problem = f"{error}; replace its settings ({_REPLACE}), or delete it"
        return ConnectorEntry(config={}, problem=problem, created=czxid)
    return ConnectorEntry(stored.config, TargetState(stored.target), stored.tasks, created=czxid)


def status_data(status: WorkStatus) -> bytes:
    """Return the data of a status znode. A long trace is cut."""
    return StoredStatus(
        state=status.state,
        worker=status.worker,
        trace=status.trace,
        generation=status.generation,
        problem=status.problem,
    ).encode()


def status_of(path: str, written: Written | None, claimed_zxid: int | None, created_zxid: int | None) -> WorkStatus:
    """
    Return the status that a status znode shows now.

    A status counts only while the claim exists under which it was written. It is UNASSIGNED if the claim is gone, if
    another worker has claimed the work since, or if the connector was created again since.

    Args:
        path: The path of the status znode.
        written: The znode, or None if it does not exist.
        claimed_zxid: The zxid that created the owner znode, or None if there is none.
        created_zxid: The zxid that created the connector's znode, or None if there is none.
    """
    if written is None or not written.data:
        return WorkStatus(WorkState.UNASSIGNED, worker="")
    try:
        stored = StoredStatus.parse(written.data, path)
    except ProtocolError as error:
        log.error("%s; treating the work as unassigned", error)
        return WorkStatus(WorkState.UNASSIGNED, worker="", trace=str(error))
    if claimed_zxid is None or created_zxid is None or written.mzxid < max(claimed_zxid, created_zxid):
        return WorkStatus(WorkState.UNASSIGNED, stored.worker, generation=stored.generation)
    return WorkStatus(WorkState(stored.state), stored.worker, stored.trace, stored.generation, stored.problem)
