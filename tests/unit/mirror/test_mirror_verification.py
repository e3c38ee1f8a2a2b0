"""What a verification compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.mirror.checkpoints import MirroredPartition
from kiel_groups.mirror.mirror_verification import MirrorVerification
from kiel_groups.mirror.values import BACK, FORWARD, RETURNING, STOPPED, Claim
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("direction", "source_end", "target_end"),
    [(FORWARD, 9, 20), (STOPPED, 9, 20), (BACK, 7, 8), (RETURNING, 7, 8)],
)
def test_records_that_are_copied_back_are_not_compared(direction: str, source_end: int, target_end: int) -> None:
    """They were written on the target. This also holds while the topic is turned forward, and if that is killed."""
    partition = TopicPartition("a", 0)
    target: Any = SimpleNamespace(
        logs=lambda _: {TopicPartition("copy", 0): (0, 20)},
        mirrored=lambda _: {partition: MirroredPartition(7, ())},
        settings=lambda _: {},
    )
    source: Any = SimpleNamespace(
        topics=lambda: {"a"},
        partitions_for_topic=lambda _: {0},
        beginning_offsets=lambda _: {partition: 0},
        end_offsets=lambda _: {partition: 9},
    )
    claim = Claim("m", "a", "old:9092", direction=direction, starts=(8,))
    verification = MirrorVerification("old:9092", target, "m")
    (found,) = verification._partitions(source, {"a": ("copy", claim)})
    assert (found.source_log, found.target_logs) == ((0, source_end), {0: (0, target_end)})
    assert found.part.startswith("only records before its turn round") is (target_end == 8)
    # A partition that is newer than the turn has only records that were written on the target.
    (found,) = verification._partitions(source, {"a": ("copy", claim._replace(starts=(), resumes=(3,)))})
    assert found.target_logs == {0: (0, target_end if target_end == 20 else 0)}
    assert found.part.startswith("only records") is True
