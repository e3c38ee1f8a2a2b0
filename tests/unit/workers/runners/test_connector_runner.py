"""A connector: its tasks are configured when it starts, and when it asks for that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from kiel_groups.errors import ClaimLostError, ConfigError, KielGroupsError, UnknownConnectorError
from kiel_groups.workers.plugins.secret_references import SecretReferences
from kiel_groups.workers.runners.source_task_runner import ConnectorRunner
from tests.helpers.counting_connectors import CountingSourceConnector, Counts, use
from tests.helpers.runner_contexts import FakeStores, runner_context
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


class Bench:
    """A runner of the counting connector."""

    def __init__(self) -> None:
        self.counts, self.stores = use(Counts()), FakeStores()
        self.started: list[bool] = []
        self.problems: list[str] = []
        config = {"tasks.max": "2", "limit": "5"}
        self.runner = ConnectorRunner(
            runner_context(
                CountingSourceConnector,
                config,
                task=None,
                stores=self.stores,
                started=lambda: self.started.append(True),
                problem=self.problems.append,
            )
        )


async def test_a_connector_configures_its_tasks_and_is_stopped() -> None:
    """
    The configurations are stored after the start, and again when the connector asks for it. A problem that it reports
    is shown.
    """
    bench = Bench()
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: bench.stores.tasks, "the runner to get there")
    assert [task["limit"] for task in bench.stores.tasks[0]] == ["5", "5"]
    assert bench.started == [True]
    bench.counts.task_configs["c"] = [{"limit": "6"}]
    await asyncio.get_running_loop().run_in_executor(None, bench.counts.connectors["c"].request_task_reconfiguration)
    await eventually(lambda: len(bench.stores.tasks) == 2, "the runner to get there")
    assert bench.stores.tasks[1] == [{"limit": "6"}]
    bench.counts.connectors["c"].report_problem("a table is missing")
    await eventually(lambda: bench.problems == ["a table is missing"], "the problem")
    bench.runner.request_stop()
    await running
    assert bench.counts.methods("c") == ["start", "task_configs", "task_configs", "stop"]


@pytest.mark.parametrize(
    ("reported", "raised", "text"),
    [(ValueError("gone"), ValueError, "gone"), (SystemExit(1), KielGroupsError, "SystemExit")],
)
async def test_an_error_that_a_connector_reports_fails_it(
    reported: BaseException, raised: type[Exception], text: str
) -> None:
    """Also one that would end the process if it was raised."""
    bench = Bench()
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: bench.stores.tasks, "the runner to get there")
    bench.counts.connectors["c"].raise_error(reported)
    with pytest.raises(raised, match=text):
        await running
    assert bench.counts.methods("c")[-1] == "stop"


async def test_a_connector_that_has_lost_its_claim_configures_nothing() -> None:
    """The store refuses the write."""
    bench = Bench()
    bench.stores.is_claimed = False
    with pytest.raises(ClaimLostError):
        await bench.runner.run()
    assert bench.stores.tasks == []


async def test_configurations_after_a_stop_are_dropped() -> None:
    """A stop during ``task_configs`` waits for it, and stores nothing."""
    bench = Bench()
    bench.counts.hooks["task_configs"] = bench.runner.request_stop
    await bench.runner.run()
    assert bench.stores.tasks == []


@pytest.mark.parametrize("garbage", ["text", {"a": "b"}, [{"a": 1}], [{1: "a"}], ["a"], [{}] * 3, 5])
async def test_garbage_is_refused(garbage: object) -> None:
    """The error names the connector and says what was returned, without values, which may be secrets."""
    bench = Bench()
    bench.counts.task_configs["c"] = garbage
    with pytest.raises(ConfigError, match="connector 'c': task_configs returned"):
        await bench.runner.run()
    assert bench.stores.tasks == []


async def test_a_connector_that_was_deleted_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker, which has not read the deletion yet, stops it."""
    bench, writes = Bench(), list[str]()

    async def write_tasks(connector: str, tasks: object) -> None:
        writes.append(connector)
        raise UnknownConnectorError(f"connector {connector!r} does not exist")

    monkeypatch.setattr(bench.stores, "write_tasks", write_tasks)
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: writes, "the write that is refused")
    bench.runner.request_stop()
    await running
    assert bench.counts.methods("c") == ["start", "task_configs", "stop"]


@pytest.mark.parametrize("settings", [{}, {"pad": "x" * 100_000}], ids=["none", "large"])
async def test_tasks_that_fit_into_no_znode_are_refused_at_once(settings: dict[str, str]) -> None:
    """No more are asked for than might fit, and their settings are not encoded: ``tasks.max`` may be any number."""
    asked: list[int] = []

    class Repeating(CountingSourceConnector):
        def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
            asked.append(most)
            return [settings] * most

    stores = FakeStores()
    context = runner_context(Repeating, {"tasks.max": str((1 << 31) - 1)}, task=None, stores=stores)
    running = asyncio.ensure_future(ConnectorRunner(context).run())
    if settings:
        with pytest.raises(ConfigError, match="245,760 tasks take more than the 983040 bytes that fit into a znode"):
            await running
    else:
        await eventually(lambda: bool(stores.tasks), "the tasks")
        running.cancel()
    assert asked == [245_760]


async def configured(
    monkeypatch: pytest.MonkeyPatch, *tasks: Mapping[str, str], login: str = "hunter2&"
) -> list[Mapping[str, str]]:
    """Return what is stored when a connector with a reference to a secret returns these settings of tasks."""
    monkeypatch.setenv("LOGIN", login)
    counts, stores = use(Counts()), FakeStores()
    counts.task_configs["c"] = list(tasks)
    config = {"tasks.max": "2", "limit": "5", "login": "${env:LOGIN}", "plain": "hunter2&"}
    references = SecretReferences(variables=["LOGIN"])
    runner = ConnectorRunner(
        runner_context(CountingSourceConnector, config, task=None, stores=stores, references=references)
    )
    running = asyncio.ensure_future(runner.run())
    await eventually(lambda: stores.tasks or running.done(), "the tasks are stored")
    runner.request_stop()
    await running
    assert counts.connectors["c"].config["login"] == "${env:LOGIN}"
    return stores.tasks[0]


async def test_references_are_stored_in_place_of_copied_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector may copy its typed settings, as those of Kafka Connect do. What is stored already may be copied."""
    copied = {"limit": "5", "login": "hunter2&", "plain": "hunter2&", "url": "u:${env:LOGIN}@h"}
    expected = copied | {"login": "${env:LOGIN}"}
    assert await configured(monkeypatch, copied, {"login": "${env:LOGIN}"}) == [expected, {"login": "${env:LOGIN}"}]


@pytest.mark.parametrize("text", ["hunter2&", "u:hunter2%26@h", '{"login": "hunter2&"}'])
async def test_a_secret_in_the_settings_of_a_task_is_not_stored(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector fails, with an error that names the setting, and does not show the secret."""
    with pytest.raises(ConfigError, match=r"task_configs returned a secret in the setting 'url' of task 1, ") as caught:
        await configured(monkeypatch, {"limit": "5"}, {"url": text})
    assert "hunter2" not in str(caught.value)


async def test_a_secret_that_looks_like_a_reference_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What resembles a reference within a value is a part of the secret."""
    login = "hunter2${env:LOGIN}"
    with pytest.raises(ConfigError, match=r"task_configs returned a secret in the setting 'url' of task 0, "):
        await configured(monkeypatch, {"url": f"u:{login}@h"}, login=login)
