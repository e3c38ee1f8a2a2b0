"""
The network between the servers of one ensemble, which fails on demand: a proxy before each port, for each peer.

A server finds the others where its own configuration says, so each is told of proxies that nobody else uses. 3.9.5 does
so only for following: at an election its servers also tell each other where they are, and may talk past the proxies. On
3.4.6 a cut is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import permutations
from typing import NamedTuple

from kiel_groups.embedded.faults.fault_proxy import FaultProxy
from kiel_groups.embedded.processes.server_process import Startable
from kiel_groups.embedded.servers.server_files import LOOPBACK, Peer

__all__ = ["PeerLinks"]

#: Who was just elected listens a moment later. A follower that is refused until then tries again for 5 s; one that is
#: accepted and reset, as by a proxy, votes again, and its leader waits for it in vain until ``initLimit``.
_ELECTED_LISTENS_S = 5.0


class _Way(NamedTuple):
    """How one server reaches another."""

    quorum: FaultProxy
    election: FaultProxy


class PeerLinks(Startable):
    """
    Proxies between servers, for the time of a ``with`` block; servers go by their numbers.

    Args:
        peers: Where the servers really listen.
    """

    def __init__(self, peers: Mapping[int, Peer]) -> None:
        self._peers = peers
        self._ways = {
            (one, other): _Way(
                FaultProxy(f"{peers[other].host}:{peers[other].quorum_port}", upstream_wait_s=_ELECTED_LISTENS_S),
                FaultProxy(f"{peers[other].host}:{peers[other].election_port}"),
            )
            for one, other in permutations(peers, 2)
        }
        self._running = ExitStack()

    def seen_by(self, number: int) -> dict[int, Peer]:
        """All servers, itself included, as one of them is to be told of them."""
        return {
            other: self._peers[other]
            if other == number
            else Peer(LOOPBACK, self._ways[number, other].quorum.port, self._ways[number, other].election.port)
            for other in self._peers
        }

    def cut(self, one: int, other: int) -> None:
        """From now on nothing goes between two servers, nor does either hear of an end; see ``FaultProxy.stall``."""
        for proxy in self._between(one, other):
            proxy.stall()

    def delay(self, one: int, other: int, seconds: float) -> None:
        """Hold everything between two servers back for so long, both ways."""
        for proxy in self._between(one, other):
            proxy.delay(seconds)

    def heal(self) -> None:
        """End all of that; what was held back goes on."""
        for way in self._ways.values():
            for proxy in way:
                proxy.heal()

    def _between(self, one: int, other: int) -> Iterator[FaultProxy]:
        yield from self._ways[one, other]
        yield from self._ways[other, one]

    def _start(self) -> None:
        for way in self._ways.values():
            for proxy in way:
                self._running.enter_context(proxy)

    def _close(self) -> None:
        self._running.close()
