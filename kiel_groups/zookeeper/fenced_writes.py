"""
Send transactions that the member znode fences: the first operation of each transaction checks that this znode exists.

The member znode is ephemeral. So ZooKeeper refuses a transaction that kazoo sends again on a later session, or that
arrives after the end of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

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
from kiel_groups.zookeeper.session import Session

Key = TypeVar("Key")

#: Called for an item that ZooKeeper refused; returns the operations to write instead, or None to drop the item.
OnRefused = Callable[[Key, Operation, Failure], "tuple[Operation, ...] | None"]

#: Called for each item right before its transaction; returns the operations to write, or None to write nothing.
Renew = Callable[[Key, "tuple[Operation, ...]"], "tuple[Operation, ...] | None"]


#: The most znodes that one transaction of checks names. Unlike writes, checks that fail are not sent again.
MOST_CHECKS = 1_000


class Stop(Exception):  # noqa: N818 -- not an error
    """An ``OnRefused`` callback raises this exception to leave all remaining items unwritten."""


def give_up(key: object, operation: Operation, failure: Failure) -> None:
    """Raise Stop. If ``write`` gets this function as ``on_refused``, a refusal leaves all remaining items unwritten."""
    raise Stop


@dataclass(slots=True)
class Outcome(Generic[Key]):
    """
    The results of writing a set of items.

    ``done`` maps an item to the versions that its operations produced. ``dropped`` maps an item to the reason why
    ZooKeeper refused the item. Items in ``unknown`` may or may not have been written. The member znode was checked
    after these writes, so a read now finds the final state. No field has the items that ``renew`` removed or that
    ``Stop`` left unwritten.
    """

    done: dict[Key, tuple[int | None, ...]] = field(default_factory=dict)
    dropped: dict[Key, Failure] = field(default_factory=dict)
    unknown: set[Key] = field(default_factory=set)


class FencedWriter:
    """
    Sends a member's transactions on the member's own session.

    Before each transaction the writer waits until the gate is open (see ``delivery_gate``). Watches may fire during
    that wait, so the writer then awaits ``catch_up``. That function reads the changed znodes.
    """

    def __init__(self, session: Session, member_path: str, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._session = session
        self._proof = Check(member_path)
        self._catch_up = catch_up

    async def prove(self) -> None:
        """
        Check the member znode in a transaction, and repeat the transaction until ZooKeeper answers.

        The transaction goes through the quorum, so later reads on this session are no older than the answer.

        Raises:
            SessionLostError: The session is over, or the member znode is gone.
            AuthorizationError: ZooKeeper refused the transaction because of an ACL.
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
        Write many items, in transactions of up to ``most`` operations. One transaction has all operations of an item.

        If ZooKeeper refuses an item, ``on_refused`` replaces or drops that item, and the writer sends the other items
        again. If ``on_refused`` is ``give_up``, all remaining items are left unwritten. Right before each transaction,
        ``renew`` confirms, changes or removes each of its items.

        Raises:
            SessionLostError: The session is over, or the member znode is gone.
            AuthorizationError: ZooKeeper refused a transaction because of an ACL.
        """
        outcome: Outcome[Key] = Outcome()
        pending = dict(items)
        while pending:
            await self.wait_ready()
            batch = _first_batch(pending, most)
            if not self._renew(pending, batch, renew) or not self._session.trusted:
                continue
            # There is no await between ``renew`` and this transaction, so the items cannot have become outdated.
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

    async def holds(self, checks: Iterable[Check]) -> bool:
        """
        Return whether all of these znodes have these versions. One transaction checks many znodes.

        The transactions also prove the session, as ``prove`` does. If an answer is lost, the result is False.

        Raises:
            SessionLostError: The session is over, or the member znode is gone.
            AuthorizationError: ZooKeeper refused a transaction because of an ACL.
        """
        items = {check: (check,) for check in checks}
        outcome = await self.write(items, give_up, most=MOST_CHECKS)
        return outcome.done.keys() == items.keys()

    async def wait_ready(self) -> None:
        """
        Wait until the gate is open and all watch events are processed, so that a write may be sent at once.

        Raises:
            SessionLostError: The session is over.
        """
        while True:
            await self._session.wait_trusted()
            # Callbacks that kazoo's thread has scheduled run in the next iteration of the loop.
            await asyncio.sleep(0)
            await self._catch_up()
            if self._session.trusted:
                return

    @staticmethod
    def _renew(pending: dict[Key, tuple[Operation, ...]], batch: Iterable[Key], renew: Renew[Key]) -> bool:
        """Apply ``renew`` to each item of a batch. Return whether every item is unchanged."""
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
    """Return the first items that fit in one transaction, by operations and size, but at least one item."""
    batch: list[Key] = []
    count, size = 1, 0
    for key, operations in islice(pending.items(), most):
        count += len(operations)
        size += sum(map(size_of, operations))
        if batch and (count > most or size > MOST_BYTES):
            break
        batch.append(key)
    return batch
