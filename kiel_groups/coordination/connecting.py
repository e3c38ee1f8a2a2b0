"""Overhearing how kazoo connects: which session the server grants, with which timeout, and how long that may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Connect

from kiel_groups.group.lease import answer_limit_s

__all__ = ["overhear_connect"]

#: The least time that a server has for answering Connect, in seconds: a busy one must not be taken for a dead one.
LEAST_CONNECT_S = 0.5


def overhear_connect(client: KazooClient, asked_timeout_ms: int, granted: Callable[[int, int], None]) -> None:
    """
    Have ``granted(session_id, timeout_ms)`` called, on kazoo's thread, with what a server answers to Connect.

    kazoo keeps the timeout that was asked for; the granted one stands only in that answer, 0 where the server does not
    know the session any more.
    """
    connection = client._connection
    invoke = connection._invoke

    # kazoo waits a whole session timeout for the answer to Connect, on a server that took the connection and went
    # silent (a frozen one, or 3.9.5 in the first moments of its start): longer than a lease. When a dead connection
    # is noticed a third of the timeout has gone; the lease leaves a sixth, for a silent server and the next one.
    limit_s = max(LEAST_CONNECT_S, answer_limit_s(asked_timeout_ms) / 2)

    def reading(timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        answer = invoke(min(timeout, limit_s), request, xid)
        granted(answer[0].session_id, answer[0].time_out)
        return answer

    connection._invoke = reading
