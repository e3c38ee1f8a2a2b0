"""
Find out why ZooKeeper does not answer: hosts that have no address, and servers that refuse further connections.

kazoo retries such hosts until the connect timeout, and does not report why the connection failed.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from kiel_groups.config import ZOOKEEPER_PORT, HostPort, ZooKeeperConfig, parse_hosts
from kiel_groups.errors import NoZooKeeperError

__all__ = ["check_hosts", "no_answer"]

#: How long a server may take to close a connection that it does not want, in seconds. Others wait for a request.
_CLOSING_S = 0.3


def check_hosts(config: ZooKeeperConfig) -> None:
    """
    Resolve the addresses of all hosts. This may block.

    Raises:
        NoZooKeeperError: No host has an address, so no connection can succeed.
    """
    servers = _servers(config)
    unresolved = _unresolved(servers)
    if len(unresolved) == len(servers):
        raise NoZooKeeperError(f"the host of ZooKeeper has no address: {', '.join(unresolved)}; is the name right?")


def no_answer(config: ZooKeeperConfig, limit_s: float) -> str:
    """
    Return the text of the error that no server has opened a session within ``limit_s``, with the likely reason.

    This may block, for less than a second for each host.
    """
    servers = _servers(config)
    if full := next((server for server in servers if _closes_at_once(server)), None):
        return (
            f"ZooKeeper at {config.hosts} opened no session within {limit_s:g} s: {full} closes each connection at"
            " once, as a server does that has as many from one address as its maxClientCnxns allows (60 by default),"
            " or as its maxCnxns allows in all; close some, or raise the limit"
        )
    unresolved = _unresolved(servers)
    aside = f" (without an address: {', '.join(unresolved)})" if unresolved else ""
    return f"no ZooKeeper answered at {config.hosts} within {limit_s:g} s; is it running, and the port right?{aside}"


def _closes_at_once(server: HostPort) -> bool:
    """Return whether a server accepts a connection, and closes it before it has received a request."""
    try:
        connection = socket.create_connection(server, _CLOSING_S)
    except OSError:
        return False
    with connection:
        try:
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:  # ZooKeeper resets the connection.
            return True


def _servers(config: ZooKeeperConfig) -> Sequence[HostPort]:
    return parse_hosts(config.hosts.removesuffix(config.chroot), ZOOKEEPER_PORT, "zookeeper")


def _unresolved(servers: Sequence[HostPort]) -> list[str]:
    """Return the host names that do not resolve, each with the reason."""
    unresolved = []
    for server in servers:
        try:
            socket.getaddrinfo(server.host, server.port)
        except OSError as error:
            unresolved.append(f"{server.host} ({error.strerror})")
    return unresolved
