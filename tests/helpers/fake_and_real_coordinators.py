"""One interface to the fake coordinator and to those of real brokers, so that the same test cases run on all."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from kiel_groups.config import parse_hosts
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.framing import SIZE_BYTES, Request, decode_size, encode_request, split_response
from kiel_groups.wire.group_requests import FindCoordinatorRequest
from kiel_groups.wire.offsets import OffsetCommitRequestV2
from tests.fakes import FakeCoordinator, Timeline
from tests.helpers.waiting import eventually_blocking

__all__ = ["CoordinatorBackend", "FakeCoordinators", "GroupCaller", "Pending", "RealCoordinators"]

T = TypeVar("T")

#: The client id of all callers, with which the ids of members begin.
CLIENT_ID = "caller"
#: The largest answer that a caller expects, in bytes.
MOST_BYTES = 1 << 24


class Pending(Generic[T]):
    """A request under way; ``answer`` is None before the coordinator has answered."""

    def __init__(self) -> None:
        self.answer: T | None = None

    def settle(self, answer: T) -> None:
        self.answer = answer


class GroupCaller(Protocol):
    """A client with one connection to the coordinator, which works on one request at a time."""

    def start(self, request: Request[T]) -> Pending[T]:
        """Send a request without waiting for its answer."""

    def ask(self, request: Request[T], timeout_s: float = 30.0) -> T:
        """Send a request, and wait for its answer."""


class CoordinatorBackend(Protocol):
    """The coordinator that a test runs against. ``early``: it behaves as those of 0.9; ``topic`` exists."""

    early: bool
    topic: str

    def caller(self) -> GroupCaller: ...

    def wait(self, pending: Pending[T], timeout_s: float = 30.0) -> T:
        """Wait, in simulated or real time, for an answer, and return it."""

    def run_for(self, duration_s: float) -> None:
        """Let time pass, so that a test sees what does not happen."""

    def now_s(self) -> float:
        """Return the time of a clock that advances during waits, in seconds."""

    def restart(self) -> None:
        """Kill the coordinator and start it again; return when it has loaded its groups."""

    def close(self) -> None:
        """Close all connections."""


class FakeCoordinators:
    """The fake coordinator, on simulated time."""

    topic = "topic"

    def __init__(self, *, early: bool, initial_delay_s: float = 0.0) -> None:
        self.early = early
        self.timeline = Timeline()
        self.coordinator = FakeCoordinator(self.timeline, early=early, initial_delay_s=initial_delay_s)

    def caller(self) -> GroupCaller:
        return _FakeCaller(self)

    def wait(self, pending: Pending[T], timeout_s: float = 30.0) -> T:
        self.timeline.run_until(lambda: pending.answer is not None, timeout_s)
        assert pending.answer is not None
        return pending.answer

    def run_for(self, duration_s: float) -> None:
        self.timeline.run_for(duration_s)

    def now_s(self) -> float:
        return self.timeline.now_s

    def restart(self) -> None:
        self.coordinator.crash(0)
        self.run_for(1.0)
        self.coordinator.restart(0)
        self.coordinator.elect(0)

    def close(self) -> None:
        """Do nothing: there is no connection."""


class _FakeCaller:
    def __init__(self, backend: FakeCoordinators) -> None:
        self._backend = backend

    def start(self, request: Request[T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        self._backend.coordinator.request(0, request, pending.settle, CLIENT_ID)
        return pending

    def ask(self, request: Request[T], timeout_s: float = 30.0) -> T:
        return self._backend.wait(self.start(request), timeout_s)


class RealCoordinators:
    """
    The coordinator of a real cluster with one broker.

    Args:
        address: The broker's address.
        topic: A topic with one partition.
        early: Whether the broker is of 0.9.
        restart: Kills the broker and starts it again.
    """

    def __init__(self, address: str, topic: str, *, early: bool, restart: Callable[[], object] = lambda: None) -> None:
        self.early = early
        self.topic = topic
        self._address = address
        self._restart = restart
        self.selector = selectors.DefaultSelector()
        self._callers: list[_RealCaller] = []
        self._await_start()

    def _await_start(self) -> None:
        """
        Wait until the broker coordinates, and knows the topic: the first search creates the topic of its log, which it
        then loads.
        """
        find = FindCoordinatorRequest("any")
        commit = OffsetCommitRequestV2("any", -1, "", {TopicPartition(self.topic, 0): OffsetAndMetadata(0)})

        def has_started() -> bool:
            try:
                caller = self.caller()
                return caller.ask(find).error == NO_ERROR and set(caller.ask(commit).values()) == {NO_ERROR}
            except OSError:
                return False

        eventually_blocking(has_started, "the broker coordinates groups", 90)

    def caller(self) -> GroupCaller:
        caller = _RealCaller(self, self._address)
        self._callers.append(caller)
        return caller

    def wait(self, pending: Pending[T], timeout_s: float = 30.0) -> T:
        by_s = time.monotonic() + timeout_s
        while pending.answer is None:
            left_s = by_s - time.monotonic()
            assert left_s > 0, f"no answer within {timeout_s:g} s"
            self._receive(left_s)
        return pending.answer

    def run_for(self, duration_s: float) -> None:
        by_s = time.monotonic() + duration_s
        while (left_s := by_s - time.monotonic()) > 0:
            self._receive(left_s)

    def _receive(self, timeout_s: float) -> None:
        for key, _ in self.selector.select(timeout_s):
            key.data.receive()

    def now_s(self) -> float:
        return time.monotonic()

    def restart(self) -> None:
        self._restart()
        self._await_start()

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        self.selector.close()


class _RealCaller:
    def __init__(self, backend: RealCoordinators, address: str) -> None:
        self._backend = backend
        self._socket = socket.create_connection(parse_hosts([address], 9092, "address")[0], 10)
        self._waiting: list[tuple[Request[Any], Pending[Any]]] = []
        backend.selector.register(self._socket, selectors.EVENT_READ, self)

    def start(self, request: Request[T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        self._socket.sendall(encode_request(request, len(self._waiting), CLIENT_ID))
        self._waiting.append((request, pending))
        return pending

    def ask(self, request: Request[T], timeout_s: float = 30.0) -> T:
        return self._backend.wait(self.start(request), timeout_s)

    def receive(self) -> None:
        """Receive one answer, of which a part is there."""
        size = decode_size(self._read(SIZE_BYTES), MOST_BYTES)
        request, pending = self._waiting.pop(0)
        pending.settle(request.decode_response(split_response(self._read(size))[1]))

    def _read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                self.close()
                raise ConnectionError("closed by the broker")
            received += part
        return bytes(received)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._backend.selector.unregister(self._socket)
            self._socket.close()
