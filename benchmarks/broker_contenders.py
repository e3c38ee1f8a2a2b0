"""The clients whose groups brokers coordinate, each with the default interval of heartbeats and with a short one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.member_commands import (
    BrokerGroup,
    MemberSettings,
    java_command,
    kafka_python_command,
    kiel_command,
)

__all__ = ["BROKER_CONTENDERS", "INITIAL_DELAY_MS", "BrokerContender"]

#: The default of all three clients, and a short interval: a member notices a rebalance by its next heartbeat.
DEFAULT_HEARTBEAT_MS, SHORT_HEARTBEAT_MS = 3_000, 100

#: The session of a killed member ends this long after its last heartbeat: between two heartbeats of the others.
SESSION_TIMEOUT_MS = 10_500

#: How long the brokers of this benchmark wait for further members of an empty group; 3,000 by default from 0.11 on.
INITIAL_DELAY_MS = 0


@dataclass(frozen=True, slots=True)
class BrokerContender:
    """
    One client in one configuration.

    ``command`` returns the command line of a process with a number of members. If ``one_process``, the members that
    stay share a process.
    """

    name: str
    heartbeat_ms: int
    command: Callable[[BrokerGroup, int], list[str]]
    one_process: bool = False


_Command = Callable[[BrokerGroup, int, MemberSettings], list[str]]


def _contender(
    client: str, command: _Command, heartbeat_ms: int, assignor: str = "range", *, one_process: bool = False
) -> BrokerContender:
    # Without commits, each owner of a partition delivers the same record of it again.
    settings = MemberSettings((assignor,), SESSION_TIMEOUT_MS, heartbeat_ms, autocommit=False)

    def for_members(group: BrokerGroup, members: int) -> list[str]:
        return command(group, members, settings)

    return BrokerContender(f"{client}, beats every {heartbeat_ms / 1000:g} s", heartbeat_ms, for_members, one_process)


BROKER_CONTENDERS = tuple(
    contender
    for heartbeat_ms in (SHORT_HEARTBEAT_MS, DEFAULT_HEARTBEAT_MS)
    for contender in (
        _contender("ours", kiel_command, heartbeat_ms),
        _contender("ours, sticky", kiel_command, heartbeat_ms, "sticky"),
        _contender("kafka-python", kafka_python_command, heartbeat_ms),
        _contender("Java", java_command, heartbeat_ms, one_process=True),
    )
)
