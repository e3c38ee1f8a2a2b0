"""The renewal of offsets that are stored in Kafka, which expire there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.partition_offsets import Commit, StartPosition, StoredOffset
from kiel_groups.members.offsets.owned_offsets import OwnedOffsets, Written
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


class Store:
    """Stores all offsets."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        self.commits.append({partition: commit.offset for partition, commit in commits.items()})
        return Written({partition: StoredOffset(*commit) for partition, commit in commits.items()}, {})


async def test_stored_offsets_are_renewed_also_of_partitions_with_uncommitted_records() -> None:
    """
    An application that commits by itself, and rarely, keeps its offsets. A newer offset that a commit without an answer
    may have stored is not overwritten.
    """
    tracker, store = OffsetTracker(), Store()
    tracker.claim([P0, P1, P2], 0)
    tracker.open({partition: StartPosition(10, 0, 1) for partition in (P0, P1, P2)})
    for partition in (P1, P2):
        state = tracker.of(partition)
        assert state is not None
        state.position = state.finished = 20
    tracker.sent({P2: Commit(20, 0)})
    owned = OwnedOffsets("g", cast(Any, None), tracker, Metrics(), cast(Any, store), cast(Any, None))
    await owned.renew(tracker.open_partitions)
    assert store.commits == [{P0: 10, P1: 10}]
    assert tracker.commits().keys() == {P1, P2}
