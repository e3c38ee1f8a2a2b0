"""Provide the external dependencies of members: clocks, randomness, names, threads and clients of ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from kazoo.client import KazooClient

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.group.topic_patterns import Answers, Questions
from kiel_groups.pattern_process import compare
from kiel_groups.zookeeper.kazoo_client import (
    ImmediateHandler,
    InterruptibleClient,
    check_hosts,
    connect_limit_s,
    no_answer,
)
from kiel_groups.zookeeper.security import security_of

log = logging.getLogger(__name__)


# Run blocking functions on daemon threads, off the event loop.
#
# The threads are daemons so that a call that never returns does not keep the process alive. Callers go through
# ``Runtime``, where the simulator replaces the threads.


_Result = TypeVar("_Result")


def in_thread(function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
    """
    Run a function on a new daemon thread.

    Do not use asyncio's default executor, because ``asyncio.run`` waits for the executor's threads before it returns.

    Returns:
        A future of the running loop, with the function's result or exception. If the caller cancels the future, the
        thread runs on, and nothing receives the function's result. RuntimeError replaces StopIteration, and an
        exception that is not an ``Exception``, such as SystemExit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception) or isinstance(raised, StopIteration):
                # A future refuses StopIteration. An error such as SystemExit would end the caller's event loop, and
                # CancelledError would look like a cancellation of the caller.
                error = RuntimeError(f"the function of the thread {name!r} raised {raised!r}")
                error.__cause__ = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            log.debug("%s ended after its event loop was closed", name)

    threading.Thread(target=run, name=f"kiel-groups-{name}", daemon=True).start()
    return future


#: The shares of a time limit in ``ends_within``.
_SHARES = 10


async def ends_within(call: asyncio.Future[_Result], limit_s: float) -> bool:
    """
    Wait for a call on a thread, and return whether it has ended within a time limit. Otherwise, cancel the future.

    A loop that is blocked, or a process that is frozen, for longer than the limit must not make the call look slow. So
    the limit is a sum of shares, and such a time takes one of them.
    """
    try:
        for _ in range(_SHARES):
            if (await asyncio.wait({call}, timeout=limit_s / _SHARES))[0]:
                return True
        return False
    finally:
        call.cancel()


class Ticker:
    """
    Calls ``tick`` repeatedly on a thread of its own.

    ``tick`` returns the seconds until the next call, or None to end the thread. ``wake`` shortens the wait for the next
    call. ``tick`` must not raise an exception, because an exception would end the thread unnoticed.
    """

    def __init__(self, tick: Callable[[], float | None], name: str) -> None:
        self._tick = tick
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kiel-groups-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread. The thread calls ``tick`` at once."""
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread to call ``tick`` at once. Any thread may call this method. It never blocks."""
        self._wake.set()

    def _run(self) -> None:
        while (pause_s := self._tick()) is not None:
            self._wake.wait(pause_s)
            self._wake.clear()


# Provide the external dependencies of a member: clocks, names, randomness, threads, and the ZooKeeper client.
#
# The application's objects create a ``Runtime`` and pass it to all parts of their members. The simulator passes its
# own, so it runs the same code on simulated time, without threads, against a simulated ZooKeeper.


#: This logger is silenced: kazoo logs every broken connection, and this library logs the effects. A level set by the
#: user is kept.
kazoo_log = logging.getLogger("kiel_groups.kazoo")
if kazoo_log.level == logging.NOTSET:
    kazoo_log.setLevel(logging.CRITICAL)


class Ticking(Protocol):
    """The interface of ``Ticker``, and of its replacements in the simulator and in tests."""

    def start(self) -> None: ...
    def wake(self) -> None: ...


class Runtime:
    """
    Provides a real process with clocks, names, randomness, threads and ZooKeeper clients.

    The object has no state. The simulator's runtime is a subclass.
    """

    #: Return the seconds of a clock that also runs while the computer is suspended, because leases end then, too.
    #: Loops
    #: read it before each record, so no Python code is in between.
    boot_time_s = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return int(time.time() * 1000)

    def unique_name(self) -> str:
        """Return a globally unique name of 32 hexadecimal digits."""
        return uuid.uuid4().hex

    def host(self) -> str:
        """Return the name of this host."""
        return socket.gethostname()

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def uniform(self, low: float, high: float) -> float:
        """Return a random number between ``low`` and ``high``, so that many members do not act at once."""
        return random.uniform(low, high)  # nosec B311 # it spreads load, and decides nothing that must be secret

    def in_thread(self, function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
        """Run a blocking function on a thread, off the event loop; see the function ``in_thread``."""
        return in_thread(function, name)

    def compare_topics(self, questions: Questions) -> asyncio.Future[Answers]:
        """
        Compare topics with patterns in a child process, off the event loop; see ``pattern_process.compare``.

        The child is killed if the caller cancels the future.
        """
        children: list[subprocess.Popen[bytes]] = []

        def kill(_: object) -> None:
            for child in children:
                child.kill()

        future: asyncio.Future[Answers] = in_thread(partial(compare, questions, children.append), "patterns")
        future.add_done_callback(kill)
        return future

    def ticker(self, tick: Callable[[], float | None], name: str) -> Ticking:
        """Create a ticker that calls a function repeatedly, off the event loop; see ``Ticker``."""
        return Ticker(tick, name)

    async def check_hosts(self, config: ZooKeeperConfig) -> None:
        """
        Raise NoZooKeeperError if no host has an address; see the function ``check_hosts``.

        If the addresses are not known after the connect timeout, return without an error.
        """
        with suppress(TimeoutError):  # Name resolution is slow; kazoo will try the hosts itself.
            async with asyncio.timeout(config.connect_timeout_ms / 1000):
                await in_thread(partial(check_hosts, config), "hosts")

    async def no_answer(self, config: ZooKeeperConfig) -> str:
        """Return the text of the error that no server has opened a session in time; see ``no_answer``."""
        limit_s = config.connect_timeout_ms / 1000
        return await in_thread(partial(no_answer, config, limit_s), "hosts")

    def client(self, config: ZooKeeperConfig, session: tuple[int, bytes] | None = None) -> KazooClient:
        """
        Create a kazoo client, and do not start it.

        ``session`` is the id and the password of a session that the client resumes, or None for a new session. The
        client reads the file with the credentials when it is started.
        """
        return InterruptibleClient(
            ImmediateHandler(connect_limit_s(config.session_timeout_ms)),
            partial(security_of, config),
            client_id=session,
            hosts=config.hosts,
            timeout=config.session_timeout_ms / 1000,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            logger=kazoo_log,
        )
