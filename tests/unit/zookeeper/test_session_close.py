"""The close of a session whose client has just started, or whose event loop is closed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import CLIENT_CHECK_S, Session, SessionClose
from tests.helpers.manual_runtime import ManualRuntime

pytestmark = pytest.mark.unit

CONFIG = ZooKeeperConfig.parse("127.0.0.1:1")


def test_a_close_waits_for_a_start_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is stopped when it has started: a stop before would end nothing, and the client would run on."""
    starting, may_start, stopped, ended = (threading.Event() for _ in range(4))
    client = Runtime().client(CONFIG)
    start = client.start_async

    def start_slowly() -> None:
        starting.set()
        assert may_start.wait(10.0)
        start()

    monkeypatch.setattr(client, "start_async", start_slowly)
    close = SessionClose(CONFIG, client, stopped.set, ended.set, Runtime())
    thread = threading.Thread(target=close.start_client)
    thread.start()
    assert starting.wait(10.0)
    close.begin()
    assert not stopped.wait(5 * CLIENT_CHECK_S)
    may_start.set()
    thread.join()
    assert ended.wait(10.0)
    assert stopped.is_set()
    assert client._connection.connection_stopped.is_set()


def test_a_client_does_not_start_after_the_close_has_begun() -> None:
    """The close ends at once, and the start does nothing."""
    ended = threading.Event()
    client = Runtime().client(CONFIG)
    close = SessionClose(CONFIG, client, lambda: None, ended.set, Runtime())
    close.begin()
    close.start_client()
    assert ended.wait(10.0)
    assert client._stopped.is_set()


def test_an_answer_that_finds_the_loop_closed_begins_the_close(runtime: ManualRuntime) -> None:
    """A member that has just been registered would otherwise stay, and nothing would use it or end it."""
    loop = asyncio.new_event_loop()

    async def new_session() -> Session:
        return Session(CONFIG, Metrics(), lambda event: None, runtime)

    session = loop.run_until_complete(new_session())
    session._call_loop(lambda: None)
    assert [ticker.due_s for ticker in runtime.tickers] == [None]
    loop.close()
    session._call_loop(lambda: None)
    assert [ticker.name for ticker in runtime.tickers if ticker.due_s is not None] == ["close"]
