"""
Writes that prove who makes them: every transaction of a member begins with a check of its member znode.

That znode is ephemeral, so a transaction which kazoo sends again on a later session, or which was overtaken by the end
of the session, is refused.
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

#: What to do about one refused item: other operations in its place, or None to drop it.
OnRefused = Callable[[Key, Operation, Failure], "tuple[Operation, ...] | None"]

#: What is to be written for one item at the moment of writing, or None to leave it alone.
Renew = Callable[[Key, "tuple[Operation, ...]"], "tuple[Operation, ...] | None"]


class Stop(Exception):  # noqa: N818 -- not an error
    """Raised by an OnRefused: leave the rest alone."""


def give_up(key: object, operation: Operation, failure: Failure) -> None:
    """An OnRefused that leaves everything alone which was not written yet."""
    raise Stop


@dataclass(slots=True)
class Outcome(Generic[Key]):
    """
    What came of a set of items.

    ``done`` maps an item to the versions its operations produced, ``dropped`` to why it was refused; ``unknown`` ones
    may have happened or not: the session was proved alive since, so reading them now tells. What ``renew`` had left
    alone is in none of them.
    """

    done: dict[Key, tuple[int | None, ...]] = field(default_factory=dict)
    dropped: dict[Key, Failure] = field(default_factory=dict)
    unknown: set[Key] = field(default_factory=set)


class FencedWriter:
    """
    Writes of one member on its own session.

    Before each transaction the gate is asked; while the connection is broken that means to wait. Much may happen
    meanwhile: ``catch_up`` waits until all is heard of that watches have told.
    """

    def __init__(self, session: Session, member_path: str, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._session = session
        self._proof = Check(member_path)
        self._catch_up = catch_up

    async def prove(self) -> None:
        """
        Wait for an answered transaction that only checks the member znode.

        It goes through the quorum: what is read afterwards on this session is no older than its answer.

        Raises:
            SessionLostError: The session is over, or the member znode is gone.
        """
        while True:
            await self.ready()
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
        Write many items, each of them whole or not at all, with at most ``most`` operations in a transaction.

        One that is refused is taken out, or replaced by what ``on_refused`` says, and the rest goes on without it; with
        ``give_up`` the rest is left alone. Right before each transaction, ``renew`` is asked for what is in it.

        Raises:
            SessionLostError: The session is over, or the member znode is gone.
        """
        outcome: Outcome[Key] = Outcome()
        pending = dict(items)
        while pending:
            await self.ready()
            batch = _first_batch(pending, most)
            if not self._renew(pending, batch, renew) or not self._is_open:
                continue
            # Nothing is waited for since it was asked whether this still holds.
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
                    self._take_out(pending, batch, answer, on_refused, outcome)
                except Stop:
                    break
        return outcome

    @property
    def _is_open(self) -> bool:
        return self._session.gate.is_open(runtime.boot_time_s())

    async def ready(self) -> None:
        """
        Wait until the lease runs and all is heard of that was told, for at that moment a write may go out.

        Raises:
            SessionLostError: The session is over.
        """
        while True:
            await self._session.trusted()
            # What kazoo's thread has told is heard in the next turn of the loop.
            await asyncio.sleep(0)
            await self._catch_up()
            if self._is_open:
                return

    @staticmethod
    def _renew(pending: dict[Key, tuple[Operation, ...]], batch: Iterable[Key], renew: Renew[Key]) -> bool:
        """Whether everything stays as it was."""
        renewed = {key: renew(key, pending[key]) for key in batch}
        changed = {key: operations for key, operations in renewed.items() if operations != pending[key]}
        for key, operations in changed.items():
            if operations is None:
                del pending[key]
            else:
                pending[key] = operations
        return not changed

    def _take_out(
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
    """As many of the first items as fit in one transaction beside the proof, by their number and by their size."""
    batch: list[Key] = []
    count, size = 1, 0
    for key, operations in islice(pending.items(), most):
        count += len(operations)
        size += sum(map(size_of, operations))
        if batch and (count > most or size > MOST_BYTES):
            break
        batch.append(key)
    return batch
