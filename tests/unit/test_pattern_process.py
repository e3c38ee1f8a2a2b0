"""The child process that compares topics with patterns: limits that no pattern can exceed."""

from __future__ import annotations

import sys

import pytest

from kiel_groups import pattern_process
from kiel_groups.pattern_process import compare


def test_topics_are_compared_from_their_beginning() -> None:
    assert compare({"t[12]": ["t1", "at1", "t3"], "é": ["é"], "(": ["t"]}) == {
        "t[12]": ["t1"],
        "é": ["é"],
        "(": "it is not a regular expression: missing ), unterminated subpattern at position 0",
    }


def test_a_pattern_that_backtracks_for_ever_is_refused_and_delays_no_other_pattern_for_long() -> None:
    """The reason names the topic. Patterns behind it are still compared."""
    answers = compare({"(a|a)*b": ["b", "a" * 60], "a": ["a" * 60]})
    assert answers == {
        "(a|a)*b": f"it takes more than 1 s of processor time, at topic {'a' * 60}",
        "a": ["a" * 60],
    }


def test_a_killed_process_refuses_the_pattern_that_it_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that the timer cannot stop, or that takes all memory, costs that pattern and no other."""
    script = "import os, sys; sys.stdin.read(); print('[\"a\", []]', flush=True); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(pattern_process, "_ARGUMENTS", ("-c", script))
    assert compare({"a": [], "b": [], "c": []}) == {
        "a": [],
        "b": "the process that compares topics was killed by signal 9",
    }


def test_a_program_that_is_no_python_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the patterns then: the caller asks again later."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="/bin/false ended with status 1"):
        compare({"a": ["a"]})
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(RuntimeError, match="does not know its Python"):
        compare({"a": ["a"]})
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(OSError, match="no/such/python"):
        compare({"a": ["a"]})
