"""Patterns of topics: what is compared, what is remembered, and what does not fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.group import topic_patterns
from kiel_groups.group.planner import Inputs, describe_change
from kiel_groups.group.topic_patterns import KnownMatches, PatternMatch, compiled_pattern
from kiel_groups.group.znodes.contents import MemberInfo


def answer(known: KnownMatches, patterns: set[str], topics: list[str]) -> dict[str, list[str]]:
    """Answer all questions with ``re``, and return them."""
    questions = known.questions(patterns, topics)
    known.answered(questions, {each: [bool(re.match(each, t)) for t in listed] for each, listed in questions.items()})
    return dict(questions)


def test_each_topic_is_compared_once_with_each_pattern() -> None:
    """500 topics that come one by one cost 500 comparisons. Deleted topics and unused patterns are forgotten."""
    known, compared = KnownMatches(), 0
    topics: list[str] = []
    for number in range(500):
        topics.append(f"t{number}")
        compared += sum(map(len, answer(known, {"t"}, topics).values()))
        assert len(known.matches()["t"].topics) == number + 1
    assert compared == 500
    assert answer(known, {"t", "u"}, ["t1", "u"]) == {"t": ["u"], "u": ["t1", "u"]}
    assert known.matches() == {"t": PatternMatch(("t1",)), "u": PatternMatch(("u",))}
    assert answer(known, {"u"}, ["t1", "t2", "u"]) == {"u": ["t2"]}
    assert answer(known, {"t"}, ["t1"]) == {"t": ["t1"]}, "the pattern was forgotten"


def test_a_pattern_matches_from_the_beginning_and_no_internal_topic() -> None:
    known = KnownMatches()
    answer(known, {".*", "b"}, ["__consumer_offsets", "__transaction_state", "ab", "ba"])
    assert known.matches() == {".*": PatternMatch(("ab", "ba")), "b": PatternMatch(("ba",))}


def test_a_refused_pattern_is_named_and_not_compared_again() -> None:
    """It matches nothing until it leaves the patterns in use. Other patterns are not affected."""
    known = KnownMatches()
    questions = known.questions({"t", "(a|a)*b"}, ["t1"])
    known.answered(questions, {"t": [True], "(a|a)*b": "it takes too long"})
    assert known.matches() == {"t": PatternMatch(("t1",)), "(a|a)*b": PatternMatch((), "it takes too long")}
    assert known.questions({"t", "(a|a)*b"}, ["t1", "t2"]) == {"t": ["t2"]}
    known.questions({"t"}, ["t1"])
    assert known.questions({"t", "(a|a)*b"}, ["t1"]) == {"(a|a)*b": ["t1"]}


def test_patterns_that_were_not_compared_keep_what_is_known_and_come_first() -> None:
    known = KnownMatches()
    answer(known, {"z"}, ["z1"])
    questions = known.questions({"a", "z"}, ["z1", "z2"])
    assert list(questions) == ["z", "a"]
    known.answered(questions, {})
    assert known.matches("later") == {"a": PatternMatch((), "later"), "z": PatternMatch(("z1",), "later")}


def test_topics_that_are_not_compared_yet_match_as_in_the_last_plan() -> None:
    """A new leader that cannot compare takes no partitions away. Deleted topics, and compared ones, are not kept."""
    known, before = KnownMatches(), {"t": PatternMatch(("t1", "t2")), "u": PatternMatch(("u1",))}
    questions = known.questions({"t", "v"}, ["t1", "t3", "u1"])
    assert known.matches("later", before) == {"t": PatternMatch(("t1",), "later"), "v": PatternMatch((), "later")}
    known.answered(questions, {"t": [False, False, False]})
    assert known.matches("later", before)["t"] == PatternMatch()
    known.questions({"t"}, ["t1", "t2"])
    assert known.matches("later", before) == {"t": PatternMatch(("t2",), "later")}
    known.answered({}, {"t": "refused"})
    assert known.matches("later", before) == {"t": PatternMatch((), "refused")}


def test_topics_for_which_the_time_did_not_suffice_are_asked_again() -> None:
    known = KnownMatches()
    known.answered(known.questions({"t"}, ["t1", "t2", "u"]), {"t": [True]})
    assert known.questions({"t"}, ["t1", "t2", "u"]) == {"t": ["t2", "u"]}
    assert known.matches("later") == {"t": PatternMatch(("t1",), "later")}


def test_comparisons_beyond_the_limit_are_asked_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "MOST_COMPARISONS", 3)
    known, asked = KnownMatches(), list[dict[str, list[str]]]()
    while questions := answer(known, {"a", "b"}, ["a1", "b1"]):
        asked.append(questions)
    assert asked == [{"a": ["a1", "b1"], "b": ["a1"]}, {"b": ["b1"]}]
    assert known.matches() == {"a": PatternMatch(("a1",)), "b": PatternMatch(("b1",))}


def test_names_beyond_the_limit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group state has all names, and it is one znode. The last names in order are left out, and counted."""
    monkeypatch.setattr(topic_patterns, "MOST_BYTES", 1024 + 403)
    known = KnownMatches()
    answer(known, {"t"}, [f"t{number:06}" for number in range(200)])
    match = known.matches()["t"]
    assert match.topics == tuple(f"t{number:06}" for number in range(102))
    assert match.problem == f"98 topics left out: {topic_patterns.TOO_MANY}"
    answer(known, {"t" + "." * 1000, "s"}, [])
    assert known.matches() == {"s": PatternMatch()}, "the longer pattern does not fit"


def test_flags_become_part_of_the_text() -> None:
    assert compiled_pattern(re.compile("t.*", re.IGNORECASE | re.VERBOSE)).pattern == "(?ix)t.*"
    assert compiled_pattern(re.compile("(?i)t")).pattern == "(?i)t"
    for text, flags in [("(?i)t.", re.DOTALL), (" (?i)t", re.VERBOSE), ("t # (", re.VERBOSE), ("t", re.ASCII)]:
        assert compiled_pattern(re.compile(text, flags)).flags == re.compile(text, flags).flags
    assert compiled_pattern("x" * 1000).pattern == "x" * 1000
    with pytest.raises(ConfigError, match="1,001 characters given; expected at most 1,000"):
        compiled_pattern("x" * 1001)
    with pytest.raises(ConfigError, match="whole characters"):
        compiled_pattern("t\ud800")


def test_a_plan_is_made_although_a_pattern_matches_nothing_but_not_without_any_topic() -> None:
    """If the cluster has no topic at all, its list may be lost, and the partitions are kept."""
    member = MemberInfo(member_id="m", session_timeout_ms=1, subscription=(), pattern="t")
    inputs = Inputs(members={"m": member}, topics={}, brokers=1, patterns={"t": PatternMatch()}, has_topics=True)
    assert inputs.missing == ""
    assert replace(inputs, brokers=0).missing == "broker"
    assert replace(inputs, has_topics=False).missing == "topic of its subscription"
    matched = replace(inputs, patterns={"t": PatternMatch(("t1",))}, topics={"t1": (0,)})
    assert matched.subscriptions == {"m": ("t1",)}
    assert matched.subscribed == {"t1"}
    assert replace(matched, patterns={}).subscriptions == {"m": ()}


def test_causes_of_plans_name_topics_of_patterns_and_patterns_with_problems() -> None:
    member = MemberInfo(member_id="m", session_timeout_ms=1, subscription=(), pattern="t")
    before = Inputs(members={"m": member}, topics={}, brokers=1, patterns={"t": PatternMatch()}, has_topics=True)
    after = replace(before, topics={"t1": (0,)}, patterns={"t": PatternMatch(("t1",))})
    refused = replace(before, patterns={"t": PatternMatch((), "it takes too long")})
    other = replace(before, members={"m": replace(member, pattern="u")}, patterns={"u": PatternMatch()})
    assert describe_change(before, after) == "new topic t1"
    assert describe_change(after, before) == "deleted topic t1"
    assert describe_change(after, refused) == "pattern t, deleted topic t1"
    assert describe_change(after, other) == "subscription of m"
    assert describe_change(before, replace(before, members={})) == "expiry of m"
