"""Between kazoo's transactions and ours: what is asked for, and what came of it."""

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

__all__ = ["MOVED", "answer_of", "tells_of_move", "transaction_of"]

#: What to say of a server that tells of a move.
MOVED = "takes the session to have moved to another server"

_FAILURES: tuple[tuple[type[KazooException], Failure], ...] = (
    (NoNodeError, Failure.NO_NODE),
    (NodeExistsError, Failure.NODE_EXISTS),
    (BadVersionError, Failure.BAD_VERSION),
    (NotEmptyError, Failure.NOT_EMPTY),
    (NoAuthError, Failure.NO_AUTH),
)
#: What kazoo reports for the operations of a refused transaction that were not themselves in the way.
_BYSTANDERS = (RolledBackError, RuntimeInconsistency)


def transaction_of(client: KazooClient, operations: Iterable[Operation]) -> TransactionRequest:
    """A transaction of kazoo's, not yet sent."""
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


def tells_of_move(results: Any) -> bool:
    """
    Whether a transaction was refused because its session, by the leader's account, is connected to another server.

    The leader errs where it heard of a connection that the client has given up after it heard of the next one. Servers
    of 3.4 refuse every transaction so, and keep the connection; later ones close it, as all do for other requests. Only
    who connects again goes on with the session.
    """
    return isinstance(results, list) and any(isinstance(result, SessionMovedError) for result in results)


def answer_of(results: Sequence[Any]) -> Answer:
    """kazoo returns the failures of a transaction among its results, and raises none of them."""
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
