"""Offsets of several leaders at once: one leader's failure is not the others'."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.clients.net.offset_lookup import EARLIEST, Cluster, ask_leaders
from kiel_groups.errors import ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.list_offsets_v0 import ListedOffsets
from kiel_groups.wire.error_codes import NO_ERROR

pytestmark = pytest.mark.unit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class TwoLeaders:
    """Leader 0 has the first partition, and answers after leader 1, whose answer cannot be decoded."""

    def __init__(self) -> None:
        self.failed = asyncio.Event()

    def leader_of(self, partition: TopicPartition) -> int:
        return partition.partition

    def drop_overrides(self, partitions: Iterable[TopicPartition]) -> None:
        """There are none."""

    async def send(self, target: int, request: object, *, timeout_ms: int | None = None) -> Any:
        if target == 1:
            self.failed.set()
            raise ProtocolError("the answer has one byte")
        await self.failed.wait()
        return SimpleNamespace(partitions={T0: ListedOffsets(NO_ERROR, (5,))})


async def test_an_undecodable_answer_does_not_end_the_wait_for_other_leaders() -> None:
    """The later answer of the other leader counts, and only the partition of the first one has failed."""
    found: dict[TopicPartition, int] = {}
    failures = await ask_leaders(cast(Cluster, TwoLeaders()), [T0, T1], EARLIEST, found)
    assert found == {T0: 5}
    assert failures.keys() == {T1}
    assert isinstance(failures[T1].error, ProtocolError)
