"""Where offsets go: what an operator types, and the change that follows from it, partition by partition."""

import json

import pytest
from rich.console import Console

from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.offset_changes import (
    FoundTime,
    GroupOffsets,
    OffsetChange,
    Target,
    changes_document,
    changes_table,
    check_exist,
    compute_changes,
    duration_ms,
    offsets_document,
    offsets_table,
    parse_selection,
    parse_time,
    select,
    status_of,
    time_remark,
    unmatched,
)

A0, A1, A2, B0, C0 = (TopicPartition(*each) for each in (("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0)))

#: Of topic a, partition 1 has an unreadable offset, and 2 has none; topic b is gone, and c is only subscribed to.
GROUP = GroupOffsets(
    "shop",
    "zookeeper",
    {A0: 50, B0: 5},
    {"a": (0, 1, 2), "c": (0,)},
    versions={A0: 1, A1: 2, B0: 3},
    starts={A0: 10, A1: 10, A2: 0, C0: 0},
    ends={A0: 100, A1: 100, A2: 0, C0: 7},
    subscribed=frozenset({"c"}),
)


def test_topics_and_partitions_are_parsed() -> None:
    assert parse_selection(["a", "b:0,2", "b: 5 ", "c:1", "c"]) == {"a": None, "b": {0, 2, 5}, "c": None}


@pytest.mark.parametrize("text", ["", "a b", ":0", "a:", "a:x", "a:-1", "a:0,", "a:0:1", "a:99999999999", "ä"])
def test_a_wrong_topic_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^topics: "):
        parse_selection([text])


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-28T13:05:00Z", 1_795_871_100_000),
        ("2026-11-28T13:05", 1_795_871_100_000),
        ("2026-11-28T14:05:00.250+01:00", 1_795_871_100_250),
        ("2026-11-28", 1_795_824_000_000),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time(text) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "1969-12-31T23:59Z", "2026-13-01", "1795871100000000"])
def test_wrong_times(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^time: .*expected a time such as"):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90m", 5_400), ("2h", 7_200), ("1d12h", 129_600), ("500ms", 0.5), ("0s", 0), ("2w", 1_209_600)),
        *(("PT2H", 7_200), ("P1D", 86_400), ("P1DT2H30M", 95_400), ("PT0.5S", 0.5), ("P1W", 604_800)),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_ms(text) == seconds * 1000


@pytest.mark.parametrize(
    "text", ["", "5", "h", "-2h", "2 h", "P", "PT", "P1DT", "P1H", "P1M", "2h junk", "9" * 99 + "h"]
)
def test_wrong_durations(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^ago: .*expected one such as"):
        duration_ms(text)


def test_partitions_are_selected() -> None:
    """Where offsets are written, partitions exist; where they are shown or deleted, they are stored."""
    assert select(GROUP, None, stored=False) == [A0, A1, A2, C0]
    assert select(GROUP, None, stored=True) == [A0, A1, B0]
    assert select(GROUP, {"a": frozenset({1, 2})}, stored=False) == [A1, A2]
    assert select(GROUP, {"a": frozenset({1, 2}), "b": None}, stored=True) == [A1, B0]
    assert unmatched({"a": frozenset({0, 9}), "b": None, "c": None}, [A0, B0]) == ["c", "a:9"]


def test_a_partition_that_does_not_exist_is_named() -> None:
    check_exist(GROUP, [A0, A2, C0])
    with pytest.raises(ConfigError, match="a:3 does not exist; topic 'a' has 3 partitions, 0 to 2"):
        check_exist(GROUP, [A0, TopicPartition("a", 7), TopicPartition("a", 3)])


@pytest.mark.parametrize(
    ("target", "after", "note"),
    [
        (Target("earliest"), 10, ""),
        (Target("latest"), 100, ""),
        (Target("current"), 50, ""),
        (Target("offset", 10), 10, ""),
        (Target("offset", 100), 100, ""),
        (Target("offset", 9), 10, "9 is gone: the log's start"),
        (Target("offset", 101), 100, "101 is not there: the log's end"),
        (Target("shift", -20), 30, ""),
        (Target("shift", 0), 50, ""),
        (Target("shift", -60), 10, "-10 is gone: the log's start"),
        (Target("shift", 10**30), 100, "9223372036854775807 is not there: the log's end"),
    ],
)
def test_targets(target: Target, after: int, note: str) -> None:
    assert compute_changes(GROUP, [A0], target) == (OffsetChange(A0, 50, after, note),)


def test_to_current_without_an_offset_is_the_end() -> None:
    """As kafka-consumer-groups has it. An unreadable offset counts as none."""
    assert compute_changes(GROUP, [A2, A1], Target("current")) == (
        OffsetChange(A1, None, 100, "no offset: the log's end"),
        OffsetChange(A2, None, 0, "no offset: the log's end"),
    )


def test_what_has_no_offset_is_not_shifted() -> None:
    with pytest.raises(ConfigError, match="group shop has no offset of a:1, a:2 to shift; name other partitions"):
        compute_changes(GROUP, [A0, A1, A2], Target("shift", 1))


@pytest.mark.parametrize(
    ("found", "note"),
    [
        (FoundTime(40, 1_000_003_100), "its record is of 1970-01-12T13:46:43Z, 3.1 s later"),
        (FoundTime(40, 1_000_000_000), "its record is of 1970-01-12T13:46:40Z, exactly"),
        (FoundTime(40, 1_007_200_000), "its record is of 1970-01-12T15:46:40Z, 2.0 h later"),
        (FoundTime(40, 2**63 - 1), f"its record is of {2**63 - 1}, 106751991155.7 d later"),
        (FoundTime(100), "the log's end: nothing is as late"),
        (FoundTime(40, None, (10, 40, 70, 90, 100)), "segment's start, up to 50 records early"),
        (FoundTime(90, None, (10, 40, 70, 90, 100)), "segment's start, up to 10 records early"),
        (FoundTime(40), "segment's start"),
    ],
)
def test_how_far_a_record_is_from_a_time(found: FoundTime, note: str) -> None:
    """A record's time is told; of a segment, how many records may be earlier than the time."""
    changes = compute_changes(GROUP, [A0], Target("time", 1_000_000_000), {A0: found})
    assert changes == (OffsetChange(A0, 50, found.offset, note),)
    assert bool(time_remark(changes)) == note.startswith("segment's start")


def test_the_offsets_of_a_file_stay_within_the_log() -> None:
    given = {A0: FoundTime(77), A2: FoundTime(3)}
    assert compute_changes(GROUP, given, Target("file"), given) == (
        OffsetChange(A0, 50, 77),
        OffsetChange(A2, None, 0, "3 is not there: the log's end"),
    )


def test_the_status_says_what_is_wrong() -> None:
    assert [status_of(GROUP, each) for each in (A0, A1, A2, B0)] == ["", "unreadable", "no offset", "the topic is gone"]
    odd = GroupOffsets(
        "g",
        "zookeeper",
        {A0: 4, A1: 101, TopicPartition("a", 9): 1},
        GROUP.topics,
        starts=GROUP.starts,
        ends=GROUP.ends,
    )
    listed = [status_of(odd, each) for each in (A0, A1, TopicPartition("a", 9))]
    assert listed == ["before the log: 6 lost", "beyond the log's end", "no such partition"]


def test_reports_and_documents() -> None:
    changes = [
        OffsetChange(A0, 50, 10),
        OffsetChange(A1, None, 100, "no offset: the log's end"),
        OffsetChange(B0, 5, None),
    ]
    assert changes_document(changes)[2] == {"topic": "b", "partition": 0, "before": 5, "after": None, "note": None}
    document = json.loads(json.dumps(offsets_document(GROUP, [A0, A1])))
    assert document["store"] == "zookeeper"
    assert document["partitions"][0] == {
        "topic": "a", "partition": 0, "committed": 50, "log_start": 10, "log_end": 100, "lag": 50, "status": None
    }  # fmt: skip
    console = Console(width=80)
    with console.capture() as capture:
        console.print(changes_table(changes), offsets_table(GROUP, [A0, A1, A2, B0]))
    lines = [line.split() for line in capture.get().splitlines()]
    assert ["a", "0", "50", "10"] in lines
    assert ["b", "0", "5", "-"] in lines
    assert ["a", "0", "50", "10", "100", "50"] in lines
    assert ["b", "0", "5", "-", "-", "-", "the", "topic", "is", "gone"] in lines
