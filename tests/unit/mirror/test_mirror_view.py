"""How far a mirror is, by the znodes of its tasks and positions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.cli.terminal.mirror_report import mirror_problems
from kiel_groups.group.znodes.contents import Znode
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.worker_contents import SourceOffset, partition_digest
from kiel_groups.mirror import mirror_view
from kiel_groups.mirror.mirror_view import (
    MirrorView,
    PartitionProgress,
    mirrored_partitions,
    stored_offsets,
    with_checkpoints,
)
from kiel_groups.mirror.values import CLAIMS_TOPIC, RETURNING, STOPPED, Claim
from kiel_groups.model import TopicPartition
from kiel_groups.workers.stores.worker_group_view import WorkerGroup
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, TaskId

pytestmark = pytest.mark.unit

FIRST, SECOND, BACK = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def group_of(*tasks: Mapping[str, str]) -> WorkerGroup:
    """Return a worker group whose connector ``m`` has tasks with these settings."""
    return WorkerGroup({}, ConfigSnapshot(1, {"m": ConnectorEntry({}, tasks=tasks)}), {}, {}, ())


def stored(partition: Mapping[str, Any], **offset: int) -> tuple[str, Znode]:
    """Return the path and the znode of a source offset."""
    path = WorkerLayout("m").source_offset("m", partition_digest(partition))
    return path, Znode(SourceOffset(partition, offset).encode(), modified_ms=5)


def test_partitions_of_tasks_have_the_stored_positions() -> None:
    """
    Positions are found by partition and direction. A znode with garbage counts as no position. A partition without a
    position begins where a bulk copy has ended. A topic that was turned round keeps the count of its mirrored records.
    """
    tasks = (
        {
            "mirror.partitions": json.dumps([SECOND]),
            "target.topic.format": "copy.${topic}",
            "start.offsets": '{"a": {"0": 3, "1": 4}}',
        },
        {"mirror.partitions": json.dumps([FIRST]), "mirror.back": json.dumps([(*BACK, 9)]), "start.offsets": ""},
    )
    offsets = dict(
        [
            stored(FIRST._asdict(), offset=7, records=6, bytes=60),
            stored(BACK._asdict(), offset=1, records=1, bytes=10),
            stored({"cluster": "target", **BACK._asdict()}, offset=12),
            ("/x", Znode(b"garbage")),
        ]
    )
    assert mirrored_partitions("m", group_of(*tasks), stored_offsets(offsets)) == [
        PartitionProgress(FIRST, "a", TaskId("m", 1), position=7, records=6, size_bytes=60, stored_ms=5),
        PartitionProgress(SECOND, "copy.a", TaskId("m", 0), position=4),
        PartitionProgress(BACK, "b", TaskId("m", 1), is_back=True, position=12, records=1, size_bytes=10, stored_ms=5),
    ]


@pytest.mark.parametrize(
    ("position", "start", "end", "lag"),
    [(7, 0, 10, 3), (7, 0, 5, 0), (None, 4, 10, 6), (2, 4, 10, 6), (7, 0, None, None), (None, None, 10, None)],
    ids=["behind", "ahead", "new", "expired", "unknown end", "unknown start"],
)
def test_the_lag_of_a_partition(position: int | None, start: int | None, end: int | None, lag: int | None) -> None:
    """Records that the source has deleted do not count."""
    each = PartitionProgress(FIRST, "a", TaskId("m", 0), position=position, start=start, end=end)
    assert each.lag == lag


def test_the_lag_of_a_mirror() -> None:
    """The lag is known if that of each partition is. Partitions that are copied back have none."""
    known = PartitionProgress(FIRST, "a", TaskId("m", 0), position=7, start=0, end=10)
    unknown, back = known._replace(end=None), known._replace(is_back=True)
    lags = [MirrorView("m", group_of(), each).lag for each in [(), (known, known), (known, unknown), (known, back)]]
    assert lags == [None, 6, None, 3]


def test_a_topic_that_is_copied_in_no_direction_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a killed turn, no task has the topic, so no other line would name it. A new target has no claims."""
    claim = Claim("m", "a", "old:9092", direction=STOPPED)
    claims = {
        "copy.a": claim,
        "copy.b": claim._replace(topic="b", direction=RETURNING),
        "copy.c": claim._replace(topic="c", direction="forward"),
        "copy.d": claim._replace(mirror="other"),
    }
    counts = {CLAIMS_TOPIC: 1}
    target = SimpleNamespace(partitions=lambda _: counts, claims=lambda: claims, mirrored=lambda _: {})
    monkeypatch.setattr(mirror_view, "open_target", lambda _: target)
    found = list(mirror_problems(with_checkpoints(MirrorView("m", group_of()), {}, timeout_s=1)))
    assert [each.partition(" is stopped while 'kiel-groups mirror reverse")[0] for each in found] == [
        "the topic a",
        "the topic b",
    ]
    counts.clear()
    assert with_checkpoints(MirrorView("m", group_of()), {}, timeout_s=1).stopped == ()
