"""
Find ZooKeeper hosts that have no address.

kazoo would retry such hosts until the connect timeout, and would not report why the connection failed.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from kiel_groups.config import ZOOKEEPER_PORT, HostPort, ZooKeeperConfig, parse_hosts
from kiel_groups.errors import NoZooKeeperError

__all__ = ["check_hosts", "without_address"]


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


def without_address(config: ZooKeeperConfig) -> str:
    """
    Return a text that names the hosts without an address, to append to an error, or "" if all hosts have one.

    This may block.
    """
    unresolved = _unresolved(_servers(config))
    return f" (without an address: {', '.join(unresolved)})" if unresolved else ""


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
