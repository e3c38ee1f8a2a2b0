"""Rights that clients lack: how a session tries a right, and what a process does until it has the right again."""

from __future__ import annotations

import logging

import pytest

from kiel_groups.errors import AuthorizationError, KielGroupsError
from kiel_groups.group.znodes.layout import GroupLayout, WorkerLayout
from kiel_groups.group.znodes.transactions import Create, Done
from kiel_groups.group.znodes.worker_contents import SourceOffset, partition_digest
from kiel_groups.members.zookeeper.group_session import SessionSupervisor
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session
from tests.sim.session_bench import SessionBench
from tests.sim.test_group_session import ProcessBench, Role
from tests.sim.test_worker_session import WorkerBench

pytestmark = pytest.mark.sim

ELECTION = GroupLayout("g").election


@pytest.mark.parametrize("right", ["create", "delete", "read", "write"])
def test_a_right_is_tried_without_a_write(right: str) -> None:
    """The try fails with the same right and znode while the right is missing. It changes nothing in either case."""
    bench = SessionBench()
    refused: list[tuple[str, str]] = []

    async def work(session: Session, writer: FencedWriter) -> None:
        assert isinstance(await session.transact([Create("/a")]), Done)
        error = AuthorizationError("is refused", path="/a", right=right)
        await session.check_right(error)
        bench.ensemble.tree.denied.add((right, "/a"))
        with pytest.raises(AuthorizationError) as raised:
            await session.check_right(error)
        refused.append((raised.value.right, raised.value.path))

    bench.run(work)
    assert refused == [(right, "/a")]
    changes = [[change.path for change in entry.changes] for entry in bench.ensemble.log if entry.pending is not None]
    assert changes == [["/member"], ["/a"], [], []]


def supervised(bench: ProcessBench) -> SessionSupervisor[Role]:
    """Return a supervisor whose first session has joined."""
    failures = list[KielGroupsError]()
    supervisor = bench.process.call(lambda: SessionSupervisor(bench.context, bench.kind, failures.append))
    starting = bench.process.start(supervisor.start())
    bench.timeline.run_until(starting.done, 15.0)
    starting.result()
    return supervisor


def test_a_process_joins_again_when_it_has_the_right(caplog: pytest.LogCaptureFixture) -> None:
    """A candidate that cannot read the election leaves it to others. It logs that once, and goes on trying."""
    bench = ProcessBench()
    denied = bench.ensemble.tree.denied
    supervised(bench)
    denied.add(("read", ELECTION))
    with caplog.at_level(logging.WARNING):
        bench.pass_s(60.0)
        assert bench.metrics.total("sessions_opened") == 1
        assert bench.metrics.total("joins_failed") > 5
        assert bench.ensemble.tree.children(ELECTION) == []
        denied.clear()
        bench.pass_s(15.0)
    assert bench.metrics.total("sessions_opened") == 2
    assert len(bench.ensemble.tree.children(ELECTION)) == 1
    messages = [record.getMessage() for record in caplog.records]
    assert ["ZooKeeper refused to read" in message for message in messages] == [True, False]
    assert "joined again" in messages[-1]


def test_a_right_of_an_earlier_session_is_not_tried_for_ever() -> None:
    """A process that has worked without a right since does not need it to join again."""
    bench = ProcessBench()
    denied, error = bench.ensemble.tree.denied, AuthorizationError("is refused", path=ELECTION, right="write")
    supervisor = supervised(bench)
    assert supervisor.current is not None
    denied.add(("write", ELECTION))
    bench.process.call(supervisor.current.fail, error)
    bench.pass_s(15.0)
    assert bench.metrics.total("sessions_opened") == 1
    denied.clear()
    bench.pass_s(15.0)
    assert bench.metrics.total("sessions_opened") == 2
    denied.add(("write", ELECTION))
    bench.process.call(supervisor.current.session.end, "lost in the test")
    bench.pass_s(15.0)
    assert bench.metrics.total("sessions_opened") == 3


def test_a_worker_that_cannot_read_offsets_leaves_its_work_to_others() -> None:
    """Its session ends, and with it the claims of its work. It registers again when it has the right."""
    bench = WorkerBench()
    (role,) = bench.opened
    layout, file = WorkerLayout("g"), {"file": "f"}
    path = layout.source_offset("c", partition_digest(file))

    def run(of: object) -> object:
        asking = bench.process.start(of)  # type: ignore[arg-type]
        bench.timeline.run_until(asking.done, 5.0)
        return asking.result()

    run(role.session.ensure([layout.connector_offsets("c")]))
    run(role.session.transact([Create(path, SourceOffset(file, {"at": 1}).encode())]))
    assert run(role.read_offset("c", file)) == {"at": 1}
    bench.ensemble.tree.denied.add(("read", path))
    with pytest.raises(AuthorizationError):
        run(role.read_offset("c", file))
    assert role.is_over
    bench.timeline.run_for(15.0)
    assert (bench.lost, len(bench.opened), bench.registered) == ([role], 1, [])
    bench.ensemble.tree.denied.clear()
    bench.timeline.run_until(lambda: len(bench.opened) == 2, 15.0)
    assert bench.failures == []
    assert run(bench.opened[1].read_offset("c", file)) == {"at": 1}
