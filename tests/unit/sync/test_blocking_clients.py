"""The blocking clients have what the asynchronous ones have, under the same names, with the same arguments."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups import clients, sync
from kiel_groups.errors import ClosedError, ConfigError

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
    """Names that a program may use."""
    return {name for name in dir(client) if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """What a caller passes."""
    return [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"]


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_the_names_are_the_same(asynchronous: type, blocking: type) -> None:
    """Nothing is missing; a producer that waits needs nobody to ask whether it is full."""
    assert public(asynchronous) - public(blocking) <= {"is_full"}
    # Made when the other one is constructed.
    assert public(blocking) - public(asynchronous) == {"metrics"}


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_the_arguments_are_the_same(asynchronous: type, blocking: type) -> None:
    """So are their defaults, in the constructor and in every method; each method has a docstring."""
    for name in ["__init__", *sorted(public(asynchronous) & public(blocking))]:
        theirs, ours = getattr(asynchronous, name), getattr(blocking, name)
        if inspect.isfunction(theirs):
            assert parameters(theirs) == parameters(ours), name
            assert name == "__init__" or ours.__doc__


@pytest.mark.parametrize("blocking", ARGUMENTS)
def test_a_coroutine_is_told_which_client_is_its_own(blocking: type[Any]) -> None:
    """It would stand still meanwhile, and its loop with it; the client can be closed outside of it."""
    client = blocking(*ARGUMENTS[blocking])

    async def program() -> None:
        with client:
            pass

    with pytest.raises(ConfigError, match=rf"an event loop runs.*; use kiel_groups\.{blocking.__name__} there, and"):
        asyncio.run(program())
    client.close()
    assert client.closing


@pytest.mark.parametrize("blocking", ARGUMENTS)
def test_a_closed_client_says_so(blocking: type[Any]) -> None:
    """Closing again does nothing; what stood there can still be read; a call is refused."""
    client = blocking(*ARGUMENTS[blocking])
    client.close()
    client.close()
    assert client.closing
    with pytest.raises(ClosedError, match=rf"sync\.{blocking.__name__} was closed; make another one"):
        client.connect()


def test_a_setting_that_cannot_work_is_refused_at_once() -> None:
    """As the asynchronous client refuses it, before a thread is started."""
    with pytest.raises(ConfigError, match="client_id"):
        sync.Producer("127.0.0.1:1", klient_id="x")


def test_a_fork_of_the_process_leaves_the_client_alone() -> None:
    """Its 'with' block ends there without a sign, a call is refused; the parent's client goes on."""
    client = sync.Producer("127.0.0.1:1")
    assert client.unsent_count == 0
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.close()
            client.connect()
        except ClosedError as error:
            status = 0 if "this is a fork of it" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not client.closing
    client.close()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_before_a_call_has_begun_leaves_no_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is there yet that Python would call "never awaited"."""

    def interrupted() -> asyncio.AbstractEventLoop:
        raise KeyboardInterrupt

    producer = sync.Producer("127.0.0.1:1")
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        patched.setattr(producer._thread, "_running", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.connect()
        gc.collect()
    assert [str(each.message) for each in told] == []
    producer.close()
