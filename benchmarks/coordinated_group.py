"""Run a group that brokers coordinate, and measure the cost of a join, a leave or a kill from its members' reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import click

from benchmarks.broker_contenders import BrokerContender
from benchmarks.member_commands import BrokerGroup
from benchmarks.reported_ownership import ReportedOwnership
from benchmarks.reporting_processes import LIMIT_S, ReportingProcesses
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.members.brokers.transport import HeartbeatConnection
from kiel_groups.wire.group_requests import DescribeGroupsRequest

__all__ = ["CoordinatedFigures", "CoordinatedGroup", "coordinated_group"]

#: The interval, in seconds, at which reports are read. Their times are those of the members.
POLL_S = 0.01

#: How long a group must be without changes until an event counts as over.
REST_S = 2.0


@dataclass(frozen=True, slots=True)
class CoordinatedFigures:
    """
    The cost of one event, until a record of each partition was delivered again.

    ``s``: the duration in seconds. ``begun``: until the coordinator rebalances. ``stopped``: until the last member has
    stopped delivering, which it does after its next heartbeat. ``assigned``: until the last listener was notified.
    ``unowned``: partition-seconds without an owner. ``moved``: partitions that moved unnecessarily. ``cores``: the
    average number of cores that members and servers kept busy.
    """

    s: float
    begun: float
    stopped: float
    assigned: float
    unowned: float
    moved: int
    cores: float


class CoordinatedGroup:
    """One group whose members are processes, and the brokers that it uses."""

    def __init__(self, contender: BrokerContender, group: BrokerGroup, partitions: int, cluster: Cluster) -> None:
        self._contender = contender
        self._partitions = partitions
        servers = [server.pid for server in cluster.servers]
        self._seen = ReportedOwnership()
        self._processes = ReportingProcesses(contender.name, partial(contender.command, group), servers, self._seen)
        (self._broker,) = parse_hosts(group.broker, 9092, "broker")
        self._describing = HeartbeatConnection(BrokerConfig(hosts=(), client_id="benchmark"))
        self._describe = DescribeGroupsRequest((group.name,))
        #: When the coordinator was seen to have completed the last rebalance.
        self._stable_ns = 0
        self.prepared, self.join = self._processes.prepared, self._processes.join
        self.leave, self.kill = self._processes.leave, self._processes.kill

    # ------------------------------------------------------------------ events

    def gather(self, members: int) -> None:
        """Start the members that stay during all events, and wait until they share the partitions."""
        shares = [members] if self._contender.one_process else [1] * members
        for number in [self._processes.prepare(share) for share in shares]:
            self.join(number)
        self._settle(members)

    def rest(self, phase: float) -> None:
        """
        Wait until ``REST_S`` and this part of the interval between two heartbeats have passed since the last rebalance.

        All members have beaten in step since then. A time that a client needs to deliver does not shift the next event.
        """
        until_ns = self._stable_ns + round((REST_S + phase * self._contender.heartbeat_ms / 1000) * 1e9)
        while time.monotonic_ns() < until_ns:
            time.sleep(min(POLL_S, max(0.0, (until_ns - time.monotonic_ns()) / 1e9)))

    def measure(self, event: str, members: int, cause: Callable[[], object]) -> CoordinatedFigures:
        """Cause an event, and return its cost until this number of members shares all partitions again."""
        self._processes.take()
        before, known = self._seen.owners, self._seen.members
        self._processes.cpu.sample()
        cause()
        begun_ns = began_ns = self._begin_ns(len(known))
        self._settle(members)
        after, now = self._seen.owners, self._seen.members
        (changed,) = now - known if event == "join" else known - now
        if event != "kill":
            # No other member can notice a death before its session has ended.
            began_ns = (self._seen.joining_ns if event == "join" else self._seen.leaving_ns)[changed]
        needed = sum(1 for owner in (after if event == "join" else before).values() if owner == changed)
        ended_ns = self._seen.last_owned_ns
        if both := self._seen.overlaps():
            raise click.ClickException(f"{self._contender.name}: two members owned {both[0]} at once")
        return CoordinatedFigures(
            s=(ended_ns - began_ns) / 1e9,
            begun=(begun_ns - began_ns) / 1e9,
            stopped=(self._seen.stopped_ns(began_ns) - began_ns) / 1e9,
            assigned=(self._seen.last_assigned_ns - began_ns) / 1e9,
            unowned=self._seen.unowned_ns(began_ns, ended_ns) / 1e9,
            moved=self._seen.moved(before) - needed,
            cores=self._processes.cores(began_ns, ended_ns),
        )

    def _begin_ns(self, members: int) -> int:
        """
        Wait until the coordinator rebalances a group of this many members.

        Return when it was last seen not to: the rebalance has begun within the next milliseconds.
        """
        stable_ns = time.monotonic_ns()

        def has_begun() -> bool:
            nonlocal stable_ns
            asked_ns = time.monotonic_ns()
            begun = not self._is_stable(members)
            stable_ns = stable_ns if begun else asked_ns
            return begun

        self._processes.wait(has_begun, "the coordinator does not rebalance")
        return stable_ns

    def _is_stable(self, members: int) -> bool:
        (found,) = self._describing.request(self._broker, self._describe, 10.0)
        return found.state == "Stable" and len(found.members) == members

    def _settle(self, members: int) -> None:
        """Wait until this number of members has shared all partitions for a while."""
        self._processes.wait(lambda: self._is_stable(members), "the group does not become stable")
        self._stable_ns = time.monotonic_ns()
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic_ns() < max(self._stable_ns, self._seen.last_owned_ns) + REST_S * 1e9 or not self._shared(
            members
        ):
            if not self._is_stable(members):
                self._processes.wait(lambda: self._is_stable(members), "the group does not become stable")
                self._stable_ns = time.monotonic_ns()
            self._processes.cpu.sample()
            self._processes.take()
            owned = f"{len(self._seen.owners)} of {self._partitions} partitions owned"
            self._processes.check(deadline_s, f"not settled: {owned}")
            time.sleep(POLL_S)

    def _shared(self, members: int) -> bool:
        return self._seen.is_shared(self._partitions, members)

    def close(self) -> None:
        """Have the members leave that still run, and wait for their processes."""
        self._processes.close()
        self._describing.close()


@contextmanager
def coordinated_group(
    contender: BrokerContender, group: BrokerGroup, partitions: int, cluster: Cluster
) -> Iterator[CoordinatedGroup]:
    """Provide a group without members; those that still run at the end leave."""
    running = CoordinatedGroup(contender, group, partitions, cluster)
    try:
        yield running
    finally:
        running.close()
