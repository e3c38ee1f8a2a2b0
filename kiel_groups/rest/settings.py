"""The settings of a REST interface: its address, its access rules, and a worker's URL for other workers."""

from __future__ import annotations

import hashlib
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address

from kiel_groups.config import HostPort, is_number, is_whole
from kiel_groups.errors import ConfigError

#: The port of Kafka Connect.
DEFAULT_PORT = 8083

#: The largest body of a request, in bytes. A connector's znode is not larger.
LARGEST_BODY = 1 << 20

#: The largest body that is read, in bytes: a client must be able to read the answer that its body is too large.
LARGEST_READ = 1 << 30

#: A shorter token could be guessed.
_SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSettings:
    """
    The settings of a REST interface of a worker or of the service.

    Args:
        host: The name or address to listen on.
        port: The port to listen on. 0 lets the system choose a port.
        advertised_host: The name or address under which clients and other workers reach the server, such as that of a
            proxy. By default, it is ``host``, or the name of this machine if ``host`` means all addresses of it.
        token: The token that requests must have in their header ``Authorization``, the same for all workers of a group.
            "" means no token, and is allowed only if no other machine can connect.
        open_reads: Whether requests that only read need no token. This is allowed only if no other machine can connect.
            All other requests need the token then, and are refused if ``token`` is "".
        timeout_s: How long a request may take, in seconds.

    Raises:
        ConfigError: A setting is not valid, or other machines could connect without a token.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    advertised_host: str = ""
    token: str = field(default="", repr=False)
    open_reads: bool = False
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for setting, host in (("host", self.host), ("advertised_host", self.advertised_host or self.host)):
            if not host or any(sign in host for sign in "/@[] ,") or (":" in host and not is_address(host)):
                raise ConfigError(f"{setting}: {host!r} given; expected a host name or an address, without a port")
        if not is_whole(self.port) or not 0 <= self.port < 65536:
            raise ConfigError(f"port: {self.port!r} given; expected 0 to 65535")
        if not is_number(self.timeout_s) or self.timeout_s <= 0:
            raise ConfigError(f"timeout_s: {self.timeout_s!r} given; expected more than 0 seconds")
        if self.open_reads and not is_loopback(self.host):
            raise ConfigError(f"open_reads: other machines can connect to {self.host}; reads need the token there")
        if self.token:
            checked_token(self.token)
        elif not is_loopback(self.host):
            raise ConfigError(
                f"host: other machines can connect to {self.host}, and no token is given; expected a token"
                " ('--token-file'), or the host 127.0.0.1"
            )

    @property
    def host_to_advertise(self) -> str:
        """The host in the worker's URL for other workers."""
        if self.advertised_host:
            return self.advertised_host
        is_wildcard = is_address(self.host) and ip_address(self.host).is_unspecified
        return socket.gethostname() if is_wildcard else self.host

    def token_digest(self, group: str) -> str:
        """
        Return a digest of 16 bits by which the workers of a group compare their tokens, or "" without a token.

        Different digests prove different tokens.
        """
        if not self.token:
            return ""
        # All clients of ZooKeeper can read it, so it has to be useless for guessing: it is slow to compute, another
        # one for each group, and so short that one in 65,536 wrong tokens has it, too. Tools without the token compare
        # the digests of workers, so the salt is the same for all of them.
        salt = b"kiel-groups workers " + group.encode()
        return hashlib.scrypt(self.token.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=2).hex()

    def url(self, port: int) -> str:
        """Return the worker's URL for other workers, given the port on which the worker listens."""
        return f"http://{HostPort(self.host_to_advertise, port)}"


def checked_token(token: str) -> str:
    """
    Check that a token can be sent in a header and has at least 16 characters, and return it unchanged.

    Raises:
        ConfigError: The token is too short, or has a blank or a character outside ASCII. The text does not show it.
    """
    if len(token) < _SHORTEST_TOKEN or not all("!" <= sign <= "~" for sign in token):
        raise ConfigError(
            f"token: {len(token)} characters given; expected {_SHORTEST_TOKEN} or more, of ASCII and without blanks"
        )
    return token


def is_address(host: str) -> bool:
    """Return whether a host is an IP address rather than a name."""
    with suppress(ValueError):
        return bool(ip_address(host))
    return False


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost`` or a loopback address, so that only this machine can connect to it."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)
