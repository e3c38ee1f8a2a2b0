"""Garbage in the znodes of a worker group: what stops, what is logged, and how it is repaired."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.worker_contents import WorkState
from kiel_groups.workers.values import ConnectorId, TaskId
from tests.helpers.counting_connectors import COUNTING_SOURCE
from tests.sim.worker_group_bench import LAYOUT, WorkerGroupBench

pytestmark = pytest.mark.sim


def test_garbage_in_one_connector_stops_that_one_only(caplog: pytest.LogCaptureFixture) -> None:
    """
    Its owner reports it as FAILED with the reason, and the other connector runs. The worker warns once, however often
    it reads, names the znode, and says what to do; after a repair, it warns of the next problem.
    """
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100000")
    bench.create("d", limit="100000")
    bench.until_running("c", 1)
    bench.until_running("d", 1)
    bench.write(LAYOUT.connector("c"), b"garbage")
    worker.run(worker.requests.pause("d"))
    worker.run(worker.requests.resume("d"))
    bench.timeline.run_until(lambda: bench.state(ConnectorId("c")) == WorkState.FAILED)
    bench.until_running("d", 1)
    bench.timeline.run_for(1.0)
    assert LAYOUT.connector("c") in worker.states("c")[ConnectorId("c")].trace
    assert bench.owner(TaskId("c", 0)) is None
    worker.run(worker.requests.pause("d"))

    def warnings() -> list[str]:
        return [record.message for record in caplog.records if "do not run" in record.message]

    (warning,) = warnings()
    assert warning.startswith(f"group g: connector c and its tasks do not run: {LAYOUT.connector('c')}: not JSON")
    assert warning.endswith("; replace its settings ('kiel-groups connectors config NAME --file FILE'), or delete it")
    worker.run(worker.requests.put_config("c", {"connector.class": COUNTING_SOURCE, "limit": "100000"}))
    bench.until_running("c", 1)
    bench.write(LAYOUT.connector("c"), b"garbage")
    worker.run(worker.requests.resume("d"))
    bench.timeline.run_until(lambda: len(warnings()) == 2)


def test_garbage_in_the_offsets_znode_fails_what_has_to_write() -> None:
    """The trace of a connector that cannot store its tasks names that znode and the repair; its tasks run on."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100000")
    bench.until_running("c", 1)
    offset = bench.ensemble.tree.znodes[LAYOUT.config].data
    bench.write(LAYOUT.config, b"garbage")
    worker.run(worker.requests.restart(ConnectorId("c")))
    bench.timeline.run_until(lambda: bench.state(ConnectorId("c")) == WorkState.FAILED)
    bench.timeline.run_for(1.0)
    trace = worker.states("c")[ConnectorId("c")].trace
    assert f"{LAYOUT.config}: not JSON" in trace
    assert '; to repair it, write {"version":1,"offset":N} to this znode' in trace
    assert bench.state(TaskId("c", 0)) == WorkState.RUNNING
    bench.write(LAYOUT.config, offset)
    worker.run(worker.requests.restart(ConnectorId("c")))
    bench.until_running("c", 1)
