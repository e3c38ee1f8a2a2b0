"""Requests to workers on simulated time: what a worker answers, and when it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    NoBrokersError,
    RebalanceError,
    SessionLostError,
    UnknownConnectorError,
)
from kiel_groups.workers.values import TaskId
from tests.helpers.counting_connectors import COUNTING_SINK, COUNTING_SOURCE
from tests.sim.worker_group_bench import WorkerGroupBench, WorkerProcess

pytestmark = pytest.mark.sim


def delete_after(worker: WorkerProcess, change: str) -> None:
    """Have another client delete the connector ``c`` directly after a change of the configuration is stored."""
    store = worker.herder.role.config
    stored_change = getattr(store, change)

    async def change_then_delete(*arguments: Any, **options: Any) -> int:
        await stored_change(*arguments, **options)
        return await store.delete_connector("c")

    setattr(store, change, change_then_delete)


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
    urls = [first.url, second.url.rstrip("/"), "http://w3:8083/", f"{first.url}x"]
    assert [first.run(first.requests.is_registered(url)) for url in urls] == [True, True, False, False]
    info = there.run(there.requests.connector_info("c"))
    assert (info.name, info.tasks, info.kind) == ("c", 1, "source")
    assert len(there.run(there.requests.tasks("c"))) == 1
    with pytest.raises(RebalanceError):
        there.run(there.requests.restart(TaskId("c", 0)))
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
    with pytest.raises(UnknownConnectorError, match=r"'cc' does not exist; did you mean 'c'\?"):
        first.run(first.requests.pause("cc"))
    report = first.run(first.requests.validate(COUNTING_SOURCE, {"limit": "x"}))
    assert report["error_count"] == 3
    assert "warnings" not in report
    assert not first.requests.is_rebalancing()


def test_a_worker_without_a_session_answers_with_a_retriable_error() -> None:
    """Users try again; the worker continues on its next session."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100000")
    bench.until_running("c", 1)
    session = worker.herder.role.session
    worker.process.call(lambda: session.end("the test ends it"))
    with pytest.raises(SessionLostError):
        worker.run(worker.requests.config("c"))
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == 2)
    assert worker.run(worker.requests.config("c"))["limit"] == "100000"


def test_a_connector_that_another_worker_has_just_created_is_known() -> None:
    """A client whose request was forwarded asks the same worker next, which may not have followed the change yet."""
    bench = WorkerGroupBench()
    first, second = bench.start("w1", "w2")
    first.run(first.herder.role.config.put_connector("c", {"connector.class": COUNTING_SOURCE, "name": "c"}))
    config = second.herder.config
    assert config is None or "c" not in config.connectors
    assert second.run(second.requests.config("c"))["name"] == "c"


@pytest.mark.parametrize("exists", [True, False])
def test_new_settings_are_answered_although_another_client_deletes_the_connector(exists: bool) -> None:
    """The answer is about what was written, and whether that has created the connector, whatever follows."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    if exists:
        bench.create("c", tasks_max="1", limit="10")
    delete_after(worker, "put_connector")
    settings = {"connector.class": COUNTING_SOURCE, "limit": "7"}
    info, is_new = worker.run(worker.requests.put_config("c", settings))
    assert (info.config, info.kind, is_new) == ({**settings, "name": "c"}, "source", not exists)
    with pytest.raises(UnknownConnectorError):
        worker.run(worker.requests.config("c"))


@pytest.mark.parametrize("exists", [True, False])
def test_a_secret_that_changes_during_a_check_is_not_undone(exists: bool) -> None:
    """What a user gives as ``[hidden]`` is what is stored when the change is written, and that is checked as well."""
    bench = WorkerGroupBench()
    first, second = bench.start("w1", "w2")
    settings = {"connector.class": COUNTING_SOURCE, "limit": "7", "name": "c"}
    if exists:
        bench.create("c", **{"limit": "7", "db.password": "former"})
    requests, checked = first.requests, []
    check = requests._check

    async def check_while_another_client_changes(name: str, config: Mapping[str, str]) -> None:
        await check(name, config)
        checked.append(config.get("db.password"))
        if len(checked) == 1:
            await first.herder.role.config.put_connector("c", settings | {"db.password": "newer"})

    requests._check = check_while_another_client_changes  # type: ignore[method-assign]
    given = settings | {"limit": "8"} | ({"db.password": "[hidden]"} if exists else {"db.password": "given"})
    info, is_new = first.run(requests.put_config("c", given))
    assert checked == (["former", "newer"] if exists else ["given"])
    assert (info.config["db.password"], info.config["limit"], is_new) == (checked[-1], "8", False)
    assert second.run(second.requests.config("c")) == info.config


def test_a_secret_whose_connector_is_deleted_during_a_check_is_refused() -> None:
    """The secret is unknown by then, and ``[hidden]`` is never stored."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", **{"limit": "7", "db.password": "former"})
    requests = worker.requests
    check = requests._check

    async def check_then_delete(name: str, config: Mapping[str, str]) -> None:
        await check(name, config)
        await requests.delete("c")

    requests._check = check_then_delete  # type: ignore[method-assign]
    given = {"connector.class": COUNTING_SOURCE, "db.password": "[hidden]"}
    with pytest.raises(ConfigError, match=r"db\.password: \[hidden\] given, which means the stored value"):
        worker.run(requests.put_config("c", given))
    with pytest.raises(UnknownConnectorError):
        worker.run(requests.config("c"))


def test_two_clients_change_other_settings_at_the_same_time() -> None:
    """Both changes are kept, and the second one is checked with the first one. Null removes a setting."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", **{"limit": "7", "topic": "t", "db.user": "former", "db.password": "former"})
    requests, checked = worker.requests, []
    check = requests._check

    async def check_while_another_client_changes(name: str, config: Mapping[str, str]) -> None:
        await check(name, config)
        checked.append((config["db.user"], config["db.password"]))
        if len(checked) == 1:
            await requests.patch_config("c", {"db.user": "newer", "db.password": "newer"})

    requests._check = check_while_another_client_changes  # type: ignore[method-assign]
    info = worker.run(requests.patch_config("c", {"limit": "8", "topic": None, "db.password": "[hidden]"}))
    assert checked == [("former", "former"), ("newer", "newer"), ("newer", "newer")]
    expected = {"connector.class": COUNTING_SOURCE, "limit": "8", "db.user": "newer", "db.password": "newer"}
    assert worker.run(requests.config("c")) == info.config == expected | {"name": "c"}
    with pytest.raises(UnknownConnectorError):
        worker.run(requests.patch_config("d", {"limit": "1"}))
    with pytest.raises(ConfigError, match="limit: 'x' given"):
        worker.run(requests.patch_config("c", {"limit": "x"}))


def test_a_new_connector_is_answered_although_another_client_deletes_it() -> None:
    """The answer is about what was written, as for new settings."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    delete_after(worker, "put_connector")
    settings = {"connector.class": COUNTING_SOURCE, "limit": "7"}
    info = worker.run(worker.requests.create("c", settings))
    assert (info.config, info.kind) == ({**settings, "name": "c"}, "source")
    assert worker.run(worker.requests.connectors()) == []


@pytest.mark.parametrize("pauses", [True, False])
def test_a_target_state_is_stored_although_another_client_deletes_the_connector(pauses: bool) -> None:
    """No error follows a pause or a resumption that was written."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c")
    delete_after(worker, "set_target_state")
    worker.run((worker.requests.pause if pauses else worker.requests.resume)("c"))
    assert worker.run(worker.requests.connectors()) == []


def test_a_check_of_settings_warns_of_missing_topics() -> None:
    """A task would wait for them without an end. Brokers that do not answer are named as well."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.clients.missing = {"b"}
    config = {"name": "c", "topics": "a,b"}
    report = worker.run(worker.requests.validate(COUNTING_SINK, config))
    assert report["warnings"] == ["topics: no broker knows the topic b"]
    bench.clients.missing = NoBrokersError("no broker answered")
    report = worker.run(worker.requests.validate(COUNTING_SINK, {**config, "limt": "1"}))
    assert report["warnings"] == [
        "limt: there is no such setting",
        "whether the topics exist is unknown: no broker answered",
    ]
