"""
Do what a request asks at the right worker: here, or at the leader or owner, to which the request is forwarded.

A worker that is not the right one knows only the leader; the leader knows all owners. So a request is forwarded at most
twice. Its query has ``forward=true`` after the first time, and ``forward=false`` after the second, as in Kafka Connect.
A worker that gets the latter and is not the right one has another view of the group than its leader, and refuses.

A request that is forwarded has the token. So it goes only to a URL that a worker has registered in ZooKeeper, and to no
place to which an answer redirects.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

from kiel_groups.errors import NoWorkerError, ProtocolError, RebalanceError
from kiel_groups.workers.rest.rest_answers import Answer
from kiel_groups.workers.rest.rest_errors import RETRY_AFTER_S, RestError
from kiel_groups.workers.rest.worker_control import WorkerControl
from kiel_groups.workers.rest_client.http_exchange import HttpExchange
from kiel_groups.workers.values.work_ids import Work

__all__ = ["Hop", "RequestForwarding", "Routed"]

log = logging.getLogger(__name__)

Act = Callable[[], Awaitable[Answer]]


class Hop(Enum):
    """How often a request was forwarded; the value is that of ``forward`` in its query."""

    FIRST = None
    SECOND = "true"
    LAST = "false"

    @classmethod
    def of(cls, forward: str | None) -> Hop:
        """Return the hop of a request with this query argument."""
        if forward is None:
            return cls.FIRST
        return cls.SECOND if forward.lower() == "true" else cls.LAST


@dataclass(frozen=True, slots=True)
class Routed:
    """
    A request as it is forwarded.

    Args:
        method: The method.
        path: The path, percent-encoded.
        hop: How often it was forwarded until now.
        body: The JSON document, or nothing.
    """

    method: str
    path: str
    hop: Hop
    body: bytes = b""


class RequestForwarding:
    """
    The routes from one worker to the others.

    Args:
        control: The worker.
        url: The URL of its REST interface.
        exchange: Sends the requests.
    """

    def __init__(self, control: WorkerControl, url: str, exchange: HttpExchange) -> None:
        self._control = control
        self._url = url
        self._exchange = exchange

    async def at_leader(self, request: Routed, act: Act) -> Answer:
        """
        Call ``act`` if this worker leads, and otherwise forward the request to the leader.

        Raises:
            RebalanceError: The leader is not known.
            RestError: The leader does not answer.
        """
        self._check_stable()
        leader = self._control.leader_url()
        if leader is None:
            raise RebalanceError("the group of workers has no leader at the moment; try again later")
        return await (act() if self._is_own(leader) else self._forward(leader, request))

    async def at_owner(self, work: Work, request: Routed, act: Act) -> Answer:
        """
        Call ``act`` if this worker has the work, and otherwise forward the request to its owner or to the leader.

        Raises:
            RebalanceError: The owner is not known.
            RestError: The other worker does not answer.
        """
        self._check_stable()
        owner = self._control.owner_url(work)
        if self._is_own(owner):
            return await act()
        target = owner or self._control.leader_url()
        if target is None or self._is_own(target):
            raise RebalanceError(f"{work} is not assigned to any worker at the moment; try again later")
        return await self._forward(target, request)

    def _is_own(self, url: str | None) -> bool:
        """Return whether a URL is this worker's; other programs may write it with a slash at its end."""
        return url is not None and url.rstrip("/") == self._url.rstrip("/")

    def _check_stable(self) -> None:
        if self._control.is_rebalancing():
            raise RebalanceError("the group of workers is rebalancing; try again later")

    async def _forward(self, target: str, request: Routed) -> Answer:
        if request.hop is Hop.LAST:
            raise RebalanceError("the workers do not agree on the leader or the owner at the moment; try again later")
        if not await self._control.is_registered(target):
            text = (
                f"the request is not forwarded to {target:.200}, which the group names as the URL of a worker: no"
                " worker has registered it in ZooKeeper; a worker that has lost its ZooKeeper session registers again"
                " soon, any other member of the group is a stranger, which must not get requests and their token"
            )
            raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": str(RETRY_AFTER_S)})
        following = Hop.SECOND if request.hop is Hop.FIRST else Hop.LAST
        log.debug("forwarding %s %s to %s", request.method, request.path, target)
        url = f"{target.rstrip('/')}{request.path}?forward={following.value}"
        try:
            answer = await self._exchange.send(request.method, url, request.body)
        except NoWorkerError as error:
            # A worker that has died keeps its work, or leads, until its session has expired.
            text = f"the request cannot be forwarded: {error}; if that worker has died, others replace it soon"
            raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": str(RETRY_AFTER_S)}) from error
        except ProtocolError as error:
            raise RestError(HTTPStatus.BAD_GATEWAY, f"the request cannot be forwarded: {error}") from error
        if answer.status == HTTPStatus.UNAUTHORIZED:
            text = (
                f"the request cannot be forwarded: the worker at {target} has another token than this one; give all"
                " workers of the group the same token"
            )
            raise RestError(HTTPStatus.BAD_GATEWAY, text)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            headers = {"Retry-After": str(RETRY_AFTER_S)} if answer.is_temporary else {}
            raise RestError(answer.status, answer.message or f"the worker at {target} gave no reason", headers)
        return Answer(answer.document, answer.status, answer.location)
