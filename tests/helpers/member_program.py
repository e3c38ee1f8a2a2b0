"""
A member or a candidate in a separate process, which can kill or stop itself during a publication.

The process prints its member id, and then a line of JSON: a member one for each delivered record, and a candidate one
with its session.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from kiel_groups import GroupedConsumer
from kiel_groups.allocators import round_robin
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes import transactions
from kiel_groups.group.znodes.contents import PUBLISHING, GroupState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Answer, Create, Operation, Put
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.model import Record
from kiel_groups.zookeeper.session import Session
from tests.helpers.closed_sessions import close_session
from tests.helpers.commands import Running
from tests.helpers.contexts import process_context
from tests.helpers.members import Delivery
from tests.helpers.waiting import eventually

__all__ = ["Program"]


class Program(Running):
    """
    Starts the process, and parses its output.

    Args:
        cluster: The cluster of the group.
        role: ``member`` or ``candidate``.
        group: The group.
        topic: The topic that a member subscribes to.
        session_timeout_ms: The session timeout of the process.
        ends: The signal that the process sends itself, ``KILL`` or ``STOP``, or "" for none.
        after: How many transactions of its first publication the process completes before it sends the signal.
    """

    def __init__(
        self,
        cluster: Cluster,
        role: str,
        group: str,
        topic: str,
        session_timeout_ms: int,
        *,
        ends: str = "",
        after: int = 0,
    ) -> None:
        self._zk_hosts = cluster.zk_hosts
        self._is_member = role == "member"
        arguments = [role, cluster.brokers[0], cluster.zk_hosts, group, topic, str(session_timeout_ms)]
        super().__init__(["-m", "tests.helpers.member_program", *arguments, ends, str(after)])

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries that a member has printed, with the fencing tokens of their claims."""
        printed = [json.loads(line) for line in list(self.lines)[1:]] if self._is_member else []
        return [Delivery(at_s, Record(*place, None, text.encode()), token) for at_s, place, text, token in printed]

    @property
    def values(self) -> list[bytes]:
        return [delivery.record.value for delivery in self.deliveries]

    async def has_stopped(self) -> None:
        """Wait until a signal has stopped the process."""
        state = Path(f"/proc/{self.process.pid}/stat")
        await eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the process has stopped")

    async def has_died(self) -> None:
        """Wait until the process has killed itself."""
        assert await asyncio.to_thread(self.wait) == -signal.SIGKILL, self.errors

    def end_session(self) -> None:
        """Close the session of a candidate, whose process has stopped or died, as if it had expired."""
        number, password = json.loads(self.wait_for_lines(2)[1])
        close_session(self._zk_hosts, (number, bytes.fromhex(password)))

    def close(self) -> None:
        """Kill the process if it is running. Its output so far stays available."""
        self.process.kill()
        self.wait()


# The program of the process


def signal_after(layout: GroupLayout, number: signal.Signals, after: int) -> None:
    """Have this process send itself a signal during a publication, after ``after`` of its transactions."""
    transactions.MOST_OPERATIONS = 1
    real, done, signalled = Session.transact, -1, False

    async def transact(session: Session, operations: Iterable[Operation]) -> Answer:
        nonlocal done, signalled
        listed = list(operations)
        if any(starts_publication(layout, operation) for operation in listed):
            done = max(done, 0)
        elif done >= 0 and any(operation.path == layout.group_state for operation in listed):
            done += 1
        if done == after and not signalled:
            signalled = True
            os.kill(os.getpid(), number)
        return await real(session, listed)

    Session.transact = transact  # type: ignore[method-assign]


def starts_publication(layout: GroupLayout, operation: Operation) -> bool:
    """Return whether this operation sets the group state to ``publishing``, at the start of several transactions."""
    return (
        isinstance(operation, (Create, Put))
        and operation.path == layout.group_state
        and GroupState.parse(operation.data, operation.path).state == PUBLISHING
    )


async def run_member(broker: str, zookeeper: str, group: str, topic: str, session_timeout_ms: int) -> None:
    settings: dict[str, Any] = {"session_timeout_ms": session_timeout_ms, "auto_commit_interval_ms": 100}
    async with GroupedConsumer([broker], group, [zookeeper], **settings) as consumer:
        await consumer.subscribe(topic)
        click.echo(consumer.member_id)
        async for record in consumer:
            token = consumer.fencing_token(record)
            click.echo(json.dumps([time.monotonic(), record[:3], record.value.decode(), token]))


async def run_candidate(zookeeper: str, group: str, session_timeout_ms: int) -> None:
    config = ZooKeeperConfig.parse(zookeeper, session_timeout_ms=session_timeout_ms)
    candidate = AllocatorProcess(process_context(GroupConfig(group=group), config), round_robin, lambda error: None)
    await candidate.start()
    assert candidate.current is not None
    number, password = candidate.current.session.client.client_id
    click.echo(candidate.member_id)
    click.echo(json.dumps([number, password.hex()]))
    await asyncio.Event().wait()


def main(
    role: str,
    broker: str,
    zookeeper: str,
    group: str,
    topic: str,
    session_timeout_ms: str,
    ends: str,
    after: str,
) -> None:
    if ends:
        signal_after(GroupLayout(group), signal.Signals[f"SIG{ends}"], int(after))
    if role == "member":
        asyncio.run(run_member(broker, zookeeper, group, topic, int(session_timeout_ms)))
    else:
        asyncio.run(run_candidate(zookeeper, group, int(session_timeout_ms)))


if __name__ == "__main__":
    main(*sys.argv[1:])
