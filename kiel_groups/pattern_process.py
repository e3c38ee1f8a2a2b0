"""
Compare topics with regular expressions in a child process, which can be stopped.

``re`` holds the interpreter's lock while it matches, and some patterns take years: a thread could not be stopped, and
would block the event loop. The limits count processor time, so a busy computer refuses no pattern. The child runs this
file without the package: the file imports only the standard library.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

#: The processor time, in seconds, for one comparison. A pattern that takes longer is refused.
COMPARISON_S = 1.0
#: The processor time, in seconds, for one pattern and for all patterns of one call. What is left waits for the next
#: call.
PATTERN_S, ALL_S = 1.0, 5.0

#: How long a call may take, in seconds, however busy the computer is.
_WAIT_S = 30.0

#: The arguments of the child process: isolated from the user's environment, this file.
_ARGUMENTS = ("-I", "-S", __file__)

#: The memory of the child process in bytes.
_MEMORY = 512 << 20


def compare(
    questions: Mapping[str, list[str]], started: Callable[[subprocess.Popen[bytes]], object] = lambda child: None
) -> dict[str, list[bool] | str]:
    """
    Return for each pattern whether its topics match from the beginning, in order, or why the pattern is refused.

    This function blocks for up to 30 s, so it runs on a thread. The result lacks the patterns and the last topics of a
    pattern for which the time of the call did not suffice; the caller asks for these again.

    Args:
        questions: The topics to compare with each pattern.
        started: Called with the child process, so that the caller can kill it.

    Raises:
        OSError: No child process can be started.
        RuntimeError: The child process did not answer.
    """
    words, asked = [_interpreter(), *_ARGUMENTS], json.dumps(questions).encode()
    pipe = subprocess.PIPE
    # In a session of its own, the child gets no Ctrl-C of a terminal.
    # The command is this module's own, without a shell; patterns are data on its standard input.
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as child:  # nosec B603
        started(child)
        try:
            output, errors = child.communicate(asked, _WAIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise RuntimeError(f"no answer within {_WAIT_S:g} s") from None
    answers: dict[str, list[bool] | str] = {}
    for line in output.splitlines():
        pattern, answer = json.loads(line)
        answers[pattern] = answer
    killer = next((pattern for pattern in questions if pattern not in answers), None)
    if -child.returncode in (signal.SIGXCPU, signal.SIGSEGV) and killer is not None:
        # The child stops each comparison by itself. If it could not, the first pattern without an answer is the cause.
        answers[killer] = f"the process that compares topics ended with {signal.Signals(-child.returncode).name}"
    elif child.returncode:
        error = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"{words[0]} ended with status {child.returncode}: {error:.200}")
    return answers


def _interpreter() -> str:
    """
    Return the path of a Python interpreter.

    Raises:
        RuntimeError: This program knows none. If it started itself as the child, it would run a second time.
    """
    if not getattr(sys, "frozen", False):
        # An interpreter that is embedded in a program, such as uwsgi, may name the program as its executable.
        for path in (sys.executable, os.path.join(sys.base_prefix, "bin", "python3")):
            if path and re.match("python|pypy", os.path.basename(path)) and os.access(path, os.X_OK):
                return path
    raise RuntimeError(f"this program has no Python interpreter to compare topics with (it runs {sys.executable})")


class _Late(BaseException):
    """Raised in the child by the timer."""


def _late(*_: object) -> None:
    raise _Late


def _answer(pattern: str, topics: list[str]) -> list[bool] | str:
    topic, found, end_s = "", list[bool](), time.process_time() + PATTERN_S
    try:
        signal.setitimer(signal.ITIMER_PROF, COMPARISON_S)
        match = re.compile(pattern).match
        for topic in topics:
            if time.process_time() > end_s:
                break
            # Each name has the same time, so it does not matter whether names come together or one by one.
            signal.setitimer(signal.ITIMER_PROF, COMPARISON_S)
            found.append(match(topic) is not None)
        signal.setitimer(signal.ITIMER_PROF, 0)
    except _Late:
        return f"it takes more than {COMPARISON_S:g} s of processor time, at topic {topic}"
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return (
            f"{type(error).__name__} at topic {topic}" if topic else f"it is not a regular expression: {error!s:.200}"
        )
    return found


def _limit(kind: int, soft: int, hard: int) -> None:
    """Set a limit of this process, but none above the hard limit that its parent has."""
    most = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (soft, hard) if most == resource.RLIM_INFINITY else (min(soft, most), min(hard, most)))


def _child() -> None:
    """Answer the questions on the standard input, one line for each pattern."""
    _limit(resource.RLIMIT_AS, _MEMORY, _MEMORY)
    _limit(resource.RLIMIT_CORE, 0, 0)
    # A comparison that the timer cannot stop ends with the process: SIGXCPU comes at the lower limit.
    limit_s = round(ALL_S + 2 * PATTERN_S + 2 * COMPARISON_S)
    _limit(resource.RLIMIT_CPU, limit_s, limit_s + 2)
    signal.signal(signal.SIGPROF, _late)
    for pattern, topics in json.load(sys.stdin).items():
        if time.process_time() > ALL_S:
            break
        print(json.dumps([pattern, _answer(pattern, topics)]), flush=True)  # noqa: T201 -- the answer


if __name__ == "__main__":
    _child()
