"""Closes right after a start was cancelled, or while a former membership ends: none leaves anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from kiel_groups import GenericMember, TopicPartition
from kiel_groups.errors import ClosedError
from tests.helpers.group_backends import GroupBackend
from tests.helpers.leftovers import Leftovers
from tests.helpers.scripted_coordinator import RecordedHooks

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

#: The seconds between an ``assign`` and the close that follows; None: not even a turn of the event loop.
_PAUSES_S = (None, 0.0, 0.005, 0.02)

#: How many moments of a start are played.
_MOMENTS = 24

#: How long threads may take to end a session or a membership, in seconds.
_THREADS_S = 5.0


@dataclass(frozen=True, slots=True)
class _Member:
    """A consumer, or a generic member."""

    start: Callable[[], Awaitable[object]]
    close: Callable[[], Awaitable[object]]


def _consumer(backend: GroupBackend, group: str) -> _Member:
    consumer = backend.consumer(group)
    return _Member(consumer.connect, consumer.close)


def _generic_member(backend: GroupBackend, group: str) -> _Member:
    settings: dict[str, Any] = {"zk_hosts": backend.settings["zk_hosts"]}
    if backend.by_brokers:
        settings = {"brokers": backend.cluster.brokers, "coordination": "brokers"}
    member = GenericMember(RecordedHooks([], "test"), group, **settings)
    return _Member(member.start, member.close)


@pytest.mark.parametrize("new", [_consumer, _generic_member])
async def test_a_cancelled_start_leaves_nothing(
    backend: GroupBackend, unique: Unique, new: Callable[[GroupBackend, str], _Member]
) -> None:
    """No task, no thread and no socket is left, whatever the member had sent or begun when its start was cancelled."""
    group = unique("group")
    before = Leftovers()
    began_s = time.monotonic()
    complete = new(backend, group)
    await complete.start()
    took_s = time.monotonic() - began_s
    await complete.close()
    for moment in range(_MOMENTS):
        member = new(backend, group)
        starting = asyncio.ensure_future(member.start())
        await asyncio.wait({starting}, timeout=took_s * moment / _MOMENTS)
        starting.cancel()
        await member.close()
        with suppress(asyncio.CancelledError, ClosedError):
            await starting
    await before.check(0.5, _THREADS_S)


@pytest.mark.parametrize("timeout_s", [0.0, 0.01, None])
async def test_a_close_ends_the_membership_that_assign_has_replaced(
    backend: GroupBackend, unique: Unique, timeout_s: float | None
) -> None:
    """``assign`` leaves the group in the background. That ends with the close, also if the close has no time left."""
    topic = unique("topic")
    await backend.cluster.create_topic(topic, 1)
    before = Leftovers()
    for pause_s in _PAUSES_S:
        consumer = backend.consumer(unique("group"))
        await consumer.connect()
        consumer.assign([TopicPartition(topic, 0)])
        if pause_s is not None:
            await asyncio.sleep(pause_s)
        await consumer.close(timeout_s=timeout_s)
    await before.check(0.5, _THREADS_S)
