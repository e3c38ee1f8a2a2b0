"""Answers hide the secrets that connectors and tasks declare."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kiel_groups.workers.execution.worker_plugins import WorkerPlugins
from kiel_groups.workers.plugins.plugin_registry import PluginRegistry
from kiel_groups.workers.shipped.http_sink import HttpSinkConnector
from kiel_groups.zookeeper.runtime import Runtime

pytestmark = pytest.mark.unit

HTTP_SINK = f"{HttpSinkConnector.__module__}:{HttpSinkConnector.__name__}"


async def test_declared_secrets_are_hidden() -> None:
    """A secret is what its connector declares as one, or what may be a mistyped one."""
    plugins = WorkerPlugins(PluginRegistry(), Runtime())
    await plugins.resolve(HTTP_SINK)
    secrets = [key.name for key in HttpSinkConnector.config if key.type == "password"]
    config = {"connector.class": HTTP_SINK, "tasks.max": "2", "my.password": "x"} | dict.fromkeys(secrets, "x")
    (shown,) = await plugins.masked(HTTP_SINK, [config])
    hidden = [name for name, text in shown.items() if text == "[hidden]"]
    assert secrets == ["authorization", "headers"]
    assert sorted(hidden) == sorted([*secrets, "my.password"])


@pytest.mark.parametrize("name", ["", "Absent", "no.such:Class"])
async def test_the_settings_of_an_unknown_class_are_hidden(name: str) -> None:
    """What a class that cannot be found declares is unknown, so only standard settings are shown."""
    config = {"connector.class": name, "tasks.max": "2", "file": "x"}
    shown = await WorkerPlugins(PluginRegistry(), Runtime()).masked(name, [config])
    assert shown == [config | {"file": "[hidden]"}]


async def test_answers_are_masked_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of a large configuration may take seconds, in which a worker must renew its session."""
    threads: list[threading.Thread] = []

    def found(plugins: WorkerPlugins, name: str) -> type[HttpSinkConnector]:
        threads.append(threading.current_thread())
        return HttpSinkConnector

    monkeypatch.setattr(WorkerPlugins, "found", found)
    await WorkerPlugins(PluginRegistry(), Runtime()).masked(HTTP_SINK, [{"name": "c"}])
    assert threads
    assert threading.main_thread() not in threads


async def test_one_answer_is_masked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads that compute would leave little of the processor to the event loop."""
    entered, may_return, calls = asyncio.Event(), threading.Event(), 0
    loop = asyncio.get_running_loop()

    def found(plugins: WorkerPlugins, name: str) -> type[HttpSinkConnector]:
        nonlocal calls
        calls += 1
        loop.call_soon_threadsafe(entered.set)
        may_return.wait()
        return HttpSinkConnector

    monkeypatch.setattr(WorkerPlugins, "found", found)
    plugins = WorkerPlugins(PluginRegistry(), Runtime())
    masking = [asyncio.ensure_future(plugins.masked(HTTP_SINK, [{"name": "c"}])) for _ in range(3)]
    await entered.wait()
    assert calls == 1
    may_return.set()
    assert await asyncio.gather(*masking) == [[{"name": "c"}]] * 3
