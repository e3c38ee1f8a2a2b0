"""Describe a request to the REST interface as the operations see it, and what all operations work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kiel_groups.workers.rest.request_forwarding import Hop, RequestForwarding, Routed
from kiel_groups.workers.rest.rest_answers import Answer, ConfigMask
from kiel_groups.workers.rest.worker_control import WorkerControl

__all__ = ["Operation", "RestCall", "RestSite"]


@dataclass(frozen=True, slots=True)
class RestSite:
    """
    What all operations of one worker work with.

    Args:
        control: The worker.
        mask: Hides secrets.
        forwarding: The routes to the other workers.
        version: The version that the worker reports.
    """

    control: WorkerControl
    mask: ConfigMask
    forwarding: RequestForwarding
    version: str


@dataclass(frozen=True, slots=True)
class RestCall:
    """
    A request.

    Args:
        method: The method.
        path: The path, percent-encoded.
        arguments: The decoded parts of the path that its route names, such as the connector.
        query: The values of each query argument.
        body: The body.
    """

    method: str
    path: str
    arguments: Sequence[str] = ()
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: bytes = b""

    @property
    def hop(self) -> Hop:
        """How often the request was forwarded."""
        return Hop.of(next(iter(self.query.get("forward", ())), None))

    @property
    def routed(self) -> Routed:
        """The request as it is forwarded: without its query, because no operation that is forwarded has one."""
        return Routed(self.method, self.path, self.hop, self.body)

    def is_set(self, name: str) -> bool:
        """Return whether a query argument is true."""
        return any(value.lower() == "true" for value in self.query.get(name, ()))


Operation: TypeAlias = Callable[[RestSite, RestCall], Awaitable[Answer]]
