"""From kazoo's results of a transaction to one of our answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)

from kiel_groups.group.transactions import Answer, Done, Failure, Refused

__all__ = ["answer_of"]

_FAILURES: tuple[tuple[type[KazooException], Failure], ...] = (
    (NoNodeError, Failure.NO_NODE),
    (NodeExistsError, Failure.NODE_EXISTS),
    (BadVersionError, Failure.BAD_VERSION),
    (NotEmptyError, Failure.NOT_EMPTY),
    (NoAuthError, Failure.NO_AUTH),
)
#: What kazoo reports for the operations of a refused transaction that were not themselves in the way.
_BYSTANDERS = (RolledBackError, RuntimeInconsistency)


def answer_of(results: Sequence[Any]) -> Answer:
    """kazoo returns the failures of a transaction among its results, and raises none of them."""
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, _BYSTANDERS):
            failure = next((known for kind, known in _FAILURES if isinstance(result, kind)), Failure.OTHER)
            return Refused(index, failure)
    if any(isinstance(result, Exception) for result in results):
        return Refused(0, Failure.OTHER)
    return Done(
        versions=tuple(getattr(result, "version", None) for result in results),
        paths=tuple(result if isinstance(result, str) else None for result in results),
    )
