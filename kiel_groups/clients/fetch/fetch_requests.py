"""
Plan fetch requests: select the partitions of the next request to a broker, and how long the broker may wait.

A broker delays the answer until there is data in one of the request's partitions, so one request for all partitions
would keep a newly assigned partition waiting behind idle ones. Therefore up to two requests are in flight to each
broker, on separate connections (lanes), over disjoint partitions:

1. A request that is sent alone takes every partition that is ready and may wait for ``max_wait_ms`` (long).
2. A request that is sent beside another waits for ``SHORT_WAIT_MS`` at most, so that its lane is soon free again.
3. Partitions whose last answer was empty are not sent beside a short request: they wait for its answer, and all go
   into one long request. So the lanes merge again when no data comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kiel_groups.clients.fetch.partition_fetch import PartitionFetch, Phase
from kiel_groups.config import FetchConfig

__all__ = ["BrokerLanes", "PlannedFetch", "LANES", "SHORT_WAIT_MS", "LEAST_SHARE_BYTES"]

LANES = 2
SHORT_WAIT_MS = 100
#: The least bytes that a request asks for from each partition, even if their sum exceeds ``max_bytes``.
LEAST_SHARE_BYTES = 4 << 10


class PlannedFetch(NamedTuple):
    """One request: its lane, how long the broker may wait, and for each partition the bytes to ask for."""

    lane: int
    wait_ms: int
    shares: dict[PartitionFetch, int]


@dataclass(slots=True)
class BrokerLanes:
    """The partitions that are ready at one broker, and the requests in flight to it."""

    node_id: int
    ready: dict[PartitionFetch, None] = field(default_factory=dict)
    #: How long each request in flight may wait at the broker, in milliseconds, by lane.
    in_flight: dict[int, int] = field(default_factory=dict)

    @property
    def has_free_lane(self) -> bool:
        """Whether another request may be sent now."""
        return len(self.in_flight) < LANES

    def plan(self, config: FetchConfig, budget_bytes: int) -> PlannedFetch | None:
        """
        Return the request to send now, or None if none should be sent. Remove its partitions from ``ready``.

        Args:
            config: Sets ``max_wait_ms``.
            budget_bytes: The bytes that the whole answer may hold.
        """
        if not self.has_free_lane:
            return None
        for state in [state for state in self.ready if state.dropped]:
            del self.ready[state]
        if not self.ready or self._should_merge():
            return None
        shares = divide_budget(self.ready, budget_bytes)
        for state in shares:
            del self.ready[state]
            state.enter(Phase.FETCHING)
        lane = next(lane for lane in range(LANES) if lane not in self.in_flight)
        wait_ms = min(config.max_wait_ms, SHORT_WAIT_MS) if self.in_flight else config.max_wait_ms
        self.in_flight[lane] = wait_ms
        return PlannedFetch(lane, wait_ms, shares)

    def _should_merge(self) -> bool:
        other_is_short = any(wait_ms <= SHORT_WAIT_MS for wait_ms in self.in_flight.values())
        return other_is_short and all(state.idle for state in self.ready)


def divide_budget(partitions: Iterable[PartitionFetch], budget_bytes: int) -> dict[PartitionFetch, int]:
    """
    Divide the budget: a partition with a large next message gets the bytes that it needs, others get even shares.

    The first partition with a large message is always included, further ones while their messages fit into the budget
    together. Partitions whose large messages do not fit wait for the next request.
    """
    shares: dict[PartitionFetch, int] = {}
    plain: list[PartitionFetch] = []
    room = budget_bytes
    for state in partitions:
        if not state.needed_bytes:
            plain.append(state)
        elif not shares or state.needed_bytes <= room:
            shares[state] = state.needed_bytes
            room -= state.needed_bytes
    if plain:
        shares |= dict.fromkeys(plain, max(room // len(plain), min(LEAST_SHARE_BYTES, budget_bytes)))
    return shares
