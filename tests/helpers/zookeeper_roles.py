"""The roles of real ZooKeeper servers: which one leads, and which ones follow."""

from __future__ import annotations

import asyncio
import re
import socket

from kiel_groups.embedded import ZooKeeperEnsemble, ZooKeeperServer
from kiel_groups.embedded.processes import in_thread
from tests.helpers.waiting import eventually

_ANSWER_LIMIT_S = 2.0
_ELECTION_LIMIT_S = 30.0
_MODE = re.compile(rb"^Mode: (?P<mode>[\w-]+)$", re.MULTILINE)
#: The modes of a server that leads. A stand-alone server counts as a leader.
_LEADING = ("leader", "standalone")


async def mode_of(server: ZooKeeperServer) -> str | None:
    """
    Return ``"standalone"``, ``"leader"`` or ``"follower"``, or None if the server is down, frozen or without a quorum.

    A server that is configured to serve reads without a quorum returns ``"read-only"`` instead of None.
    """
    return await in_thread(_ask, server)


def _ask(server: ZooKeeperServer) -> str | None:
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=_ANSWER_LIMIT_S) as connection:
            connection.settimeout(_ANSWER_LIMIT_S)
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return None
    found = _MODE.search(answer)
    return found["mode"].decode() if found else None


async def modes_of(ensemble: ZooKeeperEnsemble) -> list[str | None]:
    """Return the mode of each server, in the order of ``ensemble.servers``."""
    return await asyncio.gather(*map(mode_of, ensemble.servers))


async def leader_of(ensemble: ZooKeeperEnsemble) -> ZooKeeperServer:
    """Return the server that leads, or a stand-alone server. Wait for the end of an election."""

    async def only_leader() -> ZooKeeperServer | None:
        modes = await modes_of(ensemble)
        leaders = [server for server, mode in zip(ensemble.servers, modes, strict=True) if mode in _LEADING]
        return leaders[0] if len(leaders) == 1 else None

    return await eventually(only_leader, "the ensemble has a single leader", _ELECTION_LIMIT_S)


async def followers_of(ensemble: ZooKeeperEnsemble) -> list[ZooKeeperServer]:
    """Return all servers but the leader, whether they run or not."""
    leader = await leader_of(ensemble)
    return [server for server in ensemble.servers if server is not leader]
