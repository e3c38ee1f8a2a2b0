"""The arguments of a generic member, and its properties before it has started."""

from __future__ import annotations

from typing import Any

import pytest

import kiel_groups
from kiel_groups import GenericMember
from kiel_groups.errors import ClosedError, ConfigError

pytestmark = pytest.mark.unit

HOOKS: Any = object()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "'zookeeper' needs zk_hosts"),
        ({"zk_hosts": "h", "brokers": "b"}, "neither brokers nor api_version"),
        ({"zk_hosts": "h", "api_version": (0, 9)}, "neither brokers nor api_version"),
        ({"coordination": "brokers"}, "'brokers' needs brokers, and no zk_hosts"),
        ({"coordination": "brokers", "brokers": "b", "zk_hosts": "h"}, "'brokers' needs brokers, and no zk_hosts"),
        ({"coordination": "kafka", "zk_hosts": "h"}, "'kafka' given; expected 'zookeeper' or 'brokers'"),
        ({"zk_hosts": "h", "rebalance_timeout_ms": 0}, "rebalance_timeout_ms"),
        ({"zk_hosts": "h", "group": "a/b"}, "group"),
        ({"zk_hosts": "h", "debounce_quiet_ms": -1}, "quiet_ms"),
        ({"zk_hosts": ":x"}, "h"),
        ({"zk_hosts": "h", "ssl_cafile": "x"}, "ssl_cafile: is about brokers; expected coordination='brokers', or"),
        ({"coordination": "brokers", "brokers": "b", "ssl_cafile": "no.pem"}, "ssl_cafile: no.pem cannot be used"),
        (
            {"coordination": "brokers", "brokers": "b", "session_timeout_ms": 9_000, "heartbeat_interval_ms": 9_000},
            "heartbeat_interval_ms",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: str) -> None:
    """An argument that is not valid, or that does not fit the coordination, is refused at once."""
    with pytest.raises(ConfigError, match=error):
        GenericMember(HOOKS, **{"group": "g", **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"zk_hosts": "h"},
        {"zk_hosts": ["h:1", "i:2/chroot"]},
        {"coordination": "brokers", "brokers": ["b:1"]},
        {"coordination": "brokers", "brokers": "b", "session_timeout_ms": 3_000, "api_version": (0, 9)},
    ],
)
async def test_a_member_that_has_not_started_is_no_member(arguments: dict[str, Any]) -> None:
    """It has no id and no generation, and may be closed; then it does not start any more."""
    member = GenericMember(HOOKS, "g", **arguments)
    assert (member.generation, member.member_id, member.leads) == (-1, "", False)
    assert (member.group_id, member.coordinator_id, member.coordinator_unknown()) == ("g", None, True)
    assert member.need_rejoin
    assert not member.is_trusted
    with pytest.raises(ClosedError, match="has not started"):
        member.request_rejoin()
    with pytest.raises(ClosedError, match="has not started"):
        member.leave()
    with pytest.raises(ClosedError, match="has not started"):
        await member.ensure_active()
    await member.close()
    await member.close()
    with pytest.raises(ClosedError, match="was started before"):
        await member.start()


def test_the_public_names_are_those_of_the_documentation() -> None:
    """A program needs no module below ``kiel_groups``."""
    assert {"GenericMember", "MemberHooks", "JoinedGroup", "GroupProtocol"} <= set(kiel_groups.__all__)
    assert kiel_groups.GroupProtocol("p", b"data").metadata == b"data"
    assert kiel_groups.JoinedGroup("p", "m", {}).leader_id == "m"
