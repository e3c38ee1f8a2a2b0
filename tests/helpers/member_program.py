"""
A member, or a candidate for the lead, in a process of its own, which may end itself, or stop, at a given moment.

It prints a line of JSON for every record that it is handed, after one with its member id.
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
from kiel_groups.coordination.member.allocator_process import AllocatorProcess
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes import transactions
from kiel_groups.group.znodes.contents import PUBLISHING, GroupState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Answer, Create, Operation, Put
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record
from tests.helpers.commands import Running
from tests.helpers.members import Delivery
from tests.helpers.waiting import eventually

__all__ = ["Program"]


class Program(Running):
    """
    Such a process, seen from the test.

    Args:
        cluster: Where its group lives.
        role: ``member`` or ``candidate``.
        group: The group.
        topic: What a member subscribes to.
        session_timeout_ms: How long its session lasts.
        ends: ``KILL`` or ``STOP``: the signal that it sends itself …
        after: … after so many transactions of the first publication that takes several: 0 before the first of them.
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
        told = [role, cluster.brokers[0], cluster.zk_hosts, group, topic, str(session_timeout_ms)]
        super().__init__(["-m", "tests.helpers.member_program", *told, ends, str(after)])

    @property
    def deliveries(self) -> list[Delivery]:
        """What it was handed, and under which claims."""
        told = [json.loads(line) for line in list(self.lines)[1:]]
        return [Delivery(at_s, Record(*place, None, text.encode()), token) for at_s, place, text, token in told]

    @property
    def values(self) -> list[bytes]:
        return [delivery.record.value for delivery in self.deliveries]

    async def has_stopped(self) -> None:
        """Wait until it has stopped, by itself or by a signal."""
        state = Path(f"/proc/{self.process.pid}/stat")
        await eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the process has stopped")

    async def has_died(self) -> None:
        """Wait until it has killed itself."""
        assert await asyncio.to_thread(self.wait) == -signal.SIGKILL, self.errors

    def close(self) -> None:
        """Kill it, should it live; what it had printed by then can be read."""
        self.process.kill()
        self.wait()


# In the process itself


def end_after(layout: GroupLayout, number: signal.Signals, after: int) -> None:
    """Have this process signal itself in the middle of a publication, whose slices go out one by one then."""
    transactions.MOST_OPERATIONS = 1
    real, done, over = Session.transact, -1, False

    async def transact(session: Session, operations: Iterable[Operation]) -> Answer:
        nonlocal done, over
        listed = list(operations)
        if any(is_begin(layout, operation) for operation in listed):
            done = max(done, 0)
        elif done >= 0 and any(operation.path == layout.group_state for operation in listed):
            done += 1
        if done == after and not over:
            over = True
            os.kill(os.getpid(), number)
        return await real(session, listed)

    Session.transact = transact  # type: ignore[method-assign]


def is_begin(layout: GroupLayout, operation: Operation) -> bool:
    """Whether this opens a publication that takes several transactions."""
    return (
        isinstance(operation, (Create, Put))
        and operation.path == layout.group_state
        and GroupState.parse(operation.data, operation.path).state == PUBLISHING
    )


async def consume(broker: str, zookeeper: str, group: str, topic: str, session_timeout_ms: int) -> None:
    settings: dict[str, Any] = {"session_timeout_ms": session_timeout_ms, "auto_commit_interval_ms": 100}
    async with GroupedConsumer([broker], group, [zookeeper], **settings) as consumer:
        await consumer.subscribe(topic)
        click.echo(consumer.member_id)
        async for record in consumer:
            token = consumer.fencing_token(record)
            told = [time.monotonic(), record[:3], record.value.decode(), token]
            click.echo(json.dumps(told))


async def stand(zookeeper: str, group: str, session_timeout_ms: int) -> None:
    where = ZooKeeperConfig.parse(zookeeper, session_timeout_ms=session_timeout_ms)
    candidate = AllocatorProcess(GroupConfig(group=group), where, round_robin, Metrics(), lambda error: None)
    await candidate.start()
    click.echo(candidate.member_id)
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
        end_after(GroupLayout(group), signal.Signals[f"SIG{ends}"], int(after))
    if role == "member":
        asyncio.run(consume(broker, zookeeper, group, topic, int(session_timeout_ms)))
    else:
        asyncio.run(stand(zookeeper, group, int(session_timeout_ms)))


if __name__ == "__main__":
    main(*sys.argv[1:])
