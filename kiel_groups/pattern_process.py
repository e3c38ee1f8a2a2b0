"""
Compare topics with regular expressions in a child process, which can be stopped.

``re`` holds the interpreter's lock while it matches, and some patterns take years: a thread could not be stopped, and
would block the event loop. The limits count processor time, so a busy computer refuses no pattern. The child runs this
file without the package: the file imports only the standard library.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

#: The processor time, in seconds, for one pattern and for all patterns of one call.
PATTERN_S, ALL_S = 1.0, 5.0

#: How long a call may take, in seconds, however busy the computer is.
_WAIT_S = 30.0

#: The arguments of the child process: isolated from the user's environment, this file.
_ARGUMENTS = ("-I", "-S", __file__)

#: The memory of the child process in bytes.
_MEMORY = 512 << 20


def compare(questions: Mapping[str, list[str]]) -> dict[str, list[str] | str]:
    """
    Return for each pattern which of its topics match from the beginning, or the reason why the pattern is refused.

    This function blocks for up to 30 s, so it runs on a thread. The result lacks the patterns for which the time of the
    call did not suffice; the caller asks for these again.

    Raises:
        OSError: No child process can be started.
        RuntimeError: The child process did not answer.
    """
    if not sys.executable:
        raise RuntimeError("this program does not know its Python interpreter")
    words, asked = [sys.executable, *_ARGUMENTS], json.dumps(questions).encode()
    try:
        ended = subprocess.run(words, input=asked, capture_output=True, timeout=_WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {_WAIT_S:g} s") from None
    answers: dict[str, list[str] | str] = {}
    for line in ended.stdout.splitlines():
        pattern, answer = json.loads(line)
        answers[pattern] = answer
    if ended.returncode < 0:
        # The child stops each comparison by itself. If it was killed, the first pattern without an answer is the cause.
        killer = next((pattern for pattern in questions if pattern not in answers), None)
        if killer is not None:
            answers[killer] = f"the process that compares topics was killed by signal {-ended.returncode}"
    elif ended.returncode:
        error = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"{sys.executable} ended with status {ended.returncode}: {error:.200}")
    return answers


class _Late(BaseException):
    """Raised in the child by the timer."""


def _late(*_: object) -> None:
    raise _Late


def _answer(pattern: str, topics: list[str]) -> list[str] | str:
    topic = ""
    try:
        signal.setitimer(signal.ITIMER_PROF, PATTERN_S)
        match = re.compile(pattern).match
        found = []
        for topic in topics:
            if match(topic):
                found.append(topic)
        signal.setitimer(signal.ITIMER_PROF, 0)
    except _Late:
        return f"it takes more than {PATTERN_S:g} s of processor time, at topic {topic}"
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return (
            f"{type(error).__name__} at topic {topic}" if topic else f"it is not a regular expression: {error!s:.200}"
        )
    return found


def _child() -> None:
    """Answer the questions on the standard input, one line for each pattern."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    # A comparison that the timer cannot stop ends with the process.
    limit_s = round(ALL_S + 2 * PATTERN_S)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    signal.signal(signal.SIGPROF, _late)
    for pattern, topics in json.load(sys.stdin).items():
        if time.process_time() > ALL_S:
            break
        print(json.dumps([pattern, _answer(pattern, topics)]), flush=True)  # noqa: T201 -- the answer


if __name__ == "__main__":
    _child()
