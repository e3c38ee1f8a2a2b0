"""Provide the public group member for programs that share work of any kind, not only partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Unpack

from kiel_groups.clients.calls.arguments import SecuritySettings, broker_config
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import (
    BrokerConfig,
    CoordinatorConfig,
    DebounceConfig,
    GroupConfig,
    ZooKeeperConfig,
    check_at_least,
)
from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError
from kiel_groups.members.brokers.coordinator import BrokerCoordinator
from kiel_groups.members.brokers.hooks import CoordinatedContext, MemberHooks
from kiel_groups.members.brokers.member import CoordinatedMember
from kiel_groups.members.brokers.transport import ClusterTransport
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.members.programs.checked_hooks import CheckedHooks, MessageSizes, ZnodeSizes
from kiel_groups.members.programs.zookeeper_coordinator import ZooKeeperCoordinator
from kiel_groups.metrics import KAFKA_GROUP, MEMBER_METRICS, Metrics
from kiel_groups.zookeeper.rights import LoggedRefusals
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext

_ZOOKEEPER_SESSION_MS = 10_000
_SESSION_MS, _HEARTBEAT_MS = 30_000, 3_000


def member_on_zookeeper(
    process: ProcessContext,
    hooks: MemberHooks,
    rebalance_timeout_ms: int,
    on_failure: Callable[[KielGroupsError], None],
) -> CoordinatedMember:
    """
    Return a member of a group that is coordinated through ZooKeeper. The member has not started yet.

    Args:
        process: The settings of the group, and the tools of this process.
        hooks: The hooks of the program.
        rebalance_timeout_ms: How long a rebalance waits for members, in milliseconds.
        on_failure: Called with the error of a member that stops for good.

    Raises:
        HookError: A hook is missing, or the protocol type is not legal.
    """
    checked = CheckedHooks(hooks, process.config.group, ZnodeSizes())
    coordinate = partial(ZooKeeperCoordinator, process, checked, rebalance_timeout_ms / 1000)
    return CoordinatedMember(
        process.config,
        process.zookeeper.connect_timeout_ms,
        process.metrics,
        process.runtime,
        coordinate,
        checked,
        on_failure,
    )


class GenericMember:
    """
    A member of a group whose members share work of any kind.

    The program brings ``hooks``: a protocol type, an ordered list of protocols with metadata in bytes, and the methods
    that the member calls. In each rebalance, every member releases its assignment (``prepare``) and joins with fresh
    metadata. The leader makes the assignments of all members from their metadata (``perform_assignment``). Then each
    member takes its assignment over (``complete``). If the membership ends meanwhile, the assignment is lost
    (``lost``), and the member joins again by itself.

    Although this member has an assignment, another member may still do the same work: see ``docs/generic-members.rst``.

    Args:
        hooks: The hooks of the program.
        group: The group's name: letters, digits, ``.``, ``_`` and ``-``. Members of one group have one protocol type.
        zk_hosts: ZooKeeper servers, ``host`` or ``host:port`` (2181); a chroot may follow the last server.
        brokers: ``host`` or ``host:port`` (9092) of some brokers, if these coordinate the group.
        coordination: What coordinates the group: ``"zookeeper"`` (the default), or ``"brokers"``, from Kafka 0.9 on.
        api_version: The release of coordinating brokers, such as ``(0, 9)``; by default, the brokers are asked.
        session_timeout_ms: How long ZooKeeper (10,000 by default) or the coordinator (30,000) waits for a heartbeat, in
            milliseconds, as are all times of this class unless stated otherwise.
        heartbeat_interval_ms: The time between two heartbeats: a sixth of the session timeout on ZooKeeper, 3,000 with
            brokers.
        rebalance_timeout_ms: How long a rebalance waits until the members have released their assignments. Then it
            continues without the late members. On ZooKeeper, it is also the longest time of ``perform_assignment``.
        connect_timeout_ms: How long ``start`` waits for ZooKeeper, or for a broker that names the coordinator.
        retry_backoff_ms: The first pause before a failed join is tried again.
        debounce_quiet_ms: The leader on ZooKeeper begins a rebalance when no member has joined or left for this time.
        debounce_bound_ms: The leader begins a rebalance at the latest this time after the first change.
        debounce_initial_delay_ms: How long the first leader of a group waits for more members.
        metrics: Receives the counters and gauges.
        on_failure: Called with the error of a member that stops for good; ``ensure_active`` raises it, too.
        security_settings: ``security``, the path of a file with the credentials and the TLS settings of servers
            (``docs/security.rst``); by default, the environment variable ``KIEL_GROUPS_SECURITY`` names the file. With
            coordinating brokers also ``security_protocol`` and the other settings of ``BrokerConfig`` about TLS and
            SASL.

    Raises:
        ConfigError: An argument is not valid, or does not fit the coordination.
    """

    #: The missing rights and refused credentials that were logged. A worker shares them with its other session.
    refusals: LoggedRefusals

    def __init__(
        self,
        hooks: MemberHooks,
        group: str,
        zk_hosts: str | Iterable[str] | None = None,
        *,
        brokers: str | Iterable[str] | None = None,
        coordination: str = "zookeeper",
        api_version: tuple[int, ...] | None = None,
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        rebalance_timeout_ms: int = 60_000,
        connect_timeout_ms: int = 15_000,
        retry_backoff_ms: int = 100,
        debounce_quiet_ms: int = 100,
        debounce_bound_ms: int = 1_000,
        debounce_initial_delay_ms: int = 300,
        metrics: Metrics | None = None,
        on_failure: Callable[[KielGroupsError], None] = lambda error: None,
        **security_settings: Unpack[SecuritySettings],
    ) -> None:
        check_at_least(1, rebalance_timeout_ms=rebalance_timeout_ms)
        self.metrics = metrics or Metrics()
        self._hooks = hooks
        self._on_failure = on_failure
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._config = GroupConfig(
            group=group,
            client="generic",
            retry_backoff_ms=retry_backoff_ms,
            debounce=DebounceConfig(
                quiet_ms=debounce_quiet_ms, bound_ms=debounce_bound_ms, initial_delay_ms=debounce_initial_delay_ms
            ),
            max_poll_interval_ms=0,
        )
        self._zookeeper: ZooKeeperConfig | None = None
        self._timing: CoordinatorConfig | None = None
        self._brokers: BrokerConfig | None = None
        if coordination == "zookeeper":
            if others := sorted(security_settings.keys() - {"security"}):
                raise ConfigError(f"{others[0]}: is about brokers; expected coordination='brokers', or security='FILE'")
            if zk_hosts is None or brokers is not None or api_version is not None:
                raise ConfigError(
                    "coordination: 'zookeeper' needs zk_hosts, and neither brokers nor api_version; expected"
                    " coordination='brokers' for a group that brokers coordinate"
                )
            self._zookeeper = ZooKeeperConfig.parse(
                zk_hosts,
                session_timeout_ms=_ZOOKEEPER_SESSION_MS if session_timeout_ms is None else session_timeout_ms,
                connect_timeout_ms=connect_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
                security=security_settings.get("security"),
            )
        elif coordination == "brokers":
            if brokers is None or zk_hosts is not None:
                raise ConfigError("coordination: 'brokers' needs brokers, and no zk_hosts")
            session_ms = _SESSION_MS if session_timeout_ms is None else session_timeout_ms
            self._timing = CoordinatorConfig(
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=heartbeat_interval_ms or max(1, min(_HEARTBEAT_MS, session_ms // 3)),
                rebalance_timeout_ms=rebalance_timeout_ms,
                find_timeout_ms=connect_timeout_ms,
            )
            self._brokers = broker_config(brokers, **security_settings)
            self._versions = GroupVersions(api_version)
        else:
            raise ConfigError(f"coordination: {coordination!r} given; expected 'zookeeper' or 'brokers'")
        self._runtime, self.refusals = Runtime(), LoggedRefusals()
        self._cluster: ClusterMetadata | None = None
        self._member: CoordinatedMember | None = None
        self._is_closed = False

    async def start(self) -> None:
        """
        Join the group, and wait for the first assignment. If that fails or is cancelled, the member is closed.

        Raises:
            NoZooKeeperError: No ZooKeeper server has answered in time.
            NoBrokersError: No broker has named the coordinator in time.
            GroupConfigError: The group's members are of another type, or have no protocol in common with this member.
            ConfigError: A setting was refused.
            HookError: A hook has raised an error, or its result is illegal or too large.
            ClosedError: The member was closed, or has started already.
        """
        if self._is_closed or self._member is not None:
            raise ClosedError(f"group {self._config.group}: this member was started before; create another one")
        try:
            self._member = await self._new_member()
            await self._member.start()
        except BaseException:
            await self.close()
            raise

    async def _new_member(self) -> CoordinatedMember:
        if self._zookeeper is not None:
            process = ProcessContext(self._config, self._zookeeper, self.metrics, self._runtime, self.refusals)
            return member_on_zookeeper(process, self._hooks, self._rebalance_timeout_ms, self._on_failure)
        assert self._brokers is not None
        assert self._timing is not None
        hooks = CheckedHooks(self._hooks, self._config.group, MessageSizes())
        self._cluster = ClusterMetadata(self._brokers, self.metrics)
        await self._cluster.refresh((), "connect")
        await self._versions.probe(self._cluster)
        context = CoordinatedContext(
            group=self._config,
            timing=self._timing,
            transport=ClusterTransport(self._cluster, self._config.group),
            versions=self._versions,
            metrics=self.metrics,
            runtime=self._runtime,
        )
        return CoordinatedMember(
            self._config,
            self._timing.find_timeout_ms,
            self.metrics,
            self._runtime,
            partial(BrokerCoordinator, context, hooks),
            hooks,
            self._on_failure,
        )

    @property
    def _started(self) -> CoordinatedMember:
        if self._member is None:
            raise ClosedError(f"group {self._config.group}: this member has not started")
        return self._member

    def request_rejoin(self) -> None:
        """Make the member join again: its protocols or their metadata have changed. A rebalance follows."""
        self._started.request_rejoin()

    def leave(self) -> None:
        """
        Leave the group at once. The assignment is lost: the member calls the hook ``lost``.

        The member joins again only after ``request_rejoin``. Call this method if the program cannot do its part of the
        work at the moment, but may be able to later.
        """
        self._started.leave()

    async def ensure_active(self) -> None:
        """Wait until the member has an assignment of the present generation. The errors are those of ``start``."""
        await self._started.ensure_active()

    @property
    def need_rejoin(self) -> bool:
        """Whether the member has no assignment of the present generation, or must join again."""
        return self._member is None or self._member.need_rejoin

    @property
    def generation(self) -> int:
        """The present generation, or −1 if the member has not joined."""
        token = None if self._member is None else self._member.token
        return -1 if token is None else token.generation

    @property
    def member_id(self) -> str:
        """The member's id in its group, or "" if the member has not joined. The id may change after a loss."""
        token = None if self._member is None else self._member.token
        return "" if token is None else token.member_id

    @property
    def group_id(self) -> str:
        """The group's name."""
        return self._config.group

    @property
    def coordinator_id(self) -> int | None:
        """
        The id of the broker that coordinates the group, or None while the broker is unknown.

        On ZooKeeper, the id is the number of this member's session, counted from 1.
        """
        return None if self._member is None else self._member.coordinator_id

    def coordinator_unknown(self) -> bool:
        """Return whether the coordinator is unknown: no broker has named it, or no ZooKeeper session exists."""
        return self.coordinator_id is None

    async def ensure_coordinator_known(self, timeout_ms: int | None = None) -> bool:
        """
        Wait until the coordinator is known. The errors are those of ``start``.

        Args:
            timeout_ms: How long to wait, in milliseconds. None means until attempts have failed for
                ``connect_timeout_ms``.

        Returns:
            Whether the coordinator is known.
        """
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._started.ensure_coordinator_known()
        except TimeoutError:
            return False
        return True

    def kafka_metrics(self) -> dict[str, dict[str, float | None]]:
        """
        Return the metrics of the membership by the names of kafka-python and the Java client.

        Returns:
            ``{"consumer-coordinator-metrics": {"heartbeat-rate": 0.33, ...}}``. ``GroupedConsumer`` returns these
            metrics, too, and metrics of commits and partitions.
        """
        return {KAFKA_GROUP: {metric.name: metric.read(self.metrics, 0) for metric in MEMBER_METRICS}}

    @property
    def leads(self) -> bool:
        """Whether this member is the leader of its generation."""
        return self._member is not None and self._member.leads

    @property
    def is_trusted(self) -> bool:
        """
        Whether the program may use its assignment at this moment.

        The value is False if the membership was not confirmed for half the session timeout, or if the assignment was
        released or lost.
        """
        gate = None if self._member is None else self._member.gate
        return gate is not None and gate.is_open(self._runtime.boot_time_s())

    async def close(self, timeout_s: float | None = None) -> None:
        """
        Release the assignment, and leave the group in one attempt. Further calls do nothing.

        Args:
            timeout_s: The longest time of the close, in seconds, even if the program or a server is not done. None
                means no limit.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._member is not None:
                await self._member.close(CloseLimit(timeout_s))
        finally:
            if self._cluster is not None:
                self._cluster.close()
        await asyncio.sleep(0)
