"""Translate transactions: this package's operations to kazoo's requests, and kazoo's results to answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionMovedError,
)
from kazoo.protocol.states import ZnodeStat

from kiel_groups.group.znodes.transactions import Answer, Check, Create, Delete, Done, Failure, Operation, Put, Refused

__all__ = ["MOVED", "answer_of", "reports_move", "transaction_of"]

#: The end of a log line about a server that reports that the session has moved.
MOVED = "reported that the session has moved to another server"

_FAILURES: tuple[tuple[type[KazooException], Failure], ...] = (
    (NoNodeError, Failure.NO_NODE),
    (NodeExistsError, Failure.NODE_EXISTS),
    (BadVersionError, Failure.BAD_VERSION),
    (NotEmptyError, Failure.NOT_EMPTY),
    (NoAuthError, Failure.NO_AUTH),
)
#: The errors that kazoo reports for those operations of a refused transaction that did not cause the refusal.
_BYSTANDERS = (RolledBackError, RuntimeInconsistency)


def transaction_of(client: KazooClient, operations: Iterable[Operation]) -> TransactionRequest:
    """Build kazoo's transaction from operations, without sending it."""
    transaction = client.transaction()
    for operation in operations:
        match operation:
            case Check(path, version):
                transaction.check(path, version)
            case Create(path, data, ephemeral, is_sequence):
                transaction.create(path, data, ephemeral=ephemeral, sequence=is_sequence)
            case Put(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path, version):
                transaction.delete(path, version)
    return transaction


def reports_move(results: Any) -> bool:
    """
    Return whether a transaction failed with SessionMovedError.

    ZooKeeper's leader raises it wrongly if it processes a client's abandoned connection after the connection that
    replaced it. Servers of 3.4 then refuse every transaction and keep the connection open. Later versions close it, as
    all versions do for other requests. Only a new connection makes the session usable again.
    """
    return isinstance(results, list) and any(isinstance(result, SessionMovedError) for result in results)


def answer_of(results: Sequence[Any]) -> Answer:
    """Convert kazoo's results to an answer. kazoo returns a transaction's errors among the results, and raises none."""
    errors = [(index, result) for index, result in enumerate(results) if isinstance(result, Exception)]
    for index, error in errors:
        if not isinstance(error, _BYSTANDERS):
            return Refused(index, next((known for kind, known in _FAILURES if isinstance(error, kind)), Failure.OTHER))
    if errors:
        return Refused(0, Failure.OTHER)
    return Done(
        versions=tuple([result.version if isinstance(result, ZnodeStat) else None for result in results]),
        paths=tuple([result if isinstance(result, str) else None for result in results]),
    )
