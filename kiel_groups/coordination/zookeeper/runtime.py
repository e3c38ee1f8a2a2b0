"""
What coordination takes from the machine it runs on: clocks, names, chance, threads, and the client that speaks to
ZooKeeper.

There is one for the whole process, and nothing here keeps a state of its own. ``replaced`` puts another in its place:
so a simulator runs the same code on simulated time, without threads, against a ZooKeeper that is none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar

from kazoo.client import KazooClient

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.zookeeper import daemon_threads, hosts
from kiel_groups.coordination.zookeeper.kazoo_client import InterruptibleClient, connect_limit_s
from kiel_groups.coordination.zookeeper.kazoo_handler import ImmediateHandler

__all__ = [
    "Runtime",
    "Ticking",
    "boot_time_s",
    "wall_ms",
    "unique_name",
    "host",
    "pid",
    "uniform",
    "in_thread",
    "ticker",
    "check_hosts",
    "client",
    "replaced",
]

#: kazoo tells of every broken connection in its own words; we tell of what it means. Whoever sets a level hears both.
kazoo_log = logging.getLogger("kiel_groups.kazoo")
if kazoo_log.level == logging.NOTSET:
    kazoo_log.setLevel(logging.CRITICAL)

_Result = TypeVar("_Result")


class Ticking(Protocol):
    """A function that is called from time to time; see ``threads.Ticker``."""

    def start(self) -> None: ...
    def wake(self) -> None: ...


class Runtime:
    """The real one."""

    def boot_time_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def unique_name(self) -> str:
        return uuid.uuid4().hex

    def host(self) -> str:
        return socket.gethostname()

    def pid(self) -> int:
        return os.getpid()

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def in_thread(self, function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
        return daemon_threads.in_thread(function, name)

    def ticker(self, tick: Callable[[], float | None], name: str) -> Ticking:
        return daemon_threads.Ticker(tick, name)

    async def check_hosts(self, config: ZooKeeperConfig) -> None:
        with suppress(TimeoutError):  # Names are slow to be resolved today: kazoo may try.
            async with asyncio.timeout(config.connect_timeout_ms / 1000):
                await daemon_threads.in_thread(partial(hosts.check_hosts, config), "hosts")

    def client(self, config: ZooKeeperConfig, session: tuple[int, bytes] | None = None) -> KazooClient:
        return InterruptibleClient(
            client_id=session,
            hosts=config.hosts,
            timeout=config.session_timeout_ms / 1000,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            logger=kazoo_log,
            handler=ImmediateHandler(connect_limit_s(config.session_timeout_ms)),
        )


_machine = Runtime()


@contextmanager
def replaced(machine: Runtime) -> Iterator[None]:
    """Run a block on another machine."""
    global _machine
    before, _machine = _machine, machine
    try:
        yield
    finally:
        _machine = before


def boot_time_s() -> float:
    """Seconds on a clock that goes on while the machine is suspended: a lease does not stop for that either."""
    return _machine.boot_time_s()


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return _machine.wall_ms()


def unique_name() -> str:
    """A name that nobody else has: 32 hexadecimal digits."""
    return _machine.unique_name()


def host() -> str:
    """The name of the machine."""
    return _machine.host()


def pid() -> int:
    """The number of the process."""
    return _machine.pid()


def uniform(low: float, high: float) -> float:
    """Chance: any number between the two, so that many members do not act at once."""
    return _machine.uniform(low, high)


def in_thread(function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
    """Run a function that may block, off the event loop; see ``threads.in_thread``."""
    return _machine.in_thread(function, name)


def ticker(tick: Callable[[], float | None], name: str) -> Ticking:
    """Have a function called from time to time, off the event loop; see ``threads.Ticker``."""
    return _machine.ticker(tick, name)


async def check_hosts(config: ZooKeeperConfig) -> None:
    """Raise NoZooKeeperError where no host has an address; see ``hosts.check_hosts``."""
    await _machine.check_hosts(config)


def client(config: ZooKeeperConfig, session: tuple[int, bytes] | None = None) -> KazooClient:
    """A client of kazoo's, not yet started; it resumes a session, by its id and password, where one is given."""
    return _machine.client(config, session)
