"""What znodes of workers say: entries with problems, and the rule by which a status counts."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.contents import Znode
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.worker_contents import StoredConnector, TargetState, WorkState, WorkStatus
from kiel_groups.workers.stores.config_store import entry_of
from kiel_groups.workers.stores.status_store import status_of
from kiel_groups.workers.values import ConnectorEntry, ConnectorId, TaskId

pytestmark = pytest.mark.unit

LAYOUT = WorkerLayout("g")
FAILED = WorkStatus(WorkState.FAILED, "h:1", "ValueError", 4)
LOST = WorkStatus(WorkState.UNASSIGNED, "h:1", generation=4)
NEVER = WorkStatus(WorkState.UNASSIGNED, "")


def test_paths_of_work() -> None:
    """A connector and its tasks have znodes in the same folders."""
    connector, task = ConnectorId("c"), TaskId("c", 0)
    assert LAYOUT.owner(*connector) == LAYOUT.owner("c")
    assert LAYOUT.owner(*task) == LAYOUT.owner("c", 0)
    assert LAYOUT.status(*connector) == LAYOUT.status("c")
    assert LAYOUT.status(*task) == LAYOUT.status("c", 0)


def test_an_entry_has_what_the_znode_has() -> None:
    """A readable znode becomes an entry without a problem."""
    stored = StoredConnector(name="c", config={"a": "1"}, target="PAUSED", tasks=({},), offset=1)
    entry = entry_of("c", "p", stored.encode(), czxid=7)
    assert entry == ConnectorEntry({"a": "1"}, TargetState.PAUSED, ({},))
    assert entry.created == 7


def test_an_entry_of_garbage_has_a_problem() -> None:
    """Garbage becomes an entry without tasks, whose problem names the znode."""
    entry = entry_of("c", "/p", b"{", czxid=7)
    assert entry.problem.startswith("/p: not JSON")
    assert entry.tasks is None


@pytest.mark.parametrize(
    ("mzxid", "claimed", "created", "expected"),
    [
        (9, 8, 3, FAILED),
        (9, None, 3, LOST),
        (9, 10, 3, LOST),
        (9, 8, 10, LOST),
        (9, 8, None, LOST),
    ],
)
def test_a_status_counts_after_the_claim_and_the_connector(
    mzxid: int, claimed: int | None, created: int | None, expected: WorkStatus
) -> None:
    """A status counts if it was written after the present claim and the connector were created."""
    status = Znode(FAILED.encode(), mzxid=mzxid)
    owner, connector = (None if czxid is None else Znode(czxid=czxid) for czxid in (claimed, created))
    assert status_of("p", status, owner, connector) == expected


@pytest.mark.parametrize("written", [None, Znode(mzxid=9)])
def test_work_without_a_status_is_unassigned(written: Znode | None) -> None:
    """A missing znode is no status, nor is an empty one, which is only the parent of the tasks' statuses."""
    assert status_of("p", written, Znode(czxid=8), Znode(czxid=3)) == NEVER
