"""Requests to workers on simulated time: what a worker answers, and when it cannot."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    RebalanceError,
    SessionLostError,
    UnknownConnectorError,
)
from kiel_groups.workers.values.work_ids import TaskId
from tests.helpers.counting_connectors import COUNTING_SOURCE
from tests.sim.worker_group_bench import WorkerGroupBench

pytestmark = pytest.mark.sim


def test_requests_are_answered_as_users_expect() -> None:
    """Unknown connectors, names that exist, settings that are not legal, and work that is elsewhere."""
    bench = WorkerGroupBench()
    first, second = bench.start("w1", "w2")
    bench.create("c", tasks_max="1", limit="10")
    bench.until_running("c", 1)
    bench.timeline.run_for(1.0)
    here, there = (first, second) if bench.owner(TaskId("c", 0)) == "w1" else (second, first)
    assert here.requests.owner_url(TaskId("c", 0)) == here.url
    assert {worker.requests.leader_url() for worker in (first, second)} <= {first.url, second.url}
    info = there.run(there.requests.connector_info("c"))
    assert (info.name, info.tasks, info.kind) == ("c", 1, "source")
    (task,) = there.run(there.requests.tasks("c"))
    assert task.task == TaskId("c", 0)
    with pytest.raises(RebalanceError):
        there.run(there.requests.restart_task("c", 0))
    with pytest.raises(ConnectorExistsError):
        bench.create("c")
    with pytest.raises(ConfigError, match=r"tasks\.max: '0' given.*; limit: 'x' given"):
        bench.create("d", limit="x", tasks_max="0")
    with pytest.raises(ConfigError, match=r"connector\.class: required"):
        first.run(first.requests.create("d", {"name": "d"}))
    for request in (
        lambda: first.requests.config("d"),
        lambda: first.requests.status("d"),
        lambda: first.requests.task_status("c", 1),
        lambda: first.requests.pause("d"),
        lambda: first.requests.delete("d"),
    ):
        with pytest.raises(UnknownConnectorError):
            first.run(request())  # type: ignore[arg-type]
    report = first.run(first.requests.validate(COUNTING_SOURCE, {"limit": "x"}))
    assert report["error_count"] == 3
    assert not first.requests.is_rebalancing()


def test_a_worker_without_a_session_answers_with_a_retriable_error() -> None:
    """Users try again; the worker continues on its next session."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100000")
    bench.until_running("c", 1)
    session = worker.herder.parts.session
    worker.process.call(lambda: session.end("the test ends it"))
    with pytest.raises(SessionLostError):
        worker.run(worker.requests.config("c"))
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == 2)
    assert worker.run(worker.requests.config("c"))["limit"] == "100000"


def test_a_connector_that_another_worker_has_just_created_is_known() -> None:
    """A client whose request was forwarded asks the same worker next, which may not have followed the change yet."""
    bench = WorkerGroupBench()
    first, second = bench.start("w1", "w2")
    first.run(first.herder.parts.config.put_connector("c", {"connector.class": COUNTING_SOURCE, "name": "c"}))
    config = second.herder.config
    assert config is None or "c" not in config.connectors
    assert second.run(second.requests.config("c"))["name"] == "c"


def test_a_change_is_answered_although_another_client_deletes_the_connector() -> None:
    """The answer is about what was written, whatever follows."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", tasks_max="1", limit="10")
    store, put = worker.herder.parts.config, worker.herder.parts.config.put_connector

    async def put_then_delete(name: str, config: Mapping[str, str], *, is_new: bool = False) -> int:
        await put(name, config, is_new=is_new)
        return await store.delete_connector(name)

    store.put_connector = put_then_delete  # type: ignore[method-assign]
    settings = {"connector.class": COUNTING_SOURCE, "limit": "7"}
    info, is_new = worker.run(worker.requests.put_config("c", settings))
    assert (info.config, is_new) == ({**settings, "name": "c"}, False)
    with pytest.raises(UnknownConnectorError):
        worker.run(worker.requests.config("c"))
