"""Whether a topic was deleted and created again, by what brokers answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.group.seen_topics import LogSight, SeenTopics, Verdict, judge_logs
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


def watched() -> tuple[SeenTopics, list[str]]:
    """Return seen topics, and a list of what they report."""
    seen, reports = SeenTopics(), list[str]()
    seen.changed = lambda topic: reports.append(f"changed {topic}")
    seen.doubted = lambda topic: reports.append(f"doubted {topic}")
    return seen, reports


def test_another_id_is_another_topic() -> None:
    """The first id, and the same one, say nothing new."""
    seen, reports = watched()
    for topic_id in ("a", "a", "b", "b"):
        seen.identified("t", topic_id)
    assert (seen.number("t"), reports) == (1, ["changed t"])


def test_a_former_id_is_the_answer_of_a_broker_with_old_metadata() -> None:
    """It must not reset the positions in the new log."""
    seen, reports = watched()
    for topic_id in ("a", "b", "a", "b"):
        seen.identified("t", topic_id)
    assert (seen.number("t"), reports) == (1, ["changed t"])


def test_a_topic_that_was_missing_is_doubted_and_not_changed() -> None:
    """The client may have had no right to see it; the logs decide."""
    seen, reports = watched()
    seen.missing("t")
    assert seen.was_missing("t")
    seen.listed("t")
    assert (seen.number("t"), reports, seen.was_missing("t")) == (0, ["doubted t"], True)
    seen.settle("t", seen.absences("t"))
    assert not seen.was_missing("t")


def test_an_absence_after_a_comparison_began_needs_another_comparison() -> None:
    """The leaders may have answered before the topic was deleted."""
    seen, reports = watched()
    before = seen.absences("t")
    seen.missing("t")
    seen.settle("t", before)
    assert seen.was_missing("t")
    seen.listed("t")
    assert reports == ["doubted t"]


def test_the_offsets_of_a_topic_with_an_id_are_trusted_although_it_was_missing() -> None:
    """Its id says whether it is the same."""
    seen, _ = watched()
    seen.identified("t", "a")
    seen.missing("t")
    assert seen.take_doubt("t") is None


@pytest.mark.parametrize("doubt", [SeenTopics.missing, SeenTopics.renew])
def test_no_stored_offset_is_trusted_after_a_doubt_until_it_was_compared(
    doubt: Callable[[SeenTopics, str], None],
) -> None:
    """Other members may not have noticed it, and coordinators of 0.9 keep the offsets of deleted topics (seed 140)."""
    seen, _ = watched()
    assert seen.trusted("t") is None
    doubt(seen, "t")
    trusted = seen.take_doubt("t")
    assert trusted == set()
    trusted.add(TopicPartition("t", 0))
    seen.settle("t", seen.absences("t"))
    assert seen.trusted("t") == {TopicPartition("t", 0)}


def test_a_topic_that_was_created_again_is_in_doubt_no_longer() -> None:
    """The first incarnation has the number 0, also before brokers have listed the topic."""
    seen, _ = watched()
    assert seen.number("t") == 0
    seen.identified("t", "a")
    seen.missing("t")
    seen.listed("t")
    seen.identified("t", "b")
    assert (seen.number("t"), seen.was_missing("t")) == (1, False)


def test_a_later_doubt_begins_anew() -> None:
    """A member that compares offsets while the topic is missing has to do so again when it is there (seed 8)."""
    seen, _ = watched()
    seen.missing("t")
    former = seen.take_doubt("t")
    assert former is not None
    seen.listed("t")
    former.add(TopicPartition("t", 0))
    assert seen.was_missing("t")
    assert seen.take_doubt("t") == set()
    assert not seen.was_missing("t")


SAME = LogSight(50, 0, 90, has_record=True)
OTHER = LogSight(50, 0, 90, has_record=False)
FIRST = LogSight(50, 0, 90, has_record=False, is_first=True)
SHORT = LogSight(50, 0, 20)
PLAIN = LogSight(50, 0, 90)


@pytest.mark.parametrize(
    ("sights", "unknown", "missing", "verdict"),
    [
        ([SAME], True, True, Verdict.SAME),
        ([SHORT, OTHER, SAME], True, True, Verdict.SAME),
        ([OTHER], True, False, Verdict.NEW),
        ([OTHER], False, True, Verdict.NEW),
        ([FIRST], False, False, Verdict.NEW),
        ([PLAIN, FIRST], False, False, Verdict.NEW),
        ([SHORT], False, True, Verdict.NEW),
        # What an unclean election leaves: the reset policy goes on to apply.
        ([OTHER], False, False, Verdict.UNKNOWN),
        ([SHORT], False, False, Verdict.UNKNOWN),
        # The fetch that a broker denies right after its start, and a log that the election has truncated.
        ([SHORT], True, False, Verdict.UNKNOWN),
        ([PLAIN], True, True, Verdict.UNKNOWN),
        ([LogSight(50, 0, 50)], True, True, Verdict.UNKNOWN),
        ([], True, True, Verdict.UNKNOWN),
    ],
)
def test_logs_say_whether_their_topic_is_another_one(
    sights: list[LogSight], unknown: bool, missing: bool, verdict: Verdict
) -> None:
    """A topic is deleted as a whole; what a truncated log shows is no new log."""
    assert judge_logs(sights, was_unknown=unknown, was_missing=missing) is verdict
