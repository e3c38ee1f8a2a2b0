"""
Provide the external dependencies of coordination: clocks, names, randomness, threads, and the ZooKeeper client.

The application's objects create a ``Runtime`` and pass it to all parts of their members. The simulator passes its own,
so it runs the same code on simulated time, without threads, against a simulated ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from kazoo.client import KazooClient

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.zookeeper import daemon_threads, hosts
from kiel_groups.coordination.zookeeper.kazoo_client import InterruptibleClient, connect_limit_s
from kiel_groups.coordination.zookeeper.kazoo_handler import ImmediateHandler

__all__ = ["Runtime", "Ticking"]

#: Silenced: kazoo logs every broken connection, and this library logs the effects. A level set by the user is kept.
kazoo_log = logging.getLogger("kiel_groups.kazoo")
if kazoo_log.level == logging.NOTSET:
    kazoo_log.setLevel(logging.CRITICAL)

_Result = TypeVar("_Result")


class Ticking(Protocol):
    """The interface of ``daemon_threads.Ticker``: a function that is called repeatedly."""

    def start(self) -> None: ...
    def wake(self) -> None: ...


class Runtime:
    """The runtime of a real process, without a state of its own; the simulator derives its own from it."""

    #: Return the seconds of a clock that also runs while the computer is suspended, as leases do. Loops read it before
    #: each record, so no Python code is in between.
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
        return random.uniform(low, high)

    def in_thread(self, function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
        """Run a blocking function on a thread, off the event loop; see ``daemon_threads.in_thread``."""
        return daemon_threads.in_thread(function, name)

    def ticker(self, tick: Callable[[], float | None], name: str) -> Ticking:
        """Create a ticker that calls a function repeatedly, off the event loop; see ``daemon_threads.Ticker``."""
        return daemon_threads.Ticker(tick, name)

    async def check_hosts(self, config: ZooKeeperConfig) -> None:
        """Raise NoZooKeeperError if no host has an address; see ``hosts.check_hosts``."""
        with suppress(TimeoutError):  # Name resolution is slow; kazoo will try the hosts itself.
            async with asyncio.timeout(config.connect_timeout_ms / 1000):
                await daemon_threads.in_thread(partial(hosts.check_hosts, config), "hosts")

    async def no_answer(self, config: ZooKeeperConfig) -> str:
        """Return the text of the error that no server has opened a session in time; see ``hosts.no_answer``."""
        limit_s = config.connect_timeout_ms / 1000
        return await daemon_threads.in_thread(partial(hosts.no_answer, config, limit_s), "hosts")

    def client(self, config: ZooKeeperConfig, session: tuple[int, bytes] | None = None) -> KazooClient:
        """Create a kazoo client without starting it. The client resumes the session of a given id and password."""
        return InterruptibleClient(
            client_id=session,
            hosts=config.hosts,
            timeout=config.session_timeout_ms / 1000,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            logger=kazoo_log,
            handler=ImmediateHandler(connect_limit_s(config.session_timeout_ms)),
        )
