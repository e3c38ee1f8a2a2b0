"""
Run many members of one group in this process, or the candidate that leads it, until the end of standard input.

Arguments: ZooKeeper, the group, the number of members (0 for a candidate that is no member), the topics' prefix and
number, the session timeout, and how long the leader waits for a quiet time, both in milliseconds. Members fetch
nothing. Each line of input is a command, and is answered by a line of JSON:

- ``look``: how many members own exactly what they are assigned, how many partitions they own, and the memory of this
  process in MiB;
- ``join``: start one more member; ``leave``: close the last one. The answer is the same, at the end of the call;
- ``requests``: what this process has sent to ZooKeeper since the last such command, by kind: requests and bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, cast

from kiel_groups.allocators import sticky
from kiel_groups.config import DebounceConfig, GroupConfig, ZooKeeperConfig
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.members.zookeeper.group_member import GroupMember
from kiel_groups.metrics import Metrics
from kiel_groups.spark.member import BatchHandler
from kiel_groups.zookeeper.kazoo_client import InterruptibleClient
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext

#: How many members of a process connect at the same time.
AT_ONCE = 50


class SentRequests:
    """Counts the requests that the clients of this process send to ZooKeeper, by kind: the request and the znode."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        send = InterruptibleClient._call

        def counted(client: InterruptibleClient, request: Any, answer: Any) -> bool | None:
            self._count(request)
            return send(client, request, answer)

        InterruptibleClient._call = counted  # type: ignore[method-assign]

    def _count(self, request: Any) -> None:
        operations = getattr(request, "operations", [request])
        kinds = sorted({f"{type(each).__name__} {_kind_of(getattr(each, 'path', None) or '')}" for each in operations})
        kind = " + ".join(kinds)
        self._counts[kind] += 1
        self._bytes[kind] += len(request.serialize())

    def take(self) -> dict[str, tuple[int, int]]:
        """Return the requests and bytes of each kind since the last call."""
        found = {kind: (count, self._bytes[kind]) for kind, count in self._counts.most_common()}
        self._counts.clear()
        self._bytes.clear()
        return found


def _kind_of(path: str) -> str:
    """Return a znode's place: the folder names on its path without the group, the topic and its own name."""
    words = [word for word in path.split("/") if re.fullmatch("[a-z-]*[a-z]", word)]
    return "/".join(words)


class Members:
    """The members of this process."""

    def __init__(self, zookeeper: str, group: str, topics: list[str], timeout_ms: int, quiet_ms: int) -> None:
        self._zookeeper = ZooKeeperConfig.parse(zookeeper, session_timeout_ms=timeout_ms, connect_timeout_ms=300_000)
        self._config = GroupConfig(group=group, debounce=DebounceConfig(quiet_ms=quiet_ms, bound_ms=10 * quiet_ms))
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


async def main(
    zookeeper: str, group: str, count: int, prefix: str, topics: int, timeout_ms: int, quiet_ms: int
) -> None:
    requests = SentRequests()
    members = Members(zookeeper, group, [f"{prefix}{number}" for number in range(topics)], timeout_ms, quiet_ms)
    candidate = await members.lead() if count == 0 else None
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(members.join() for _ in range(min(AT_ONCE, count - first))))
    print(members.look(), flush=True)  # noqa: T201
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if command == "join":
            await members.join()
        elif command == "leave":
            await members.leave()
        print(json.dumps(requests.take()) if command == "requests" else members.look(), flush=True)  # noqa: T201
    await members.close()
    if candidate is not None:
        await candidate.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:])))
