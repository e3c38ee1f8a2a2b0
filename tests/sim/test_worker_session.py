"""The sessions of a worker on simulated time: its znode, the loss of a session, and the end."""

from __future__ import annotations

import json

import pytest

from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.errors import AuthorizationError, KielGroupsError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import Check, Create, Refused
from kiel_groups.group.znodes.worker_contents import SourceOffset, WorkerInfo, partition_digest
from kiel_groups.workers.session import WorkerRole, WorkerSession
from tests.fakes import FakeEnsemble, Host, SimulatedProcess, Timeline, fake_client
from tests.helpers.contexts import process_context

pytestmark = pytest.mark.sim

WORKERS = "/kiel-groups/g/workers"
URL = "http://127.0.0.1:8083/"


class WorkerBench:
    """A worker on the only server of an ensemble, and the sessions that it has opened and lost."""

    def __init__(
        self,
        beside: WorkerBench | None = None,
        token_digest: str | None = None,
        coordination: str | None = None,
        url: str = URL,
    ) -> None:
        self.timeline = beside.timeline if beside else Timeline(1)
        self.ensemble = beside.ensemble if beside else FakeEnsemble(self.timeline, 1)
        self.process = SimulatedProcess(self.ensemble)
        self.opened: list[WorkerRole] = []
        self.lost: list[WorkerRole] = []
        self.failures: list[KielGroupsError] = []
        zookeeper = ZooKeeperConfig(hosts="fake1:2181", session_timeout_ms=6_000)
        context = process_context(GroupConfig(group="g"), zookeeper, runtime=self.process.runtime)
        info = WorkerInfo(url=url, token_digest=token_digest, coordination=coordination)
        self.worker = self.process.call(
            lambda: WorkerSession(context, info, self.opened.append, self.lost.append, self.failures.append)
        )
        starting = self.process.start(self.worker.start())
        self.timeline.run_until(starting.done, 10.0)
        starting.result()

    @property
    def registered(self) -> list[str]:
        """The ids of the workers that have a znode."""
        return sorted(self.ensemble.tree.children(WORKERS))


def test_a_worker_proves_its_session_by_a_znode() -> None:
    """The znode names the worker's REST interface, and a write that checks it is executed."""
    bench = WorkerBench()
    (role,) = bench.opened
    assert bench.registered == [role.worker_id]
    assert json.loads(bench.ensemble.tree.znodes[role.proof].data)["url"] == URL
    writing = bench.process.start(role.writer.write({"w": (Create(f"{WORKERS}/x"),)}, lambda *_: None))
    bench.timeline.run_until(writing.done, 5.0)
    assert list(writing.result().done) == ["w"]


def test_a_lost_session_is_replaced_by_another_worker_id() -> None:
    """The worker hears of the loss once, and the writes of the former session are refused."""
    bench = WorkerBench()
    (former,) = bench.opened
    bench.process.call(lambda: former.session.end("the test ends it"))
    assert former.is_over
    bench.timeline.run_until(lambda: len(bench.opened) == 2, 20.0)
    assert bench.lost == [former]
    latter = bench.opened[-1]
    assert latter.worker_id != former.worker_id
    bench.timeline.run_until(lambda: bench.registered == [latter.worker_id], 20.0)
    asking = bench.process.start(latter.session.transact([Check(former.proof)]))
    bench.timeline.run_until(asking.done, 5.0)
    assert isinstance(asking.result(), Refused)


def test_an_operator_who_deletes_the_znode_ends_the_session() -> None:
    """The next heartbeat finds out: a worker without its znode could not prove any write."""
    bench = WorkerBench()
    (former,) = bench.opened
    operator = fake_client(Host(bench.ensemble))
    operator.start()
    operator.delete(former.proof)
    bench.timeline.run_until(lambda: len(bench.opened) == 2, 20.0)
    assert bench.lost == [former]


def test_a_close_deletes_the_znode_and_leaves_no_task() -> None:
    """A close is no loss: the worker has released its work before."""
    bench = WorkerBench()
    closing = bench.process.start(bench.worker.close())
    bench.timeline.run_until(closing.done, 10.0)
    assert bench.registered == []
    assert bench.lost == bench.failures == []


@pytest.mark.parametrize(
    ("first", "second", "differs"), [("a1b2", "a1b2", False), ("a1b2", "", True), ("", "a1b2", True)]
)
def test_a_worker_warns_of_another_token(
    caplog: pytest.LogCaptureFixture, first: str, second: str, differs: bool
) -> None:
    """Requests between such workers fail. A worker of an earlier version does not say which token it has."""
    caplog.set_level("WARNING", "kiel_groups.workers")
    bench = WorkerBench(WorkerBench(WorkerBench(), first), second)
    assert len(bench.registered) == 3
    warning = "group g: requests between this worker and 127.0.0.1:8083 fail, because their tokens differ"
    assert [message.startswith(warning) for message in caplog.messages] == ([True] if differs else [])


def test_workers_with_another_coordination_notice_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """The one that comes later warns at once, the earlier one at its next regular check, and each only once."""
    caplog.set_level("WARNING", "kiel_groups.workers")
    earlier = WorkerBench(None, None, "zookeeper", "http://h1:8083/")
    WorkerBench(earlier, None, "brokers", "http://h2:8083/")
    WorkerBench(earlier, None, "zookeeper", "http://h3:8083/")
    assert len(earlier.registered) == 3
    earlier.timeline.run_for(200.0)
    heard = sorted(message.partition(":")[2].partition(": neither")[0] for message in caplog.messages)
    assert heard == [
        " this worker has the coordination 'brokers', and h1:8083 another one",
        " this worker has the coordination 'brokers', and h1:8083, h3:8083 another one",
        " this worker has the coordination 'zookeeper', and h2:8083 another one",
        " this worker has the coordination 'zookeeper', and h2:8083 another one",
    ]
    assert all(message.endswith("give all workers of the group the same coordination") for message in caplog.messages)


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
