"""
Run many members of one group in this process, or the candidate that leads it, until the end of standard input.

Arguments: ZooKeeper, the group, the number of members (0 for a candidate that is no member), and the topics' prefix and
number. Members fetch nothing. Each line of input is a command, and is answered by a line of JSON:

- ``look``: how many members own exactly what they are assigned, how many partitions they own, and the memory of this
  process in MiB;
- ``join``: start one more member; ``leave``: close the last one. The answer is the same, at the end of the call.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

from kiel_groups.allocators import sticky
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.members.zookeeper.group_member import GroupMember
from kiel_groups.metrics import Metrics
from kiel_groups.spark.member import BatchHandler
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext

#: How many members of a process connect at the same time.
AT_ONCE = 50


class Members:
    """The members of this process."""

    def __init__(self, zookeeper: str, group: str, topics: list[str]) -> None:
        self._zookeeper = ZooKeeperConfig.parse(zookeeper, session_timeout_ms=30_000, connect_timeout_ms=300_000)
        self._config = GroupConfig(group=group)
        self._topics = topics
        self._members: list[tuple[GroupMember, SubscriptionState]] = []

    async def lead(self) -> AllocatorProcess:
        """Start the candidate."""
        process = ProcessContext(self._config, self._zookeeper, Metrics(), Runtime())
        candidate = AllocatorProcess(process, sticky, fail)
        await candidate.start()
        return candidate

    async def join(self) -> None:
        """Start one more member. Its offsets are stored already, so it needs no broker."""
        subscription, metrics = SubscriptionState(self._config), Metrics()
        handler = BatchHandler(self._config.group, cast(Any, _NoCluster()), subscription, metrics)
        process = ProcessContext(self._config, self._zookeeper, metrics, Runtime())
        member = GroupMember(process, handler, subscription, sticky, fail)
        subscription.change_subscription(self._topics)
        await member.start()
        self._members.append((member, subscription))

    async def leave(self) -> None:
        """Close the member that joined last."""
        member, _ = self._members.pop()
        await member.close()

    async def close(self) -> None:
        """Close all members at once."""
        await asyncio.gather(*(member.close(CloseLimit(1.0)) for member, _ in self._members))

    def look(self) -> str:
        settled = sum(member.settled for member, _ in self._members)
        owned = sum(len(subscription.assigned_partitions()) for _, subscription in self._members)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return json.dumps([settled, owned, pages * os.sysconf("SC_PAGE_SIZE") / 2**20])


class _NoCluster:
    """The brokers of a group that reads no records."""

    def override_leaders(self, leaders: object, brokers: object) -> None:
        """Do nothing: nothing is fetched."""

    def drop_overrides(self, partitions: object) -> None:
        """Do nothing: nothing is fetched."""


def fail(error: KielGroupsError) -> None:
    print(f"failed: {error}", file=sys.stderr, flush=True)  # noqa: T201


async def main(zookeeper: str, group: str, count: int, prefix: str, topics: int) -> None:
    members = Members(zookeeper, group, [f"{prefix}{number}" for number in range(topics)])
    candidate = await members.lead() if count == 0 else None
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(members.join() for _ in range(min(AT_ONCE, count - first))))
    print(members.look(), flush=True)  # noqa: T201
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if command == "join":
            await members.join()
        elif command == "leave":
            await members.leave()
        print(members.look(), flush=True)  # noqa: T201
    await members.close()
    if candidate is not None:
        await candidate.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
