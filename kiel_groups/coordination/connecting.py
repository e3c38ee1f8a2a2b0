"""
kazoo's client, with what we need of it beyond kazoo's own.

How it connects is overheard: which session the server grants, with which timeout, and how long that may take.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, repeat
from operator import mul
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState

from kiel_groups.group.lease import answer_limit_s

__all__ = ["InterruptibleClient", "connect_limit_s", "overhear_connect"]

#: The least time that a server has for each step of a connection, in seconds: a busy one must not be taken for a dead
#: one.
LEAST_CONNECT_S = 0.5

_REFUSING = (KeeperState.AUTH_FAILED, KeeperState.CLOSED, KeeperState.EXPIRED_SESSION)


def connect_limit_s(asked_timeout_ms: int) -> float:
    """
    How long a server has for taking a connection, and again for answering Connect, in seconds.

    kazoo waits a whole session timeout for either: on a host that swallows packets, and on a server that took the
    connection and went silent (a frozen one, or 3.9.5 in the first moments of its start). That is longer than a lease.
    When a dead connection is noticed a third of the timeout has gone; the lease leaves a sixth, for such a server and
    the next one.

    Args:
        asked_timeout_ms: The session timeout that is asked for, in milliseconds.
    """
    return max(LEAST_CONNECT_S, answer_limit_s(asked_timeout_ms) / 2)


class InterruptibleClient(KazooClient):  # type: ignore[misc]
    """
    A client that lets a Ctrl-C through.

    kazoo takes whatever is raised while it wakes its connection for the end of that connection: a Ctrl-C that hits the
    main thread in that moment is lost, and the session with it.
    """

    def _call(self, request: Any, answer: Any) -> bool | None:
        if self._state in _REFUSING:
            refused: bool | None = super()._call(request, answer)
            return refused
        wake = self._connection._write_sock
        try:
            self._queue.append((request, answer))
            if wake is None:  # closed by another thread meanwhile
                raise OSError
            wake.send(b"\0")
        except OSError:
            answer.set_exception(ConnectionClosedError("Connection has been closed"))
        except BaseException:
            # kazoo sends one request for each byte, and minds no byte too many: one too few would hold up the last
            # request for ever, which may be the close of the session.
            if wake is not None:
                wake.send(b"\0")
            raise
        return None


def overhear_connect(client: KazooClient, asked_timeout_ms: int, granted: Callable[[int, int], None]) -> None:
    """
    Have ``granted(session_id, timeout_ms)`` called, on kazoo's thread, with what a server answers to Connect.

    kazoo keeps the timeout that was asked for; the granted one stands only in that answer, 0 where the server does not
    know the session any more.

    Before the first session there is no lease to keep: each server asked has twice the time of the one before, up to
    kazoo's own, so that slow ones are joined, too.
    """
    connection = client._connection
    invoke = connection._invoke
    limit_s = connect_limit_s(asked_timeout_ms)
    first_limits_s = accumulate(repeat(2), mul, initial=limit_s)

    def reading(timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        wait_s = limit_s if client._session_id else next(first_limits_s)
        answer = invoke(min(timeout, wait_s), request, xid)
        granted(answer[0].session_id, answer[0].time_out)
        return answer

    connection._invoke = reading
