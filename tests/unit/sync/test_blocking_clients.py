"""The blocking clients have the methods of the asynchronous clients, with the same names and arguments."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups import clients, sync
from kiel_groups.errors import ClosedError, ConfigError
from tests.helpers.forks import assert_refused_in_fork

pytestmark = pytest.mark.unit

PAIRS = [
    (clients.Producer, sync.Producer),
    (clients.SingleConsumer, sync.SingleConsumer),
    (clients.GroupedConsumer, sync.GroupedConsumer),
]

ARGUMENTS: dict[type, tuple[str, ...]] = {
    sync.Producer: ("127.0.0.1:1",),
    sync.SingleConsumer: ("127.0.0.1:1",),
    sync.GroupedConsumer: ("127.0.0.1:1", "group", "127.0.0.1:1"),
}


def public(client: type) -> set[str]:
    """Return the names that a program may use."""
    return {name for name in dir(client) if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a caller passes."""
    return [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"]


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_the_names_are_the_same(asynchronous: type, blocking: type) -> None:
    """
    A blocking client has the names of its asynchronous client. Only ``is_full`` may be missing, because a blocking
    producer waits while it is full.
    """
    assert public(asynchronous) - public(blocking) <= {"is_full"}
    # The asynchronous client sets these attributes in its constructor.
    assert public(blocking) - public(asynchronous) == {"metrics"}


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_the_arguments_are_the_same(asynchronous: type, blocking: type) -> None:
    """
    The constructor and each method of a blocking client have the arguments and defaults of the asynchronous client.
    Each method has a docstring.
    """
    for name in ["__init__", *sorted(public(asynchronous) & public(blocking))]:
        original, counterpart = getattr(asynchronous, name), getattr(blocking, name)
        if inspect.isfunction(original):
            assert parameters(original) == parameters(counterpart), name
            assert name == "__init__" or counterpart.__doc__


@pytest.mark.parametrize("blocking", ARGUMENTS)
def test_a_blocking_client_is_refused_in_a_coroutine(blocking: type[Any]) -> None:
    """
    A blocking client is refused in a coroutine, because it would block the event loop. The error names the asynchronous
    client. The blocking client can be closed outside.
    """
    client = blocking(*ARGUMENTS[blocking])

    async def program() -> None:
        with client:
            pass

    with pytest.raises(ConfigError, match=rf"an event loop runs.*; use kiel_groups\.{blocking.__name__} there, and"):
        asyncio.run(program())
    client.close()
    assert client.closing


@pytest.mark.parametrize("blocking", ARGUMENTS)
def test_a_close_with_a_wrong_argument_closes_nothing(blocking: type[Any]) -> None:
    """As with kafka-python's ``close(timeout_ms=...)``, which consumers do not have: the member is not dropped."""
    client = blocking(*ARGUMENTS[blocking])
    with pytest.raises(TypeError):
        client.close(timeout=1)
    if blocking is not sync.Producer:
        with pytest.raises(ConfigError, match="timeout_s"):
            client.close(timeout_s="1")
    assert not client.closing
    assert not client._thread.stopped
    client.close()
    assert client._thread.stopped


@pytest.mark.parametrize("blocking", ARGUMENTS)
def test_a_closed_client_refuses_calls(blocking: type[Any]) -> None:
    """A closed client refuses calls. A second close does nothing, and attributes can still be read."""
    client = blocking(*ARGUMENTS[blocking])
    client.close()
    client.close()
    assert client.closing
    with pytest.raises(ClosedError, match=rf"sync\.{blocking.__name__} was closed; make another one"):
        client.connect()


def test_an_invalid_setting_is_refused_at_once() -> None:
    """The constructor of a blocking client refuses an invalid setting, with the error of the asynchronous client."""
    with pytest.raises(ConfigError, match="client_id"):
        sync.Producer("127.0.0.1:1", klient_id="x")


def test_a_fork_of_the_process_does_not_affect_the_client() -> None:
    """A fork of the process does not affect the client: in the fork, a close does nothing, and a call is refused."""
    client = sync.Producer("127.0.0.1:1")
    assert client.unsent_count == 0
    assert_refused_in_fork(client.close, client.connect)
    assert not client.closing
    client.close()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_before_a_call_has_started_leaves_no_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If Ctrl-C arrives before a call has started, the call's coroutine is closed, so Python does not report it as "never
    awaited".
    """

    def interrupted() -> asyncio.AbstractEventLoop:
        raise KeyboardInterrupt

    producer = sync.Producer("127.0.0.1:1")
    # Garbage of earlier tests would warn below.
    gc.collect()
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patched.setattr(producer._thread, "_running", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.connect()
        gc.collect()
    assert [str(each.message) for each in caught] == []
    producer.close()


def leave(*_: Any) -> None:
    """Raise what ends an event loop."""
    raise SystemExit("its own")


@pytest.mark.parametrize("client", [sync.SingleConsumer, sync.Producer])
def test_an_unused_client_starts_no_thread_at_the_exit_of_the_interpreter(client: type[Any]) -> None:
    """From Python 3.12 on, no thread can start at the exit. A client that was not used needs none."""
    unused = client("127.0.0.1:1")
    unused._end_at_exit()
    assert unused._thread._thread is None
    with pytest.raises(ClosedError):
        unused._thread.run(asyncio.sleep(0))


def test_a_consumer_whose_loop_was_ended_by_an_exit_says_so_at_each_call() -> None:
    """
    After a SystemExit on its event loop, each call of a consumer raises a ClosedError with that reason. After a close
    in order, ``consume()`` returns None, and loops end. Attributes can be read after both.
    """
    consumer = sync.SingleConsumer("127.0.0.1:1")
    with pytest.raises(SystemExit, match="its own"):
        consumer._read_on_loop(leave)
    calls: list[Callable[[], Any]] = [
        lambda: consumer.consume("topic"),
        lambda: next(consumer),
        lambda: iter(consumer),
        lambda: iter(consumer),
        consumer.getmany,
        consumer.assignment,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match=r"its event loop was ended by SystemExit\('its own'\); make another one"):
            call()
    assert not consumer.closing
    consumer.close()

    closed = sync.SingleConsumer("127.0.0.1:1")
    closed.close()
    assert closed.consume("topic") is None
    with pytest.raises(StopIteration):
        next(closed)
    assert closed.closing
