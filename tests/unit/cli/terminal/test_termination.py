"""The end of a command by a signal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from kiel_groups.cli.terminal import termination
from kiel_groups.cli.terminal.termination import BlockingTermination, Termination
from tests.helpers.commands import Running

pytestmark = pytest.mark.unit

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: A command whose coroutine blocks the event loop. A thread says when the first signal was noticed.
BLOCKED = """
import asyncio, os, signal, threading, time
from kiel_groups.cli.terminal.termination import Termination

def watch():
    while signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:  # the last one that gets its default handler
        time.sleep(0.01)
    print("noticed", flush=True)

async def command():
    Termination()
    threading.Thread(target=watch, daemon=True).start()
    print("blocked", flush=True)
    {}

asyncio.run(command())
"""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the handlers of the signals. Below ``nohup``, tests and their processes would ignore SIGHUP."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_requests_the_end_and_the_second_kills(number: int, status: int) -> None:
    """The first signal restores the default handlers, so any second signal ends the process."""
    ending = BlockingTermination()
    assert (ending.asked.is_set(), ending.status) == (False, None)
    signal.raise_signal(number)
    assert (ending.asked.is_set(), ending.status) == (True, status)
    assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_DFL}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_the_first_signal_cancels_the_task_and_the_second_kills(number: int, status: int) -> None:
    """Python's own handler of SIGINT would wait for tasks that do not end."""

    async def command() -> Termination:
        ending = Termination()
        signal.raise_signal(number)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        return ending

    ending = await asyncio.create_task(command())
    assert ending.status == status
    assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_DFL}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_repetition_of_the_first_signal_does_not_kill(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """``timeout`` of coreutils sends each signal twice, some microseconds apart."""
    waits = list[float]()
    monkeypatch.setattr(time, "sleep", lambda wait_s: (signal.raise_signal(number), waits.append(wait_s)))
    ending = BlockingTermination()
    signal.raise_signal(number)
    assert ending.status == 128 + number
    assert len(waits) == 1


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("call", ["while True: pass", "time.sleep(1000)", "os.read(os.pipe()[0], 1)"])
def test_the_second_signal_kills_although_the_loop_is_blocked(call: str, number: int) -> None:
    """The event loop cannot process the first signal while a coroutine, such as a connector's, blocks it."""
    with Running(["-c", BLOCKED.format(call)]) as command:
        command.wait_for_lines(1)
        command.process.send_signal(number)
        assert command.wait_for_lines(2) == ["blocked", "noticed"]
        assert command.end(number) == -number


def test_a_signal_wakes_an_idle_loop() -> None:
    """The command ends in order at once, with the status of the signal."""
    program = BLOCKED.replace("    Termination()", "    ending = Termination()").format(
        "try: await asyncio.Event().wait()\n    except asyncio.CancelledError: os._exit(ending.status)"
    )
    with Running(["-c", program]) as command:
        command.wait_for_lines(1)
        assert command.end(signal.SIGTERM) == 143


#: A command that prints a last line at its end, as many do, on a terminal that is closed then.
ENDING = """
import asyncio
from kiel_groups.cli.terminal import termination
from kiel_groups.cli.terminal.termination import BlockingTermination, Termination

async def command():
    ending = Termination()
    print("started", flush=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return ending.status

def blocking():
    ending = BlockingTermination()
    print("started", flush=True)
    ending.asked.wait()
    return ending.status

status = {}
print("ended", flush=True)
raise SystemExit(status)
"""


@pytest.mark.parametrize("call", ["asyncio.run(command())", "blocking()"])
def test_the_last_lines_of_a_command_do_not_fail_if_its_terminal_is_closed(call: str) -> None:
    """The status is that of the signal, whatever the command still prints."""
    ours, its = pty.openpty()
    program = [sys.executable, "-c", ENDING.format(call)]
    # As in a shell, the process leads its session, and the terminal is that of the session.
    process = subprocess.Popen(
        program, stdin=its, stdout=its, stderr=its, preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY))
    )
    os.close(its)
    printed = b""
    while not printed.endswith(b"\n"):
        printed += os.read(ours, 100)
    time.sleep(0.1)  # The write has returned.
    os.close(ours)
    assert process.wait(20) == 129


def test_an_ignored_signal_stays_ignored() -> None:
    """``nohup`` has a command ignore the end of its terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ending = BlockingTermination()
    signal.raise_signal(signal.SIGHUP)
    assert (ending.asked.is_set(), ending.status) == (False, None)
    signal.raise_signal(signal.SIGTERM)
    assert (ending.status, signal.getsignal(signal.SIGHUP)) == (143, signal.SIG_IGN)


def test_a_command_that_has_ended_leaves_the_default_handlers() -> None:
    """A signal after the end of the event loop is not passed to that loop."""

    async def command() -> None:
        Termination()

    asyncio.run(command())
    defaults = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
    assert [signal.getsignal(each) for each in SIGNALS] == defaults


def test_a_signal_does_not_hide_that_the_output_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the output to a closed terminal is discarded."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        termination._discard_lost_output()
        with pytest.raises(OSError, match="No space left"):
            os.write(full.fileno(), b"line")
