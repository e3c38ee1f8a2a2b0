"""The environment of simulated groups of generic members: ZooKeeper, the time, and an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kazoo.client import KazooClient

from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.group.znodes.round_contents import RoundLayout
from tests.fakes import FakeEnsemble, Host, Timeline, fake_client
from tests.sim.group_world import GroupWorld

__all__ = ["MemberScenario", "MemberWorld"]

SESSION_TIMEOUT_MS = 10_000
#: The interval at which an awaited state is checked, in seconds.
CHECK_S = 0.5


class MemberScenario(Protocol):
    """What a scenario says about the environment."""

    @property
    def seed(self) -> int: ...
    @property
    def sync_limit(self) -> int: ...
    @property
    def reconcile_interval_ms(self) -> int: ...


class MemberWorld(GroupWorld):
    """A group of generic members on ZooKeeper, before its first member. ``consumers`` are the processes."""

    group = "g"
    consumers: Sequence[Any]

    def __init__(self, scenario: MemberScenario) -> None:
        self.timeline = Timeline(scenario.seed)
        self.scenario: Any = scenario
        self.ensemble = FakeEnsemble(
            self.timeline, 3, sync_limit=scenario.sync_limit, reports_moves=bool(scenario.seed % 2)
        )
        self.layout = RoundLayout(self.group)
        self.topics = {}
        self.group_config = GroupConfig(
            group=self.group, reconcile_interval_ms=scenario.reconcile_interval_ms, max_poll_interval_ms=0
        )
        hosts = ",".join(f"fake{server.number}:2181" for server in self.ensemble.servers)
        self.zookeeper_config = ZooKeeperConfig(hosts=hosts, session_timeout_ms=SESSION_TIMEOUT_MS)
        self.operator: KazooClient = fake_client(Host(self.ensemble))
        self.operator.start()
        self.began_s = self.timeline.now_s

    def heal_environment(self) -> None:
        """End all faults of servers and processes."""
        for server in self.ensemble.servers:
            self.ensemble.heal(server)
        for consumer in self.consumers:
            process = consumer.process
            process.unblock()
            process.resume()
            process.loses_events = lambda _: False
            if process.frozen:
                process.thaw()

    def wait(self, condition: Callable[[], str], limit_s: float) -> None:
        """
        Advance the time until a condition returns "", instead of what is missing.

        Raises:
            Violation: It is not met within ``limit_s``.
        """
        end_s = self.timeline.now_s + limit_s
        while missing := condition():
            if self.timeline.now_s > end_s:
                raise self.checker.violation(f"{limit_s:g} s are over, and {missing}")
            self.run_for(CHECK_S)
