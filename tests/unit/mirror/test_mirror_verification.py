"""What a verification compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.mirror import mirror_verification
from kiel_groups.mirror.checkpoints import MirroredPartition
from kiel_groups.mirror.comparison import (
    DELETED,
    DOUBLED,
    EXTRA_BACK,
    MISSING,
    WAITING,
    WAITING_BACK,
    PartitionComparison,
    Records,
)
from kiel_groups.mirror.mirror_verification import MirrorVerification, _Copy
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
    found, *back = verification._copies(source, {"a": ("copy", claim)})
    assert (found.log, found.copies) == ((0, source_end), {0: (0, target_end)})
    assert found.result.part.startswith("records before its turn round") is (target_end == 8) is bool(back)
    # A partition that is newer than the turn has only records that were written on the target.
    found, *_ = verification._copies(source, {"a": ("copy", claim._replace(starts=(), resumes=(3,)))})
    assert found.copies == {0: (0, target_end if target_end == 20 else 0)}
    assert found.result.part.startswith("only records") is True


def test_a_mirror_may_copy_while_its_copies_are_verified() -> None:
    """Records that are mirrored meanwhile are neither missing nor foreign: each question finds one more."""
    partition, numbers = TopicPartition("a", 0), count(7)
    target: Any = SimpleNamespace(
        logs=lambda _: {TopicPartition("copy", 0): (0, next(numbers))},
        mirrored=lambda _: {partition: MirroredPartition(next(numbers), ())},
        settings=lambda _: {},
    )
    source: Any = SimpleNamespace(
        topics=lambda: {"a"},
        partitions_for_topic=lambda _: {0},
        beginning_offsets=lambda _: {partition: 0},
        end_offsets=lambda _: {partition: next(numbers)},
    )
    (found,) = MirrorVerification("old:9092", target, "m")._copies(source, {"a": ("copy", Claim("m", "a", "old:9092"))})
    assert found.position <= found.copies[0][1] <= found.log[1]


#: Where records were turned round on the target and on the source.
TURN = 8, 7


def copies_back(
    monkeypatch: pytest.MonkeyPatch, target_log: str, source_log: str, position: int, *, deleted: int | None = None
) -> list[PartitionComparison]:
    """
    Compare what was copied back to two partitions, and return the results. The source has only the first one.

    If some records of the source are ``deleted``, its partition had no record before the turn, so no checkpoint.
    """

    def read(log: str, first: int, start: int, end: int) -> Iterator[Records]:
        if start < end:
            yield Records(range(start, end), [8 * value.encode() for value in log[start - first : end - first]])

    monkeypatch.setattr(MirrorVerification, "_of_target", lambda _, *place: read(target_log, TURN[0], *place[-2:]))
    monkeypatch.setattr(MirrorVerification, "_of_source", lambda _, *place: read(source_log, TURN[1], *place[-2:]))
    partition, copies = TopicPartition("a", 0), [TopicPartition("copy", number) for number in range(2)]
    logs = {copies[0]: (0, TURN[0] + len(target_log)), copies[1]: (0, 5)}
    mirrored = {partition: MirroredPartition(TURN[1], ())} if deleted is None else {}
    target: Any = SimpleNamespace(logs=lambda _: logs, mirrored=lambda _: mirrored, settings=lambda _: {})
    source: Any = SimpleNamespace(
        topics=lambda: {"a"},
        partitions_for_topic=lambda _: {0},
        beginning_offsets=lambda _: {partition: 0 if deleted is None else TURN[1] + deleted},
        end_offsets=lambda _: {partition: TURN[1] + len(source_log)},
    )
    claim = Claim("m", "a", "old:9092", direction=BACK, starts=TURN[:1], ends=() if deleted is None else TURN[1:])
    verification = MirrorVerification("old:9092", target, "m", copied_back=lambda _: position)
    _, *back = verification._copies(source, {"a": ("copy", claim)})
    return [verification._compare(each, source) for each in back]


@pytest.mark.parametrize(
    ("target_log", "source_log", "position", "counts"),
    [
        ("abcd", "abcd", 12, {}),
        ("abcd", "acd", 12, {MISSING: 1}),
        ("abcd", "ab", 10, {WAITING_BACK: 2}),
        ("abcd", "ab", 12, {MISSING: 2}),
        ("abcd", "ababcd", 12, {DOUBLED: 2}),
        ("abcd", "abxcd", 12, {EXTRA_BACK: 1}),
        ("", "xy", 8, {EXTRA_BACK: 2}),
        ("abcd", "abx", 10, {EXTRA_BACK: 1, WAITING_BACK: 2}),
    ],
    ids=[
        "all",
        "one is missing",
        "the rest waits",
        "the rest is missing",
        "after a crash",
        "another producer",
        "nothing was copied",
        "another producer, and the rest waits",
    ],
)
def test_what_was_copied_back_is_compared(
    target_log: str, source_log: str, position: int, counts: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target had the records first. They are copied at least once, so doubled ones are always explained."""
    found, new = copies_back(monkeypatch, target_log, source_log, position)
    assert (dict(found.counts), found.records) == (counts, (len(source_log), len(target_log)))
    assert found.compared == ((TURN[1], TURN[1] + len(source_log)), (TURN[0], TURN[0] + len(target_log)))
    is_wrong = not counts.keys() <= {WAITING_BACK, DOUBLED}
    assert bool(found.unexplained(is_exactly_once=True)) is is_wrong
    assert [each.source is None for each in found.differences if each.kind == MISSING] == [True] * (MISSING in counts)
    assert new.refusal == "the source has no such partition, so the records wait"


@pytest.mark.parametrize(
    ("source_log", "deleted", "counts"),
    [("abcd", 2, {DELETED: 2}), ("acd", 0, {MISSING: 1})],
    ids=["deleted", "missing"],
)
def test_records_that_the_source_has_deleted_since_the_turn_are_not_missing(
    source_log: str, deleted: int, counts: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a partition without a checkpoint, the claim knows where its log on the source ended at the turn."""
    found, _ = copies_back(monkeypatch, "abcd", source_log, 12, deleted=deleted)
    assert dict(found.counts) == counts


def test_what_is_not_mirrored_of_a_topic_with_hashed_keys_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what a mirror is behind nor a partition that waits is left out of the verdict."""

    def read(_: MirrorVerification, *arguments: Any) -> list[Records]:
        start, end = arguments[-2:]
        return [Records(range(start, end), [b"digest"] * (end - start))]

    for name in ("_of_source", "_of_target"):
        monkeypatch.setattr(MirrorVerification, name, read)
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    behind = _Copy(PartitionComparison(first, "copy"), (1, 5), {0: (0, 2)}, (), 3)
    new = _Copy(PartitionComparison(second, "copy"), (0, 5), {0: (0, 2)}, (), 0)
    source: Any = None
    found = MirrorVerification("old:9092", source, "m")._compare_hashed("a", [behind, new], source)
    assert (found.records, found.equal, dict(found.counts)) == ((9, 2), 2, {WAITING: 7})
    assert not found.unexplained(is_exactly_once=True)


def test_records_that_are_read_twice_are_one_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where logs begin between two checkpoints, the search for the beginning reads records of the source, too."""
    partition, end, shown = TopicPartition("a", 0), 9, list[tuple[int, int]]()
    position = 0

    def subscribe(_: str, at: dict[TopicPartition, int], __: list[int]) -> None:
        nonlocal position
        position = at[partition]

    def batches(**_: object) -> dict[TopicPartition, list[Any]]:
        nonlocal position
        offsets = range(position, min(position + 4, end))
        position += 4
        values = SimpleNamespace(to_list=lambda: [b"%d" % offset for offset in offsets])
        return {partition: [SimpleNamespace(offsets=offsets, keys=values, values=values, next_offset=offsets.stop)]}

    consumer: Any = SimpleNamespace(unsubscribe=lambda: None, subscribe=subscribe, consume_batches=batches)
    monkeypatch.setattr(mirror_verification, "_SHOW_S", 0)
    monkeypatch.setattr(
        MirrorVerification,
        "_of_target",
        lambda _, __, ___, start, stop: iter([Records(range(start, stop), [b"differs!"] * (stop - start))]),
    )
    verification = MirrorVerification("old:9092", SimpleNamespace(), "m", progress=lambda _, *done: shown.append(done))  # type: ignore[arg-type]
    verification._total = end - 1
    copy = _Copy(PartitionComparison(partition, "copy"), (1, end), {0: (3, 12)}, [(0, 0), (7, 10)], end)
    verification._compare(copy, consumer)
    assert shown[-1] == (end - 1, end - 1)
