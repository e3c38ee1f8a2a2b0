"""The base class of runners of connectors and tasks, the context of a runner, and the Kafka clients of tasks."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, TypeVar

from kiel_groups.clients.grouped import GroupedConsumer
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.producer import Producer
from kiel_groups.config import KAFKA_PORT, BrokerConfig, check_name, parse_hosts
from kiel_groups.errors import ConfigError, GroupConfigError, KielGroupsError, NoBrokersError, TaskStoppedError
from kiel_groups.metrics import Metrics
from kiel_groups.model import CONNECT_TYPE
from kiel_groups.ops.broker_reader import BrokerSession, members_type
from kiel_groups.wording import some
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.connector_checks import RunSettings
from kiel_groups.workers.plugins.interfaces import Connector, Task
from kiel_groups.workers.runners.plugin_calls import PluginCalls, WorkFence
from kiel_groups.workers.session import WorkerRole
from kiel_groups.workers.stores.source_offset_store import SourceOffsets
from kiel_groups.workers.values import TaskId, Work
from kiel_groups.zookeeper.runtime import Runtime

log = logging.getLogger(__name__)


#: The time for all addresses together, in seconds.
_LIMIT_S = 10.0

#: How long a broker may take to say which members a group has: as long as a member looks for its coordinator.
_FIND_TIMEOUT_S = 15.0


async def probe_brokers(group: str, brokers: str) -> None:
    """
    Request metadata once. Log a warning if no broker answers, because tasks would wait without any sign to users.

    Args:
        group: The name of the worker group, for the warning.
        brokers: The addresses of some brokers, as ``host`` or ``host:port``. The default port is 9092.
    """
    try:
        await all_topics(brokers)
    except KielGroupsError as error:
        log.warning("group %s: %s; tasks wait until one answers", group, error)


async def all_topics(brokers: str | Iterable[str]) -> frozenset[str]:
    """
    Return the names of all topics. The request names no topics, because a broker may create a requested topic.

    Raises:
        NoBrokersError: No broker answers.
    """
    cluster = ClusterMetadata(BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers")), Metrics())
    try:
        async with asyncio.timeout(_LIMIT_S):
            return await cluster.all_topics()
    except TimeoutError:
        raise NoBrokersError(f"no broker at {brokers} answered within {_LIMIT_S:g} s") from None
    finally:
        cluster.close()


async def check_members(group: str, brokers: str) -> None:
    """
    Check that all members of a broker-coordinated group are workers, before this worker writes to ZooKeeper.

    Args:
        group: The name of the worker group. The brokers coordinate this group.
        brokers: As in ``probe_brokers``.

    Raises:
        GroupConfigError: The members are not workers.
        KielGroupsError: The brokers do not describe the group in time.
    """
    async with BrokerSession(brokers, timeout_s=_FIND_TIMEOUT_S) as session:
        found = await members_type(session, group)
    if found not in ("", CONNECT_TYPE):
        raise GroupConfigError(
            f"group {group}: its members at the brokers are of the type {found!r}, and this one is a worker; choose"
            " another group"
        )


#: The records of one batch of a source task's producer, and how long a record waits for others, in milliseconds.
_BATCH_RECORDS, _LINGER_MS = 1_000, 20

#: A source task waits for brokers as long as it runs, as a task of Kafka Connect does. The time of its stop is limited.
_RETRIES = 1_000_000
#: How long a broker may wait for replicas, in milliseconds. A batch whose replicas are late is stored already, and the
#: next try stores it again. Brokers wait for a follower that is gone for replica.lag.time.max.ms, by default 10 s.
_ACKS_MS = 11_000

#: How long the names of all topics are used, in seconds, and how long if a requested topic is not among them.
_TOPICS_AGE_S, _MISSING_AGE_S = 15.0, 1.0

#: The characters that names of groups do not have; and how many characters of a connector's name, and of the name's
#: digest, the name of its group has if the connector's name is not legal there: together fewer than the 255 of Kafka's
#: names.
_NOT_IN_GROUPS, _MOST_SHOWN, _DIGEST_CHARACTERS = re.compile("[^a-zA-Z0-9._-]"), 200, 32


class KafkaClients:
    """
    Creates the clients of tasks, and finds missing topics. A client connects when the task first uses it.

    Args:
        brokers: The addresses of some brokers, as ``host`` or ``host:port``. The default port is 9092.
        zk_hosts: The ZooKeeper servers that coordinate the groups of sinks; None if brokers coordinate these groups.
        consumer_settings: Further arguments of ``GroupedConsumer``, such as ``coordination``.
    """

    def __init__(
        self, brokers: str, zk_hosts: str | None = None, consumer_settings: Mapping[str, Any] | None = None
    ) -> None:
        self._brokers = brokers
        self._zk_hosts = zk_hosts
        self._consumer_settings = dict(consumer_settings or {})
        self._topics: frozenset[str] = frozenset()
        self._topics_s = -math.inf
        self._asking = asyncio.Lock()

    def producer(self) -> Producer:
        """Create a producer that waits until all in-sync replicas have stored a record."""
        return Producer(
            self._brokers, batch_size=_BATCH_RECORDS, linger_ms=_LINGER_MS, retries=_RETRIES, ack_timeout=_ACKS_MS
        )

    def consumer(self, group: str, listener: object, on_bad_record: Literal["raise", "skip"]) -> GroupedConsumer:
        """
        Create a consumer that commits only on request. Without a committed offset, the consumer starts at the first
        offset.
        """
        settings = {"auto_offset_reset": "earliest", **self._consumer_settings}
        settings |= {"autocommit": False, "listener": listener, "on_bad_record": on_bad_record}
        return GroupedConsumer(self._brokers, group, self._zk_hosts, **settings)

    async def missing_topics(self, topics: Collection[str]) -> list[str]:
        """
        Return the given topics that no broker knows, sorted.

        Known topic names are used for 15 seconds. For a missing topic, the brokers are asked again after one second.

        Raises:
            NoBrokersError: No broker answers.
        """
        # A worker may have a thousand tasks that ask. A topic that was missing may have been created a moment ago.
        loop = asyncio.get_running_loop()
        async with self._asking:
            for oldest_s in (_TOPICS_AGE_S, _MISSING_AGE_S):
                if loop.time() - self._topics_s > oldest_s:
                    self._topics, self._topics_s = await all_topics(self._brokers), loop.time()
                missing = sorted(set(topics) - self._topics)
                if not missing:
                    break
        return missing


def sink_group(connector: str) -> str:
    """
    Return the name of the consumer group of a sink: ``connect-`` and the connector's name.

    If the connector's name has characters that group names do not allow, or is too long, the group's name begins with
    ``connect_`` and ends with a digest of the connector's name. So different connectors have different groups.
    """
    with suppress(ConfigError):
        return check_name(f"connect-{connector}", "group")
    shown, digest = _NOT_IN_GROUPS.sub("_", connector)[:_MOST_SHOWN], sha256(connector.encode()).hexdigest()
    return check_name(f"connect_{shown}_{digest[:_DIGEST_CHARACTERS]}", "group")


async def missing_topics_text(clients: KafkaClients, topics: Collection[str]) -> str:
    """
    Return an error text with the topics that no broker knows, or "" if all topics exist.

    If no broker answers, return the text of the error about the brokers.
    """
    try:
        return unknown_topics(await clients.missing_topics(topics))
    except KielGroupsError as error:
        return str(error)


def unknown_topics(missing: Collection[str]) -> str:
    """Return an error text about topics that no broker knows; "" if ``missing`` is empty."""
    return f"no broker knows {'the topic' if len(missing) == 1 else 'the topics'} {some(missing)}" if missing else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    """
    The connector or task that a runner runs, and the stores, clients and callbacks that the runner uses.

    Args:
        work: The connector or the task.
        token: The fencing token of the claim.
        connector_class: The class of the connector.
        config: The settings of the connector, as users have given them, with references to secrets.
        checked: The settings of the connector or the task, checked and typed, with the values of references.
        fence: Tells whether the runner may still deliver and commit. Checked before each delivery and each commit.
        stores: The stores of the worker's session. Each write is refused without the claim of the work.
        clients: Creates producers and consumers.
        runtime: Clocks and threads.
        started: Called when ``start`` of the connector or the task has returned.
        problem: Called with the reason why running work makes no progress, and with "" when it makes progress again.
        metrics: The metrics of this run.
    """

    work: Work
    token: int
    connector_class: type[Connector]
    config: Mapping[str, str]
    checked: RunSettings
    fence: WorkFence
    stores: WorkerRole
    clients: KafkaClients
    runtime: Runtime
    started: Callable[[], None]
    problem: Callable[[str], None]
    metrics: Metrics

    @property
    def settings(self) -> Settings:
        """The typed settings of the connector or the task."""
        return self.checked.settings


_PluginT = TypeVar("_PluginT", bound=Connector | Task)


class Runner(ABC):
    """
    Runs a connector or a task once, from ``start`` to ``stop``.

    Args:
        context: The connector or task, its settings, and the stores, clients and callbacks for the run.
    """

    def __init__(self, context: RunnerContext) -> None:
        self.context = context
        self.calls = PluginCalls(context.runtime, str(context.work), context.fence)
        self._stop_requested = asyncio.Event()
        #: The connector or the task; None before it is created.
        self._plugin: Connector | Task | None = None
        self._producer: Producer | None = None
        #: The reasons why the plugin makes no progress, by their sources.
        self._problems: dict[str, str] = {}
        #: The source offsets of delivered records that are not stored yet. It is set when ``run`` has returned.
        self.delivered: SourceOffsets = ()

    @property
    def should_stop(self) -> bool:
        """Whether the plugin has to return soon."""
        return self._stop_requested.is_set()

    def request_stop(self) -> None:
        """
        Request an orderly end of ``run``. The runner flushes and commits delivered records, and calls the plugin's
        ``stop``.
        """
        self._stop_requested.set()

    def report(self, source: str, problem: str) -> None:
        """Show in the status why the plugin makes no progress, until the same ``source`` reports ``""``."""
        if self.should_stop or self._problems.get(source, "") == problem:
            return
        self._problems[source] = problem
        self.context.problem("; ".join(filter(None, self._problems.values())))

    async def run(self) -> None:
        """
        Run the plugin until a stop is requested. After a cancellation, nothing more is delivered or committed.

        When this call ends, no method of the plugin runs any more, even after several cancellations.

        Raises:
            Exception: Any error of the plugin, the clients or the stores.
        """
        try:
            await self._run_and_stop()
        except GeneratorExit:
            # The event loop was closed, so awaiting is no longer possible.
            raise
        except BaseException:
            await self.calls.ended()
            raise
        await self.calls.ended()

    async def _run_and_stop(self) -> None:
        try:
            await self._run_plugin()
        except GeneratorExit:
            raise
        except BaseException:
            await self._stop_plugin()
            raise
        await self._stop_plugin()

    @abstractmethod
    async def _run_plugin(self) -> None:
        """Create the plugin, and call its methods from ``start`` on, except ``stop``."""

    async def _create(self, plugin_class: type[_PluginT]) -> _PluginT:
        """Create the plugin, keep it for its ``stop``, and return it; raises as ``PluginCalls.create``."""
        plugin = self._plugin = await self.calls.create(plugin_class)
        return plugin

    async def _stop_plugin(self) -> None:
        """Call the plugin's ``stop``, and close the producer."""
        try:
            if self._plugin is not None:
                await self.calls.call_last(self._plugin.stop)
        finally:
            producer, self._producer = self._producer, None
            if producer is not None:
                # No record waits to be sent: either all were flushed, or the others must no longer be sent.
                with suppress(KielGroupsError):
                    await producer.close(0)

    def producer(self) -> Producer:
        """Return the producer of the task; the first call creates it."""
        self._producer = self._producer or self.context.clients.producer()
        return self._producer

    async def until_stop(self, waiting: Coroutine[Any, Any, object]) -> bool:
        """
        Run a coroutine until it returns or a stop is requested. Such a request cancels the coroutine.

        Returns:
            Whether the coroutine has returned.

        Raises:
            Exception: Any error of the coroutine.
        """
        task = asyncio.ensure_future(waiting)
        task.add_done_callback(retrieve)
        await first_of(task, self._stop_requested.wait())
        if task.done():
            task.result()
        return task.done()

    async def pause(self, seconds: float) -> bool:
        """Wait for the given time, or until a stop is requested. Return ``should_stop``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop_requested.wait()
        return self.should_stop


async def first_of(*works: Coroutine[Any, Any, object] | asyncio.Future[Any]) -> None:
    """Wait until the first of several coroutines or futures is done, and cancel the remaining coroutines or futures."""
    waiting = {asyncio.ensure_future(work) for work in works}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


def retrieve(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a call that is not awaited any more, so that asyncio does not log the error."""
    if not task.cancelled():
        task.exception()


_T = TypeVar("_T")


class TaskRunnerContext:
    """Implements ``TaskContext``, the functions of the worker that every task may use."""

    def __init__(self, runner: Runner) -> None:
        work = runner.context.work
        assert isinstance(work, TaskId)
        self.connector, self.task = work
        self.fencing_token = runner.context.token
        self.metrics = runner.context.metrics
        self._runner = runner
        self._loop = asyncio.get_running_loop()

    @property
    def should_stop(self) -> bool:
        return self._runner.should_stop

    @property
    def is_owner(self) -> bool:
        return self._runner.context.fence.is_open

    async def pause(self, seconds: float) -> bool:
        return await self._runner.pause(seconds)

    def report_problem(self, problem: str, part: str = "") -> None:
        # The worker, and its loop, may have ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._runner.report, f"task {part}", problem)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            coroutine.close()
            raise KielGroupsError("context.run(): called on the event loop; await the coroutine instead")
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            coroutine.close()
            raise TaskStoppedError("the worker has ended") from None
