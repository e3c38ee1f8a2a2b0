"""Describe requests that ZooKeeper refuses because of an ACL, and build transactions that test a right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.exceptions import NoAuthError
from kazoo.protocol.serialization import Transaction

from kiel_groups.errors import AuthorizationError, CredentialsError
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT
from kiel_groups.group.znodes.transactions import Check, Create, Delete, Operation, Put
from kiel_groups.wording import own_command

#: The right that an operation, or a request of kazoo's, needs, by its class. All others need the right to read.
_RIGHTS = {
    "Create": "create",
    "Create2": "create",
    "Put": "write",
    "SetData": "write",
    "Delete": "delete",
    "SetACL": "administer",
}


def right_of(request: Any, path: str) -> tuple[str, str]:
    """
    Return the right that a request needs, and the znode whose ACL gives it.

    Args:
        request: An operation, or a request of kazoo's.
        path: The path of the request, without the chroot.
    """
    right = _RIGHTS.get(type(request).__name__, "read")
    return right, (path.rpartition("/")[0] or "/") if right in ("create", "delete") else path


def denied(right: str, path: str) -> AuthorizationError:
    """Return the error for a request that ZooKeeper refuses because the ACL of ``path`` does not give the right."""
    what = {"create": "create a znode in", "delete": "delete a znode in", "administer": "set the ACL of"}
    parts = path.split("/")
    group = parts[2] if len(parts) > 2 and f"/{parts[1]}" in (ROOT, CONSUMERS) else ""
    advice = f"; {own_command('acl', 'show', group)} shows the ACLs of the group" if group else ""
    refused = f"ZooKeeper refused to {what.get(right, right)} {path}"
    return AuthorizationError(
        f"{refused}: its ACL denies this client the right to {right}{advice}", path=path, right=right
    )


class LoggedRefusals:
    """
    The missing rights, and the refused credentials and ACLs, that the parts of a process have logged.

    A worker has two sessions, and several parts that use them. They share this object, so that a right that several of
    them lack is one log line.
    """

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def is_news(self, error: BaseException) -> bool:
        """Return whether to log an error: False only for such a refusal that was logged since the last ``clear``."""
        if not isinstance(error, (AuthorizationError, CredentialsError)):
            return True
        is_news = str(error) not in self._texts
        self._texts.add(str(error))
        return is_news

    def clear(self) -> None:
        """Forget all refusals that were logged: a session has joined the group."""
        self._texts.clear()


def name_denied(request: Any, unprefixed: Callable[[str], str], answer: Any) -> None:
    """
    Replace the texts of the NoAuthErrors in kazoo's answer by texts that name the znode and the right.

    Args:
        request: kazoo's request.
        unprefixed: Returns a path without the chroot.
        answer: kazoo's result, with an exception, or with the results of a transaction.
    """
    requests, errors = [request], [answer.exception]
    if isinstance(request, Transaction) and answer.exception is None:
        requests, errors = list(request.operations), list(answer.value)
    for each, error in zip(requests, errors, strict=False):
        if isinstance(error, NoAuthError):
            error.args = (str(denied(*right_of(each, unprefixed(each.path)))),)


def missing_znode(name: str) -> Check:
    """
    Return an operation that ZooKeeper always refuses, so that its transaction writes nothing.

    No znode has the name, except that the transaction may create one.
    """
    return Check(f"{ROOT}/{name}/{name}")


def tries(error: AuthorizationError, name: str) -> tuple[Operation, ...]:
    """
    Return a transaction that ZooKeeper refuses for the same reason as ``error`` if the right is still missing.

    If not, ZooKeeper refuses its last operation, so that it never writes anything.

    Args:
        error: The error.
        name: A name that no znode has.
    """
    child, missing = f"{error.path}/{name}", missing_znode(name)
    match error.right:
        case "create":
            return Create(child), missing
        case "delete":
            return Create(child), Delete(child), missing
        case "write":
            return Put(error.path, b""), missing
    return Check(error.path), missing
