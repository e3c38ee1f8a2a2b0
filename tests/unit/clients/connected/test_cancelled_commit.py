"""A commit whose caller is cancelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.clients.connected.connected_consumer import ConnectedConsumer
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


async def test_a_commit_completes_although_its_caller_is_cancelled() -> None:
    """
    A commit completes although its caller is cancelled. Otherwise, a later release would attribute the offset of the
    unfinished commit to another writer.
    """
    started, answered, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Member:
        async def commit_on_session(self, metadata: str) -> frozenset[TopicPartition]:
            started.set()
            await answered.wait()
            done.set()
            return frozenset()

    waiting = ConnectedConsumer.commit_shielded(cast(Any, SimpleNamespace(member=Member())))
    await started.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    answered.set()
    async with asyncio.timeout(5.0):
        await done.wait()
    assert waiting.cancelled()
