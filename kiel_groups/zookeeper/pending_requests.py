"""Send the requests of one session through kazoo, and pass their answers to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL

from kiel_groups.errors import CredentialsError, SessionLostError
from kiel_groups.group.znodes.layout import ROOT
from kiel_groups.group.znodes.transactions import Answer, Check, Create, Delete, Done, Failure, Operation, Put, Refused
from kiel_groups.zookeeper.rights import missing_znode

#: The end of a log line about a server that reports that the session has moved.
MOVED = "reported that the session has moved to another server"

_FAILURES: tuple[tuple[type[KazooException], Failure], ...] = (
    (NoNodeError, Failure.NO_NODE),
    (NodeExistsError, Failure.NODE_EXISTS),
    (BadVersionError, Failure.BAD_VERSION),
    (NotEmptyError, Failure.NOT_EMPTY),
    (NoAuthError, Failure.NO_AUTH),
    (InvalidACLError, Failure.INVALID_ACL),
)
#: The errors that kazoo reports for those operations of a refused transaction that did not cause the refusal.
_BYSTANDERS = (RolledBackError, RuntimeInconsistency)


def transaction_of(
    client: KazooClient, operations: Iterable[Operation], acl: list[ACL] | None = None
) -> TransactionRequest:
    """
    Build kazoo's transaction from operations, without sending it.

    ``acl`` is the ACL of created znodes; by default, that of the client's settings.
    """
    transaction = client.transaction()
    for operation in operations:
        match operation:
            case Check(path, version):
                transaction.check(path, version)
            case Create(path, data, ephemeral, is_sequence):
                transaction.create(path, data, acl, ephemeral=ephemeral, sequence=is_sequence)
            case Put(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path, version):
                transaction.delete(path, version)
    return transaction


def reports_move(results: Any) -> bool:
    """
    Return whether a transaction failed with SessionMovedError.

    ZooKeeper's leader raises this error wrongly if it processes an abandoned connection of a client later than the
    client's new connection. Servers of 3.4 then refuse every transaction and keep the connection open. Later versions
    close the connection, as all versions do for other requests. Only a new connection makes the session usable again.
    """
    return isinstance(results, list) and any(isinstance(result, SessionMovedError) for result in results)


def first_error(results: Sequence[Any]) -> tuple[int, Exception] | None:
    """Return the index and the error of the operation that made a transaction fail, or None if it was executed."""
    errors = [(index, result) for index, result in enumerate(results) if isinstance(result, Exception)]
    return next((each for each in errors if not isinstance(each[1], _BYSTANDERS)), errors[0] if errors else None)


def acl_tries(client: KazooClient, acls: Iterable[list[ACL]], unique_name: Callable[[], str]) -> list[Request]:
    """
    Return a request for each ACL: a transaction that never writes anything, because ZooKeeper always refuses it.

    ``refuses_acl`` says of the answer whether ZooKeeper does not accept the ACL.
    """
    requests = []
    for acl in acls:
        name = unique_name()
        requests.append(transaction_of(client, [Create(f"{ROOT}/{name}"), missing_znode(name)], acl).commit_async)
    return requests


def refuses_acl(results: Sequence[Any]) -> bool:
    """Return whether a transaction was refused because ZooKeeper does not accept the ACL of a new znode."""
    answer = answer_of(results)
    return isinstance(answer, Refused) and answer.failure is Failure.INVALID_ACL


def answer_of(results: Sequence[Any]) -> Answer:
    """Convert kazoo's results to an answer. The results include the errors of a refused transaction."""
    if failed := first_error(results):
        index, error = failed
        return Refused(index, next((known for kind, known in _FAILURES if isinstance(error, kind)), Failure.OTHER))
    return Done(
        versions=tuple([result.version if isinstance(result, ZnodeStat) else None for result in results]),
        paths=tuple([result if isinstance(result, str) else None for result in results]),
    )


#: ZooKeeper knows no scheme or name of an ACL, or it has not identified the creator.
ACL_REFUSED = "it does not accept the ACL that the file with the credentials asks for"
SASL_REQUIRED = "ZooKeeper requires SASL; name a file with a user and a password (docs/security.rst)"

_SESSION_OVER = (SessionExpiredError, ConnectionClosedError, AuthFailedError)

#: Starts one asynchronous kazoo request and returns kazoo's result object.
Request: TypeAlias = Callable[[], Any]


class PendingRequests:
    """
    The requests of one session that are not answered yet.

    The answers of one ``send`` reach the event loop together: a thousand reads wake the loop once.

    Args:
        call_loop: Calls a function with arguments on the event loop. Any thread may use ``call_loop``.
    """

    def __init__(self, call_loop: Callable[..., None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._call_loop = call_loop
        self._end_reason: str | None = None
        #: The futures of ``send``, in the order of sending, so that they fail in that order when the session ends.
        self._unanswered: dict[asyncio.Future[list[Any]], None] = {}

    def send(self, requests: Sequence[Request]) -> asyncio.Future[list[Any]]:
        """
        Start kazoo requests.

        The requests reach the server in the given order, after the requests of earlier calls.

        Returns:
            The future to pass to ``answers``.

        Raises:
            SessionLostError: The session is over.
        """
        if self._end_reason is not None:
            raise SessionLostError(f"the ZooKeeper session is over: {self._end_reason}")
        sent: asyncio.Future[list[Any]] = self._loop.create_future()
        self._unanswered[sent] = None
        # Answers arrive on kazoo's threads. If the last two arrive at once, both may find the set complete.
        answers: dict[int, Any] = {}
        count = len(requests)

        def answered(number: int, result: Any) -> None:
            answers[number] = result.value if result.exception is None else result.exception
            if len(answers) == count:
                self._call_loop(_settle, sent, answers)

        for number, request in enumerate(requests):
            request().rawlink(partial(answered, number))
        return sent

    async def answers(self, sent: asyncio.Future[list[Any]]) -> list[Any]:
        """
        Wait for the answers to the requests of one ``send``.

        Returns:
            ZooKeeper's answer, or the error, for each request.

        Raises:
            SessionLostError: The session is over.
            CredentialsError: The server has closed the session because it requires SASL.
        """
        try:
            answers = await sent
        finally:
            self._unanswered.pop(sent, None)
        for answer in answers:
            if isinstance(answer, SessionClosedRequireSaslError):
                raise CredentialsError(SASL_REQUIRED) from answer
            if isinstance(answer, _SESSION_OVER):
                raise SessionLostError(f"the ZooKeeper session is over: {answer!r}") from answer
        return answers

    def end(self, reason: str) -> None:
        """Fail all unanswered requests, and every later ``send``, because the session is over."""
        self._end_reason = reason
        for sent in list(self._unanswered):
            if not sent.done():
                sent.set_exception(SessionLostError(f"the ZooKeeper session is over: {reason}"))


def _settle(sent: asyncio.Future[list[Any]], answers: dict[int, Any]) -> None:
    if not sent.done():
        sent.set_result([answers[number] for number in range(len(answers))])
