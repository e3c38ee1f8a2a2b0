"""An error names hosts without an address before kazoo tries to connect."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.config import ZooKeeperConfig
from kiel_groups.errors import ConfigError, NoZooKeeperError
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.zookeeper.kazoo_client import check_hosts, no_answer
from tests.helpers.contexts import process_context

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that end in ``.invalid`` have no address, whatever the resolver of this machine says of them."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **kwargs: Any) -> list[Any]:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_hosts_without_any_address_are_an_error() -> None:
    """If no host has an address, the error names each host without the chroot, and has the resolver's reason."""
    with pytest.raises(NoZooKeeperError, match=r"^the host of ZooKeeper has no address: a.invalid \(Name or") as raised:
        check_hosts(ZooKeeperConfig.parse("a.invalid:2181,b.invalid/chroot"))
    assert str(raised.value).endswith("b.invalid (Name or service not known); is the name right?")


def test_one_host_with_an_address_is_enough() -> None:
    """If one host has an address, the check passes. A later error still names the hosts without an address."""
    config = ZooKeeperConfig.parse("a.invalid:2181,127.0.0.1:2181,[::1]:2181/chroot")
    check_hosts(config)
    text = no_answer(config, 2.0)
    assert text.startswith("no ZooKeeper answered at a.invalid:2181,127.0.0.1:2181,[::1]:2181/chroot within 2 s; is it")
    assert text.endswith(" (without an address: a.invalid (Name or service not known))")
    assert no_answer(ZooKeeperConfig.parse("127.0.0.1:2181"), 2.0).endswith("and the port right?")


@pytest.mark.parametrize("error", [ConnectionResetError, BrokenPipeError])
def test_a_reset_while_the_connection_is_made_is_a_full_server(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A server that refuses further connections resets them. The reset may arrive before ``connect`` has returned. If the
    server has closed its end of the connection first, Linux reports a broken pipe instead.
    """

    def reset(*_: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", reset)
    assert "127.0.0.1:2181 closes each connection at once" in no_answer(ZooKeeperConfig.parse("127.0.0.1:2181"), 2.0)


async def test_a_process_that_joins_fails_at_once() -> None:
    """A process whose ZooKeeper hosts have no address fails at once. kazoo itself would retry until its timeout."""
    config = ZooKeeperConfig.parse("a.invalid:2181", connect_timeout_ms=3_600_000)
    candidate = AllocatorProcess(process_context(zookeeper=config), round_robin, pytest.fail)
    with pytest.raises(NoZooKeeperError, match=r"has no address: a\.invalid"):
        await candidate.start()


@pytest.mark.parametrize("given", ["h:1,i/kafka\n", " h:1 , i /kafka ", ["h:1", "i/kafka\r\n"], "h:1,i/kafka/\t"])
def test_blanks_and_newlines_around_hosts_and_chroot_are_ignored(given: str | list[str]) -> None:
    """The output of a command, or a file, often ends in a newline, which would be a part of the chroot."""
    config = ZooKeeperConfig.parse(given)
    assert (config.hosts, config.chroot) == ("h:1,i:2181/kafka", "/kafka")
    with pytest.raises(ConfigError, match="the chroot has a character that no name in ZooKeeper may have"):
        ZooKeeperConfig.parse("h:1/kaf\tka")
