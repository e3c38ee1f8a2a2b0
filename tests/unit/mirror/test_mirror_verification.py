"""What a verification compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.mirror.checkpoints import MirroredPartition
from kiel_groups.mirror.comparison import WAITING, Records
from kiel_groups.mirror.mirror_verification import MirrorVerification, _Partition
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


def test_what_is_not_mirrored_of_a_topic_with_hashed_keys_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what a mirror is behind nor a partition that waits is left out of the verdict."""

    def read(_: MirrorVerification, *arguments: Any) -> list[Records]:
        start, end = arguments[-2:]
        return [Records(range(start, end), [b"digest"] * (end - start))]

    for name in ("_of_source", "_of_target"):
        monkeypatch.setattr(MirrorVerification, name, read)
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    behind = _Partition(first, "copy", (1, 5), {0: (0, 2)}, MirroredPartition(3, (), is_hashed=True), (), False, 0, "")
    new = _Partition(second, "copy", (0, 5), {0: (0, 2)}, None, (), False, 0, "")
    source: Any = None
    found = MirrorVerification("old:9092", source, "m")._compare_hashed("a", [behind, new], source)
    assert (found.records, found.equal, dict(found.counts)) == ((9, 2), 2, {WAITING: 7})
    assert not found.unexplained(is_exactly_once=True)
