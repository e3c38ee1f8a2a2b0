"""The progress of a mirror, and the last line of its run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.cli.terminal.mirror_report import MirrorProgress
from kiel_groups.mirror.mirror_view import MirrorView, PartitionProgress
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import Logs
from kiel_groups.workers.stores.worker_group_view import WorkerGroup
from kiel_groups.workers.values import ConfigSnapshot, TaskId

pytestmark = pytest.mark.unit

PARTITION = TopicPartition("a", 0)
LOGS = Logs({PARTITION: 0}, {PARTITION: 4_000}, "")


def view(at_ms: int, position: int | None, end: int | None = 4_000, *, is_back: bool = False) -> MirrorView:
    """Return a mirror of one partition, whose records have a hundred bytes each."""
    records = position or 0
    row = PartitionProgress(PARTITION, "a", TaskId("m", 0), is_back, position, 0, end, records, 100 * records)
    return MirrorView("m", WorkerGroup({}, ConfigSnapshot(), {}, {}, ()), (row,), seen_ms=at_ms)


NOTHING = MirrorView("m", WorkerGroup({}, ConfigSnapshot(), {}, {}, ()))


def test_progress_has_rates_and_the_time_that_is_left() -> None:
    """Rates are those of the last twenty seconds, from the first view with a known lag."""
    progress = MirrorProgress(NOTHING, None)
    texts = [
        progress.add(each)
        for each in (NOTHING, view(1_000, None), view(2_000, 1_000), view(11_000, 1_000), view(22_000, 3_000))
    ]
    assert texts == [
        "starting",
        "0 records, 0/s, 0.0 MB/s, lag 4,000",
        "1,000 records, 1,000/s, 0.1 MB/s, lag 3,000, 3 s left",
        "1,000 records, 100/s, 0.0 MB/s, lag 3,000, 30 s left",
        "3,000 records, 100/s, 0.0 MB/s, lag 1,000, 10 s left",
    ]
    assert progress.add(view(23_000, 4_000)) == "4,000 records, 143/s, 0.0 MB/s, lag 0"
    assert progress.add(view(24_000, 4_000, None)).endswith("MB/s, unknown lag")
    assert progress.add(view(25_000, 9, is_back=True)).endswith("MB/s, lag 0 without what is copied back")


def test_a_mirror_that_falls_behind_has_no_end() -> None:
    """While the lag grows, no time is left to show."""
    progress = MirrorProgress(view(0, 0), None)
    assert progress.add(view(1_000, 1_000, 9_000)) == "1,000 records, 1,000/s, 0.1 MB/s, lag 8,000"


def test_a_partition_that_leaves_the_mirror_does_not_count() -> None:
    """Other topics than before make no negative rate, and hide no record of this run."""
    gone = PartitionProgress(TopicPartition("b", 0), "b", TaskId("m", 1), records=500, size_bytes=50_000)
    progress = MirrorProgress(replace(view(0, 1_000), partitions=(*view(0, 1_000).partitions, gone)), None)
    assert progress.add(view(1_000, 1_100)) == "100 records, 100/s, 0.0 MB/s, lag 2,900"


def test_a_topic_that_returns_to_the_mirror_is_not_counted_anew() -> None:
    """A topic that was stopped while it was turned has been mirrored before."""
    stopped = replace(view(0, 0), partitions=(), stored={(None, *PARTITION): {"records": 1_000, "bytes": 100_000}})
    progress = MirrorProgress(stopped, None)
    assert progress.add(view(1_000, 1_100)) == "100 records, 100/s, 0.0 MB/s, lag 2,900"


def test_the_end_of_a_run() -> None:
    """A run has caught up at the ends that the logs had at its start, once each partition has a task."""
    progress = MirrorProgress(NOTHING, LOGS)
    assert (progress.left, progress.is_caught_up) == (4_000, False)
    progress.add(view(1_000, 1_000, 9_000))
    assert (progress.left, progress.is_caught_up, progress.behind) == (3_000, False, ["a"])
    progress.add(view(1_000, 4_000, 9_000))
    assert (progress.left, progress.is_caught_up) == (0, True)
    # A topic that was turned round during the run has all its records. One whose task of an earlier run still copies it
    # back, although it was turned forward before this run, has not.
    for stored in (3_999, 4_000):
        progress.add(replace(view(1_000, None, is_back=True), stored={(None, *PARTITION): {"offset": stored}}))
        assert progress.is_caught_up is (stored == 4_000)
    empty = MirrorProgress(NOTHING, Logs({PARTITION: 0}, {PARTITION: 0}, ""))
    assert (empty.left, empty.is_caught_up) == (0, False)
    endless = MirrorProgress(view(0, 4_000), None)
    assert (endless.left, endless.is_caught_up) == (None, False)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (
            NOTHING,
            view(0, 4_000),
            "mirrored 4,000 records (400.0 kB) of 1 topic in 2.0 s, 2,000 records/s; 0 records behind",
        ),
        (
            view(0, 1_000),
            view(0, 1_001),
            "mirrored 1 record (100 bytes) of 1 topic in 2.0 s, 0 records/s, after 1,000 records of earlier runs;"
            " 2,999 records behind, where the next start continues",
        ),
        (
            view(0, 4_000),
            view(0, 4_000),
            "mirrored nothing new of 1 topic in 2.0 s, after 4,000 records of earlier runs; 0 records behind",
        ),
        (
            view(0, 4_000),
            view(0, 4_000, None, is_back=True),
            "mirrored nothing new of 1 topic in 2.0 s, after 4,000 records of earlier runs; what is copied back of 1"
            " topic is not counted; 0 records behind",
        ),
        (
            NOTHING,
            view(0, 1_000, None),
            "mirrored 1,000 records (100.0 kB) of 1 topic in 2.0 s, 500 records/s; how far the mirror is behind is not"
            " known",
        ),
    ],
    ids=["new", "resumed", "nothing to do", "a topic that is copied back", "unknown lag"],
)
def test_the_last_line(first: MirrorView, last: MirrorView, expected: str) -> None:
    """The line says what was mirrored in this run, and where a resumed run began."""
    progress = MirrorProgress(first, None)
    progress.add(last)
    assert progress.summary(2.0) == expected
