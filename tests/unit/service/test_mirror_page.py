"""What the console shows of mirrors: progress in words, topics, and problems with remedies."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.worker_contents import Sample
from kiel_groups.service.connectors import Work
from kiel_groups.service.mirror_page import MirroredTopic, mirrors

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_000
CONFIG = {
    "connector.class": "kiel_groups.mirror.connector:MirrorConnector",
    "source.bootstrap.servers": "old:9092",
    "target.topic.format": "old.${topic}",
}
CONNECTOR = Work("m", None, "source", "RUNNING", "h:1", "", CONFIG)


def samples(topic: str, lag: int, rate: float, age_s: float, **totals: int) -> tuple[Sample, ...]:
    """Return the metrics of a task with two partitions of a topic."""
    of_topic = {
        "partitions": 2.0,
        "lag_records": float(lag),
        "records_per_second": rate,
        "checkpoint_timestamp_seconds": NOW_MS / 1000 - age_s,
    }
    found: list[Sample] = [(f"mirror_{name}", (("topic", topic),), value) for name, value in of_topic.items()]
    return (*found, *((f"mirror_{name}", (), count) for name, count in totals.items()))


def task(number: int, metrics: tuple[Sample, ...] = (), state: str = "RUNNING", problem: str = "") -> Work:
    return Work("m", number, "task", state, "h:1", problem, metrics=metrics)


def test_topics_and_progress() -> None:
    """The tasks of a topic are summed up. The checkpoint that counts is that of the task with a lag."""
    behind = samples("a", 3_000, 25.0, 40, records=70, dead_letters=2, transactions_aborted=1)
    works = [CONNECTOR, task(0, behind), task(1, samples("a", 0, 0.0, 900)), task(2, samples("(others)", 0, 5.0, 3))]
    (found,) = mirrors([Work("file", None, "source", "RUNNING", "h:1", ""), *works], "g", "http://h:1", NOW_MS)
    assert found.topics == [
        MirroredTopic("(others)", "", 2, 0, 5, "3 s ago"),
        MirroredTopic("a", "old.a", 4, 3_000, 25, "40 s ago"),
    ]
    assert found.progress == (
        "Running: 3,000 records are left, at 30 a second for about 100 s; 70 since its tasks last began to copy; 2 dead"
        " letters; 1 aborted transaction."
    )
    assert found.problems == []
    (done,) = mirrors([CONNECTOR, task(0, samples("a", 0, 0.0, 900, records=70))], "g", "http://h:1", NOW_MS)
    assert done.progress == "Running: all records are mirrored; 70 since its tasks last began to copy."
    values = {"records_copied_back": 9.0, "partitions": 2.0, "lag_records": 5.0, "records_per_second": 1.0}
    back: list[Sample] = [(f"mirror_{name}", (("topic", "b"),), value) for name, value in values.items()]
    (turned,) = mirrors([CONNECTOR, task(0, tuple(back))], "g", "http://h:1", NOW_MS)
    assert turned.topics == [MirroredTopic("b", "old.b (back)", 2, 5, 1, "")]
    assert turned.progress == (
        "Running: 5 records are left, at 1 a second for about 5 s; 0 since its tasks last began to copy; 9 records"
        " copied back."
    )
    # Before the source has answered, a task has no lag.
    unknown = tuple(each for each in behind if each[0] != "mirror_lag_records")
    for problem, text in (("", "Running: how many"), ("the target is late", "Running: waiting; how many")):
        (new,) = mirrors([CONNECTOR, task(0, behind), task(1, unknown, problem=problem)], "g", "http://h:1", NOW_MS)
        assert [topic.lag for topic in new.topics] == [None]
        assert new.progress.startswith(f"{text} records are left is not known yet; ")
    (idle,) = mirrors([CONNECTOR._replace(state="PAUSED")], "g", "http://h:1", NOW_MS)
    assert (idle.progress, idle.topics) == ("Nothing is known of its topics while none of its tasks runs.", [])


@pytest.mark.parametrize(
    ("state", "problem", "remedy"),
    [
        ("RUNNING", "the source does not answer: x; trying again", "the task continues when a broker of the source"),
        ("RUNNING", "the target n has refused a transaction, which is written again: x", "the task writes the same"),
        (
            "RUNNING",
            "the source o has not stored records of a:1 within 10 s; trying again",
            "the task waits for the so",
        ),
        ("RUNNING", "the target n has not stored 3 records within 10 s; trying again", "the task waits for the target"),
        (
            "RUNNING",
            "a:0 of the source was mirrored up to offset 7: mirror it by a connector of another name",
            "the task copies other",
        ),
        ("FAILED", "KielGroupsError: the target n refuses to store the record at offset 3 of a:1: x", "raise max.m"),
        ("FAILED", "KielGroupsError: the target n has fenced this task: x", "no other mirror may have the same name"),
        ("FAILED", "ValueError: x", "remove the cause; 'kiel-groups connectors restart m --with-tasks --only-failed"),
        (
            "UNASSIGNED",
            "",
            "a worker takes it within seconds; if none is alive,"
            " 'kiel-groups workers run --group g --brokers old:9092' starts",
        ),
        (
            "FAILED",
            "KielGroupsError: x store the record at x: the topic is compacted, and the record has no key",
            "nam",
        ),
    ],
)
def test_problems_have_remedies(state: str, problem: str, remedy: str) -> None:
    """Each problem is shown with its task and with what to do about it. A task that waits has no rate."""
    works = [CONNECTOR, *(task(number, samples("a", 5, 9.0, 1), state, problem) for number in (2, 3))]
    (found,) = mirrors(works, "g", "h", NOW_MS)
    ((text, given),) = found.problems
    assert text == f"m-2, m-3: {problem or 'no worker runs it'}"
    assert given.startswith(remedy)
    assert found.topics[0].rate == (0 if problem else 18)
    assert ("waiting; 10 records were left" in found.progress) == bool(problem)
