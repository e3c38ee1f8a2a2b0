"""
Write transactions that are fenced by the member znode: each begins with a check that it exists.

The member znode is ephemeral. So ZooKeeper refuses a transaction that kazoo sends again on a later session, or that
arrives after the end of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.errors import SessionLostError
from kiel_groups.group.znodes.transactions import (
    MOST_BYTES,
    MOST_OPERATIONS,
    Check,
    Done,
    Failure,
    Operation,
    Refused,
    Unknown,
    size_of,
)

__all__ = ["FencedWriter", "Outcome", "Renew", "give_up"]

Key = TypeVar("Key")

#: Decides about one refused item: returns the operations to write in its place, or None to drop it.
OnRefused = Callable[[Key, Operation, Failure], "tuple[Operation, ...] | None"]

#: Decides right before a transaction what to write for one item: returns its operations, or None to leave it alone.
Renew = Callable[[Key, "tuple[Operation, ...]"], "tuple[Operation, ...] | None"]


class Stop(Exception):  # noqa: N818 -- not an error
    """Raised by an OnRefused to leave all remaining items unwritten."""


def give_up(key: object, operation: Operation, failure: Failure) -> None:
    """Leave all items alone that are not written yet; an OnRefused."""
    raise Stop


@dataclass(slots=True)
class Outcome(Generic[Key]):
    """
    The results of writing a set of items.

    ``done`` maps an item to the versions that its operations produced, ``dropped`` to the reason of its refusal. Items
    in ``unknown`` may be written or not; the session was proved alive since, so a read now finds the final state. Items
    that ``renew`` left alone are in none of the three.
    """

    done: dict[Key, tuple[int | None, ...]] = field(default_factory=dict)
    dropped: dict[Key, Failure] = field(default_factory=dict)
    unknown: set[Key] = field(default_factory=set)


class FencedWriter:
    """
    Writes one member's transactions on its own session.

    Before each transaction the writer waits until the gate is open, which it is not while the connection is broken.
    Watches may fire during that wait, so ``catch_up`` then waits until their znodes have been read.
    """

    def __init__(self, session: Session, member_path: str, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._session = session
        self._proof = Check(member_path)
        self._catch_up = catch_up

    async def prove(self) -> None:
        """
        Wait for an answered transaction that only checks the member znode.

        It goes through the quorum: later reads on this session are no older than its answer.

        Raises:
            SessionLostError: The session is over, or the member znode is gone.
        """
        while True:
            await self.wait_ready()
            answer = await self._session.transact([self._proof])
            if isinstance(answer, Done):
                return
            if isinstance(answer, Refused):
                self._member_gone()

    def _member_gone(self) -> None:
        self._session.end("the member znode is gone")
        raise SessionLostError(f"the member znode {self._proof.path} is gone")

    async def write(
        self,
        items: Mapping[Key, tuple[Operation, ...]],
        on_refused: OnRefused[Key],
        *,
        renew: Renew[Key] = lambda _, operations: operations,
        most: int = MOST_OPERATIONS,
    ) -> Outcome[Key]:
        """
        Write many items, each of them atomically, with at most ``most`` operations in a transaction.

        ``on_refused`` replaces or drops an item that ZooKeeper refuses, and the rest is sent again; with ``give_up``
        the rest is left unwritten. Right before each transaction ``renew`` confirms or changes each item in it.

        Raises:
            SessionLostError: The session is over, or the member znode is gone.
        """
        outcome: Outcome[Key] = Outcome()
        pending = dict(items)
        while pending:
            await self.wait_ready()
            batch = _first_batch(pending, most)
            if not self._renew(pending, batch, renew) or not self._is_open:
                continue
            # No await since ``renew`` confirmed the items: they cannot have become outdated.
            answer = await self._session.transact([self._proof, *(op for key in batch for op in pending[key])])
            if isinstance(answer, Unknown):
                await self.prove()
                outcome.unknown.update(batch)
                for key in batch:
                    del pending[key]
            elif isinstance(answer, Done):
                position = 1
                for key in batch:
                    count = len(pending.pop(key))
                    outcome.done[key] = answer.versions[position : position + count]
                    position += count
            else:
                try:
                    self._replace_refused(pending, batch, answer, on_refused, outcome)
                except Stop:
                    break
        return outcome

    @property
    def _is_open(self) -> bool:
        return self._session.gate.is_open(runtime.boot_time_s())

    async def wait_ready(self) -> None:
        """
        Wait until the gate is open and all watch events are processed: at that moment a write may be sent.

        Raises:
            SessionLostError: The session is over.
        """
        while True:
            await self._session.wait_trusted()
            # Callbacks that kazoo's thread has scheduled run in the next iteration of the loop.
            await asyncio.sleep(0)
            await self._catch_up()
            if self._is_open:
                return

    @staticmethod
    def _renew(pending: dict[Key, tuple[Operation, ...]], batch: Iterable[Key], renew: Renew[Key]) -> bool:
        """Apply ``renew`` to a batch; returns whether no item changed."""
        renewed = {key: renew(key, pending[key]) for key in batch}
        changed = {key: operations for key, operations in renewed.items() if operations != pending[key]}
        for key, operations in changed.items():
            if operations is None:
                del pending[key]
            else:
                pending[key] = operations
        return not changed

    def _replace_refused(
        self,
        pending: dict[Key, tuple[Operation, ...]],
        batch: Iterable[Key],
        refused: Refused,
        on_refused: OnRefused[Key],
        outcome: Outcome[Key],
    ) -> None:
        if refused.index == 0:
            self._member_gone()
        position = 1
        for key in batch:
            operations = pending[key]
            if refused.index < position + len(operations):
                replacement = on_refused(key, operations[refused.index - position], refused.failure)
                if replacement is None:
                    del pending[key]
                    outcome.dropped[key] = refused.failure
                else:
                    pending[key] = replacement
                return
            position += len(operations)


def _first_batch(pending: Mapping[Key, tuple[Operation, ...]], most: int) -> list[Key]:
    """Return the first items that fit in one transaction beside the proof, by number of operations and by size."""
    batch: list[Key] = []
    count, size = 1, 0
    for key, operations in islice(pending.items(), most):
        count += len(operations)
        size += sum(map(size_of, operations))
        if batch and (count > most or size > MOST_BYTES):
            break
        batch.append(key)
    return batch
