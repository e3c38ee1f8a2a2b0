"""ZooKeeper's hosts that have no address: kazoo would try for all of its time to connect to them, and not say why."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from kiel_groups.config import ZOOKEEPER_PORT, HostPort, ZooKeeperConfig, parse_hosts
from kiel_groups.errors import NoZooKeeperError

__all__ = ["check_hosts", "without_address"]


def check_hosts(config: ZooKeeperConfig) -> None:
    """
    Ask for the addresses of all hosts, which may block.

    Raises:
        NoZooKeeperError: None has one, so waiting is in vain.
    """
    servers = _servers(config)
    lost = _lost(servers)
    if len(lost) == len(servers):
        raise NoZooKeeperError(f"the host of ZooKeeper has no address: {', '.join(lost)}; is the name right?")


def without_address(config: ZooKeeperConfig) -> str:
    """For the end of an error: the hosts that have no address, "" where all have one; may block."""
    lost = _lost(_servers(config))
    return f" (without an address: {', '.join(lost)})" if lost else ""


def _servers(config: ZooKeeperConfig) -> Sequence[HostPort]:
    return parse_hosts(config.hosts.removesuffix(config.chroot), ZOOKEEPER_PORT, "zookeeper")


def _lost(servers: Sequence[HostPort]) -> list[str]:
    """The names without an address, each with the reason."""
    lost = []
    for server in servers:
        try:
            socket.getaddrinfo(server.host.strip("[]"), server.port)
        except OSError as error:
            lost.append(f"{server.host} ({error.strerror})")
    return lost
