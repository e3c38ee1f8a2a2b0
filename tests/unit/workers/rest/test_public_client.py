"""A public client of Kafka Connect, kafka-connect-py, works with the REST interface of workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka_connect import KafkaConnect
from requests import HTTPError

from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.workers.values import TaskId
from tests.helpers.fake_workers import PLUGIN, FakeGroup, FakeWorker, serving_on_thread

pytestmark = pytest.mark.unit

CONFIG = {"connector.class": "FileStreamSource", "tasks.max": "2"}
TOKEN = "t0ken-of-all-workers"


@pytest.fixture
def workers() -> Iterator[list[FakeWorker]]:
    """Return two workers of one group, which ask for a token. The first one leads."""
    group = FakeGroup()
    made = [FakeWorker(group), FakeWorker(group)]
    with serving_on_thread(*made, token=TOKEN):
        yield made


@pytest.fixture(params=["leader", "other"])
def client(workers: list[FakeWorker], request: pytest.FixtureRequest) -> KafkaConnect:
    """Return a client of either worker. Its password is the token: it knows no bearers."""
    return KafkaConnect(workers[request.param == "other"].url, auth=f"anyone:{TOKEN}")


def test_a_connector_from_creation_to_deletion(workers: list[FakeWorker], client: KafkaConnect) -> None:
    """The client creates, reads, changes, pauses, resumes, restarts and deletes a connector."""
    group = workers[0].group
    created = client.create_connector({"name": "logs", "config": CONFIG})
    assert (created["name"], created["type"], len(created["tasks"])) == ("logs", "source", 2)
    assert client.list_connectors() == ["logs"]
    assert client.list_connectors(state="running") == ["logs"]
    assert client.get_connector("logs") == created
    assert client.get_connector_config("logs") == CONFIG | {"name": "logs"}
    assert client.update_connector("logs", CONFIG | {"tasks.max": 3})["config"]["tasks.max"] == "3"
    assert client.get_connector_status("logs")["connector"]["state"] == "RUNNING"
    group.done.clear()
    client.pause_connector("logs")
    client.resume_connector("logs")
    client.restart_connector("logs")
    client.restart_connector_task("logs", 2)
    group.states[TaskId("logs", 1)] = WorkStatus(WorkState.FAILED, "w:1", "no")
    restarted = client.restart_connector("logs", include_tasks=True, only_failed=True)
    client.delete_connector("logs")
    assert [task["state"] for task in restarted["tasks"]] == ["RUNNING", "RESTARTING", "RUNNING"]
    changes = ["pause logs", "resume logs", "restart logs", "restart logs-2", "restart logs-1", "delete logs"]
    assert [what for _, what in group.done] == changes
    assert client.list_connectors() == []


def test_questions_about_workers_tasks_and_plugins(workers: list[FakeWorker], client: KafkaConnect) -> None:
    """The client understands the other answers, too."""
    client.create_connector({"name": "logs", "config": CONFIG})
    assert client.get_cluster_info()["version"] == "1.2.3"
    assert [task["id"]["task"] for task in client.list_connector_tasks("logs")] == [0, 1]
    assert client.get_connector_task_status("logs", 1)["state"] == "RUNNING"
    assert client.list_connector_plugins() == [{"class": PLUGIN, "type": "source", "version": "1.0"}]
    assert client.validate_connector_config("FileStreamSource", CONFIG)["error_count"] == 0


def test_errors_are_the_client_s(workers: list[FakeWorker], client: KafkaConnect) -> None:
    """The client raises its own errors, with the status of the answer."""
    client.create_connector({"name": "logs", "config": CONFIG})
    with pytest.raises(HTTPError, match="409"):
        client.create_connector({"name": "logs", "config": CONFIG})
    with pytest.raises(HTTPError, match="404"):
        client.get_connector("absent")
    with pytest.raises(HTTPError, match="400"):
        client.update_connector("logs", {})
    with pytest.raises(HTTPError, match="401"):
        KafkaConnect(workers[0].url).list_connectors()
