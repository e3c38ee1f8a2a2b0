"""
The network between the servers of one ensemble, with a fault proxy for each pair of servers and each port.

A server connects to the other servers' addresses in its own configuration, so each configuration has proxies that no
other server uses. On 3.4.6, a cut is complete. On 3.9.5, a cut is complete only between followers and leader: in an
election, the servers also exchange their real addresses, and may bypass the proxies.
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

#: How long a proxy waits for the server behind it. A server that was just elected listens a moment later. A follower
#: that is refused until then retries for 5 s. If a proxy accepted the follower's connection and then reset it, the
#: follower would vote again instead of retrying, and its leader would wait for it until ``initLimit``.
_NEW_LEADER_WAIT_S = 5.0


class _PeerProxies(NamedTuple):
    """The proxies through which one server reaches another server."""

    quorum: FaultProxy
    election: FaultProxy


class PeerLinks(Startable):
    """
    Runs the proxies between the servers of an ensemble during a ``with`` block. Servers are identified by number.

    Args:
        peers: The real addresses of the servers.
    """

    def __init__(self, peers: Mapping[int, Peer]) -> None:
        self._peers = peers
        self._proxies = {
            (one, other): _PeerProxies(
                FaultProxy(f"{peers[other].host}:{peers[other].quorum_port}", upstream_wait_s=_NEW_LEADER_WAIT_S),
                FaultProxy(f"{peers[other].host}:{peers[other].election_port}"),
            )
            for one, other in permutations(peers, 2)
        }
        self._running = ExitStack()

    def seen_by(self, number: int) -> dict[int, Peer]:
        """
        Return the addresses for the configuration of server ``number``: its own, and the proxies of all other servers.
        """
        return {
            other: self._peers[other]
            if other == number
            else Peer(LOOPBACK, self._proxies[number, other].quorum.port, self._proxies[number, other].election.port)
            for other in self._peers
        }

    def cut(self, one: int, other: int) -> None:
        """Stall all traffic between two servers. Their connections stay open (see ``FaultProxy.stall``)."""
        for proxy in self._between(one, other):
            proxy.stall()

    def delay(self, one: int, other: int, seconds: float) -> None:
        """Delay all traffic between two servers, in both directions."""
        for proxy in self._between(one, other):
            proxy.delay(seconds)

    def heal(self) -> None:
        """End all cuts and delays, and deliver the stalled traffic."""
        for pair in self._proxies.values():
            for proxy in pair:
                proxy.heal()

    def _between(self, one: int, other: int) -> Iterator[FaultProxy]:
        yield from self._proxies[one, other]
        yield from self._proxies[other, one]

    def _start(self) -> None:
        for pair in self._proxies.values():
            for proxy in pair:
                self._running.enter_context(proxy)

    def _close(self) -> None:
        self._running.close()
