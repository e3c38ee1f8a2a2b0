"""The child process that compares topics with patterns: limits that no pattern can exceed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count

import pytest

from kiel_groups import pattern_process
from kiel_groups.group.topic_patterns import Questions
from kiel_groups.pattern_process import compare
from kiel_groups.zookeeper import runtime
from tests.helpers.waiting import eventually

#: A child that answers for the first pattern, and then ends by a signal.
KILLED = "import os, signal, sys; sys.stdin.read(); print('[\"a\", []]', flush=True); os.kill(os.getpid(), signal.{})"


def test_topics_are_compared_from_their_beginning() -> None:
    assert compare({"t[12]": ["t1", "at1", "t3"], "é": ["é"], "(": ["t"]}) == {
        "t[12]": [True, False, False],
        "é": [True],
        "(": "it is not a regular expression: missing ), unterminated subpattern at position 0",
    }


def test_a_pattern_that_backtracks_for_ever_is_refused_and_delays_no_other_pattern_for_long() -> None:
    """The reason names the topic. Patterns behind it are still compared."""
    answers = compare({"(a|a)*b": ["b", "a" * 60], "a": ["a" * 60]})
    assert answers == {
        "(a|a)*b": f"it takes more than 1 s of processor time, at topic {'a' * 60}",
        "a": [True],
    }


def test_each_topic_has_the_time_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow but harmless pattern is not refused because many topics come at once: the rest waits for the next call."""
    timers: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda timer, seconds: timers.append(seconds))
    monkeypatch.setattr(time, "process_time", count(0.0, 0.4).__next__)
    assert pattern_process._answer("a", ["a", "b", "a", "a"]) == [True, False]
    assert timers == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("name", ["SIGXCPU", "SIGSEGV"])
def test_a_process_that_cannot_stop_itself_refuses_the_pattern(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that the timer cannot stop, or that breaks the interpreter, costs that pattern and no other."""
    monkeypatch.setattr(pattern_process, "_ARGUMENTS", ("-c", KILLED.format(name)))
    assert compare({"a": [], "b": [], "c": []}) == {"a": [], "b": f"the process that compares topics ended with {name}"}


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_signal_that_others_send_refuses_no_pattern(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may be short of memory, or the computer may shut down."""
    monkeypatch.setattr(pattern_process, "_ARGUMENTS", ("-c", KILLED.format(name)))
    with pytest.raises(RuntimeError, match=f"ended with status {-signal.Signals[name]}"):
        compare({"a": [], "b": []})


def test_limits_below_those_of_the_child_are_kept() -> None:
    script = "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (4, 4)); from kiel_groups import"
    script += " pattern_process as p; p._limit(resource.RLIMIT_CPU, 9, 11); print(resource.getrlimit(0))"
    assert subprocess.check_output([sys.executable, "-c", script]) == b"(4, 4)\n"


async def test_the_process_ends_with_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that closes waits for no comparison."""
    children: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(pattern_process, "_ARGUMENTS", ("-c", "import time; time.sleep(20)"))

    def compare_later(questions: Questions, started: Callable[[subprocess.Popen[bytes]], object]) -> object:
        def both(child: subprocess.Popen[bytes]) -> None:
            started(child)
            children.append(child)

        return compare(questions, both)

    monkeypatch.setattr(runtime, "compare", compare_later)
    comparing = runtime.Runtime().compare_topics({"a": ["a"]})
    await eventually(lambda: bool(children), "the process runs")
    comparing.cancel()
    await eventually(lambda: children[0].returncode == -signal.SIGKILL, "the process was killed")


@pytest.mark.parametrize("executable", ["/usr/bin/uwsgi", "/bin/false", "", None])
def test_a_program_that_embeds_python_runs_the_interpreter_beside_it(
    executable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert compare({"a": ["a"]}) == {"a": [True]}
    monkeypatch.setattr(sys, "base_prefix", "/no/such/python")
    with pytest.raises(RuntimeError, match=f"no Python interpreter to compare topics with .it runs {executable}"):
        compare({"a": ["a"]})


def test_a_frozen_program_does_not_start_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the patterns then: the caller asks again later."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(RuntimeError, match="no Python interpreter"):
        compare({"a": ["a"]})
