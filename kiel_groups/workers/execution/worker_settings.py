"""The settings of a worker, checked when they are constructed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kiel_groups.config import KAFKA_PORT, DebounceConfig, ZooKeeperConfig, check_name, parse_hosts
from kiel_groups.errors import ConfigError
from kiel_groups.rest.settings import RestSettings, is_loopback
from kiel_groups.workers.allocation import work_allocator
from kiel_groups.workers.plugins.plugin_registry import INSTALLED, PluginRegistry
from kiel_groups.workers.plugins.secret_references import NO_REFERENCES, SecretReferences


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """
    The settings of one worker.

    Args:
        group: The name of the worker group. All workers of a group run the same connectors.
        zookeeper: The servers of ZooKeeper with an optional chroot, such as ``"z1:2181,z2:2181/kafka"``. ZooKeeper
            stores configuration, statuses, source offsets and claims, even if brokers coordinate the group.
        brokers: The brokers that connectors read from and write to, such as ``"k1:9092,k2:9092"``.
        coordination: The system that coordinates the workers: ZooKeeper, or the brokers (Kafka 0.9 or later).
        allocator: The name of the preferred allocator, a key of ``WORK_ALLOCATORS``.
        rest: The worker's REST interface.
        plugin_classes: The classes that connectors may have: ``installed`` for the entry points of all installed
            packages, names of entry points, and modules, each with its submodules. By default, ``installed`` if other
            machines can connect to the REST interface, and otherwise every class that can be imported.
        secrets: Finds the values of references in settings of connectors, such as ``${file:db.properties:password}``.
            By default, references have no values.
        session_timeout_ms: How long the group keeps the work of a worker that has died, in milliseconds.
        debounce_quiet_ms: With ZooKeeper, the leader assigns when no worker has joined or left for this time, in
            milliseconds.
        debounce_bound_ms: With ZooKeeper, the leader assigns at the latest this long after the first of these changes,
            in milliseconds.
        debounce_initial_delay_ms: With ZooKeeper, how long the first leader of a group waits for more workers, in
            milliseconds.

    Raises:
        ConfigError: A setting is not legal.
    """

    group: str
    zookeeper: str
    brokers: str
    coordination: Literal["zookeeper", "brokers"] = "zookeeper"
    allocator: str = "round_robin"
    rest: RestSettings = field(default_factory=RestSettings)
    plugin_classes: Sequence[str] | None = None
    secrets: SecretReferences = NO_REFERENCES
    session_timeout_ms: int = 10_000
    debounce_quiet_ms: int = 100
    debounce_bound_ms: int = 1_000
    debounce_initial_delay_ms: int = 300

    def __post_init__(self) -> None:
        check_name(self.group, "group")
        ZooKeeperConfig.parse(self.zookeeper, session_timeout_ms=self.session_timeout_ms)
        DebounceConfig(
            quiet_ms=self.debounce_quiet_ms,
            bound_ms=self.debounce_bound_ms,
            initial_delay_ms=self.debounce_initial_delay_ms,
        )
        parse_hosts(self.brokers, KAFKA_PORT, "brokers")
        if self.coordination not in ("zookeeper", "brokers"):
            raise ConfigError(f"coordination: {self.coordination!r} given; expected 'zookeeper' or 'brokers'")
        work_allocator(self.allocator, "allocator")
        if isinstance(self.plugin_classes, str):
            raise ConfigError(f"plugin_classes: the text {self.plugin_classes!r} given; expected a list of texts")

    def new_registry(self) -> PluginRegistry:
        """
        Create the registry of the connectors that the worker may use.

        Raises:
            ConfigError: An item of ``plugin_classes`` is neither the name of an entry point nor a module.
        """
        allowed = self.plugin_classes
        if allowed is None and not is_loopback(self.rest.host):
            allowed = (INSTALLED,)
        return PluginRegistry(allowed=allowed)
