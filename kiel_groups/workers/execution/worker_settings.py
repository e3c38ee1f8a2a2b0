"""Check the settings of a worker: its group, and where its REST interface listens and who may use it."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal

from kiel_groups.config import DebounceConfig, HostPort, ZooKeeperConfig, check_name, parse_hosts
from kiel_groups.errors import ConfigError
from kiel_groups.workers.allocation import work_allocator
from kiel_groups.workers.plugins.plugin_registry import INSTALLED, PluginRegistry

__all__ = ["RestSettings", "WorkerSettings", "checked_token", "is_address", "is_loopback"]

_KAFKA_PORT = 9092


#: The port of Kafka Connect.
_REST_PORT = 8083

#: A shorter token could be guessed.
_SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSettings:
    """
    The REST interface of a worker.

    Args:
        host: The name or address to listen on.
        port: The port to listen on; 0 lets the system choose one.
        advertised_host: The name or address under which the other workers reach this one. By default, ``host``, or the
            name of this machine if ``host`` stands for all its addresses.
        token: What requests must have in their header ``Authorization``. All workers of a group have the same one. ""
            for none, which is allowed only if no other machine can connect.
        timeout_s: How long a request may take, in seconds.

    Raises:
        ConfigError: A setting is not legal, or other machines could connect without a token.
    """

    host: str = "127.0.0.1"
    port: int = _REST_PORT
    advertised_host: str = ""
    token: str = field(default="", repr=False)
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for setting, host in (("host", self.host), ("advertised_host", self.advertised_host or self.host)):
            if not host or any(sign in host for sign in "/@[] ,") or (":" in host and not is_address(host)):
                raise ConfigError(f"{setting}: {host!r} given; expected a host name or an address, without a port")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port: {self.port} given; expected 0 to 65535")
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s: {self.timeout_s:g} given; expected more than 0 seconds")
        if self.token:
            checked_token(self.token)
        elif not is_loopback(self.host):
            raise ConfigError(
                f"host: other machines can connect to {self.host}, and no token is given; expected a token, or the host"
                " 127.0.0.1"
            )

    @property
    def host_to_advertise(self) -> str:
        """The host in the worker's URL."""
        if self.advertised_host:
            return self.advertised_host
        return socket.gethostname() if _is_wildcard(self.host) else self.host

    def token_digest(self, group: str) -> str:
        """Return what identifies the token among those of a group's workers, or "" without a token."""
        if not self.token:
            return ""
        # All clients of ZooKeeper can read it, so it has to be useless for guessing: it is slow to compute, another
        # one for each group, and so short that one in 65,536 wrong tokens has it, too. Tools without the token compare
        # the digests of workers, so the salt is the same for all of them.
        salt = b"kiel-groups workers " + group.encode()
        return hashlib.scrypt(self.token.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=2).hex()

    def url(self, port: int) -> str:
        """Return the worker's URL, with the port that it listens on."""
        return f"http://{HostPort(self.host_to_advertise, port)}"


def checked_token(token: str) -> str:
    """
    Return a token if it can be sent in a header and is not too short.

    Raises:
        ConfigError: It cannot, or is; the error does not show it.
    """
    if len(token) < _SHORTEST_TOKEN or not all("!" <= sign <= "~" for sign in token):
        raise ConfigError(
            f"token: {len(token)} characters given; expected {_SHORTEST_TOKEN} or more, of ASCII and without blanks"
        )
    return token


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, and not a name."""
    with suppress(ValueError):
        return bool(ip_address(host))
    return False


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can connect to a host."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def _is_wildcard(host: str) -> bool:
    """Return whether a host stands for all addresses of its machine."""
    return is_address(host) and ip_address(host).is_unspecified


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """
    The settings of one worker.

    Args:
        group: The name of the worker group. All workers of a group run the same connectors.
        zookeeper: The servers of ZooKeeper with an optional chroot, such as ``"z1:2181,z2:2181/kafka"``. Configuration,
            statuses, source offsets and claims are there, whatever coordinates the group.
        brokers: The brokers that connectors read from and write to, such as ``"k1:9092,k2:9092"``.
        coordination: What coordinates the workers: ZooKeeper, or the brokers (Kafka 0.9 or later).
        allocator: The name of the preferred allocator, one of ``WORK_ALLOCATORS``.
        rest: The worker's REST interface.
        plugin_classes: The classes that connectors may have: ``installed`` for the entry points of all installed
            packages, names of entry points, and modules, each with its submodules. By default, ``installed`` if other
            machines can connect to the REST interface, and otherwise everything that can be imported.
        session_timeout_ms: How long the group keeps the work of a worker that has died, in milliseconds.
        debounce_quiet_ms: With ZooKeeper, the leader assigns when no worker has joined or left for this time.
        debounce_bound_ms: With ZooKeeper, it assigns at the latest this long after the first of these changes.
        debounce_initial_delay_ms: With ZooKeeper, how long the first leader of a group waits for more workers.

    Raises:
        ConfigError: A setting is not legal.
    """

    group: str
    zookeeper: str
    brokers: str
    coordination: Literal["zookeeper", "brokers"] = "zookeeper"
    allocator: str = "round_robin"
    rest: RestSettings = field(default_factory=RestSettings)
    plugin_classes: Sequence[str] | None = None
    session_timeout_ms: int = 10_000
    debounce_quiet_ms: int = 100
    debounce_bound_ms: int = 1_000
    debounce_initial_delay_ms: int = 300

    def __post_init__(self) -> None:
        check_name(self.group, "group")
        ZooKeeperConfig.parse(self.zookeeper, session_timeout_ms=self.session_timeout_ms)
        DebounceConfig(
            quiet_ms=self.debounce_quiet_ms,
            bound_ms=self.debounce_bound_ms,
            initial_delay_ms=self.debounce_initial_delay_ms,
        )
        parse_hosts(self.brokers, _KAFKA_PORT, "brokers")
        if self.coordination not in ("zookeeper", "brokers"):
            raise ConfigError(f"coordination: {self.coordination!r} given; expected 'zookeeper' or 'brokers'")
        work_allocator(self.allocator, "allocator")
        if isinstance(self.plugin_classes, str):
            raise ConfigError(f"plugin_classes: the text {self.plugin_classes!r} given; expected a list of texts")

    def new_registry(self) -> PluginRegistry:
        """
        Return the connectors that the worker may use.

        Raises:
            ConfigError: Something in ``plugin_classes`` is neither an entry point nor a module.
        """
        allowed = self.plugin_classes
        if allowed is None and not is_loopback(self.rest.host):
            allowed = (INSTALLED,)
        return PluginRegistry(allowed=allowed)
