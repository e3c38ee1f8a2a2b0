"""
Open sessions with ZooKeeper for tools, create chroots, and read the registered brokers.

The functions block, so they must not run on an event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from kazoo.exceptions import (
    AuthFailedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState

from kiel_groups.config import HostPort, ZooKeeperConfig
from kiel_groups.errors import ChrootMissingError, CoordinationError, CredentialsError, NoZooKeeperError
from kiel_groups.group.znodes.contents import parse_object, typed_field
from kiel_groups.group.znodes.layout import BROKER_IDS
from kiel_groups.group.znodes.transactions import Operation
from kiel_groups.zookeeper.kazoo_client import ImmediateHandler, SecuredClient, check_hosts, no_answer
from kiel_groups.zookeeper.pending_requests import ACL_REFUSED, SASL_REQUIRED, first_error, transaction_of
from kiel_groups.zookeeper.security import security_of

#: The type of the client that ``zookeeper`` yields, for packages that must not import kazoo.
Client: TypeAlias = SecuredClient

_POLL_S = 0.01
_CONTROLLER = "/controller"

# kazoo warns about every refused connection; while a caller waits for a server to start, there are many.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.addHandler(logging.NullHandler())


@contextmanager
def zookeeper(hosts: str, *, timeout_s: float = 10.0) -> Iterator[Client]:
    """
    Open a session with ZooKeeper for a ``with`` block, and yield its client.

    Args:
        hosts: ``host:port,host:port/chroot``.
        timeout_s: How long to wait for the first answer, in seconds.

    Raises:
        ConfigError: ``hosts`` is not legal, or the file with the credentials has a mistake.
        NoZooKeeperError: No server answered in time, or no host name has an address.
        ChrootMissingError: The chroot does not exist.
        CredentialsError: ZooKeeper refused the user or the password of SASL, or it requires SASL.
        CoordinationError: ZooKeeper failed during the block, and the block did not handle the error.
    """
    config = ZooKeeperConfig.parse(hosts)
    check_hosts(config)
    # kazoo uses one timeout for the session and for a server that accepts the connection but does not answer.
    security = security_of(config)
    client = SecuredClient(
        ImmediateHandler(is_logging=False),
        security,
        hosts=config.hosts.removesuffix(config.chroot),
        timeout=timeout_s,
        logger=_kazoo_log,
    )
    states: set[str] = set()
    client.add_listener(lambda _: states.add(client.client_state))
    try:
        try:
            client.start(timeout=timeout_s)
        except KazooTimeoutError as error:
            if KeeperState.AUTH_FAILED in states:
                raise AuthFailedError from error
            raise NoZooKeeperError(no_answer(config, timeout_s)) from error
        # The answer to a request follows the end of SASL.
        if (config.chroot or security.sasl_options) and not client.exists(config.chroot or "/"):
            raise ChrootMissingError(
                f"the chroot {config.chroot} does not exist in ZooKeeper at {config.hosts}; Kafka's brokers make"
                " theirs, as zookeeper.connect has it: give the same one, or none"
            )
        client.chroot = config.chroot  # Only now, because kazoo logs a warning of its own if the chroot is missing.
        yield client
    except KazooException as error:
        if KeeperState.AUTH_FAILED in states:
            raise CredentialsError(f"ZooKeeper at {config.hosts}: {client.refusal}") from error
        if isinstance(error, SessionClosedRequireSaslError):
            raise CredentialsError(f"ZooKeeper at {config.hosts}: {SASL_REQUIRED}") from error
        if isinstance(error, NoAuthError):
            raise CoordinationError(str(error)) from error
        what = ACL_REFUSED if isinstance(error, InvalidACLError) else f"{type(error).__name__} {error}"
        raise CoordinationError(f"ZooKeeper at {config.hosts} failed: {what}".rstrip()) from error
    finally:
        client.stop()
        client.close()


def answers(hosts: str, *, timeout_s: float) -> bool:
    """Return whether ZooKeeper opens a session within ``timeout_s`` seconds, and then answers a read."""
    try:
        with zookeeper(hosts, timeout_s=timeout_s) as client:
            client.exists("/zookeeper")
    except CoordinationError:
        return False
    return True


def create_chroot(hosts: str) -> None:
    """
    Create the chroot of a connection string, if the string has a chroot, and the parents. Existing znodes are kept.
    """
    config = ZooKeeperConfig.parse(hosts)
    with zookeeper(config.hosts.removesuffix(config.chroot)) as client:
        client.ensure_path(config.chroot or "/")


def commit(client: Client, operations: Sequence[Operation]) -> tuple[Operation, Exception] | None:
    """
    Send operations as one transaction, and return None.

    If ZooKeeper refuses an operation, the transaction changes nothing. Then return that operation with its error.
    """
    failed = first_error(transaction_of(client, operations).commit())
    return None if failed is None else (operations[failed[0]], failed[1])


def refusal_text(error: Exception) -> str:
    """Return the text of an error of kazoo's for users. The text of a missing right names the path and the right."""
    return str(error) if isinstance(error, NoAuthError) else f"{error!r:.200}"


def children_of(client: Client, path: str) -> list[str]:
    """Return the names of a znode's children, in alphabetical order, or [] if the znode does not exist."""
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []


def broker_ids(client: Client) -> list[int]:
    """Return the ids of the brokers that are registered now, ascending."""
    return sorted(int(name) for name in children_of(client, BROKER_IDS) if name.isdecimal())


def is_registered(client: Client, broker_id: int) -> bool:
    """
    Return whether a broker's znode exists. After the broker is killed, the znode exists until the broker's session
    expires.
    """
    return client.exists(f"{BROKER_IDS}/{broker_id}") is not None


def await_brokers(hosts: str, count: int, *, timeout_s: float) -> None:
    """Wait until ``count`` brokers are registered, at most ``timeout_s`` seconds; a timeout raises no error."""
    with zookeeper(hosts) as client:
        deadline = time.monotonic() + timeout_s
        while len(broker_ids(client)) < count and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def controller_id(client: Client) -> int | None:
    """Return the id of the broker that is the controller, or None while there is no controller."""
    try:
        data, _ = client.get(_CONTROLLER)
    except NoNodeError:
        return None
    number: int = typed_field(parse_object(data, _CONTROLLER), "brokerid", int, _CONTROLLER)
    return number


def place_of(client: Client) -> str:
    """Return the servers and the chroot of a session in the form of a connection string."""
    return ",".join(str(HostPort(host, port)) for host, port in client.hosts) + str(client.chroot)
