"""Keep the metadata of a cluster (brokers, partitions, leaders), refresh it, and send requests to leaders."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kiel_groups.backoff import Backoff, shortening
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.connection import CONTROL, Connection, ConnectionPool
from kiel_groups.clients.net.metadata_sources import BrokerSource, ListedTopic, MetadataSources, TopicListing
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import (
    BrokerConnectionError,
    BrokerError,
    ClosedError,
    ConfigError,
    KielGroupsError,
    NoBrokersError,
    RetriableBrokerError,
    UnknownTopicError,
)
from kiel_groups.group.cluster_identity import ClusterIdentity
from kiel_groups.group.seen_topics import SeenTopics
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION
from kiel_groups.wire.framing import Request
from kiel_groups.wire.metadata import ClusterRequest, MetadataRequest, MetadataResponse, TopicIdsRequest
from kiel_groups.wire.versions import (
    TOO_NEW,
    ApiVersionsRequest,
    FetchProbeRequest,
    VersionRange,
    supports_early_requests,
)
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)


# Keep and refresh one client's view of the cluster: brokers, topics and leaders.
#
# The view becomes stale when leaders or brokers change. A caller that notices this (not leader, unknown topic, a broken
# connection) calls ``refresh`` and retries with ``new_backoff``. Concurrent callers share one refresh, and refreshes
# are rate limited, so a hundred partitions that lose their leader together cost one request.


T = TypeVar("T")

#: Reasons for a refresh to ask another broker than the last one: the view is old, or a broker's answer is doubted.
AGE = "age"
DOUBT = "doubt"
_ASK_ANOTHER = frozenset({AGE, DOUBT})

#: Tries before a topic is unknown: a broker does not know a new topic until the controller has notified it.
_TRIES_UNKNOWN = 6
#: Tries before leaders count as missing: a topic that is created, or loses a leader, gets leaders within seconds.
_TRIES_LEADERLESS = 8

#: How many times a broker is asked for its versions, and the first and the longest pause between the tries, in seconds.
#: A broker that is starting or stopping may close a connection, as a broker that is too old does, but not in each try.
_VERSION_TRIES, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 3, 0.1, 1.0

#: How many times a broker has to close the connection on the probe before it is asked for its versions without a probe.
#: Such a broker is of 0.10.0, or of 4.0 or later: a broker of 0.9 that is starting or stopping does not close the
#: connection each time.
_REFUSED = 2

#: A broker is asked for its versions if it ends two connections within this time, and then not again for this time, in
#: seconds.
_AGAIN_S = 30.0


class BrokerVersions(NamedTuple):
    """The versions that the broker at an address supports, by API key; None for a broker of 0.8 or 0.9."""

    address: HostPort
    ranges: Mapping[int, VersionRange] | None


@dataclass(frozen=True, slots=True)
class _Refresh:
    """
    A refresh. ``asks_another`` says whether the refresh asks another broker than the broker that answered
    last.
    """

    topics: frozenset[str]
    asks_another: bool
    task: asyncio.Task[None]


class ClusterMetadata:
    """
    The metadata of a cluster (brokers, topics, leaders), and the connections to its brokers.

    The object belongs to one event loop.

    Args:
        config: Bootstrap addresses, timeouts, backoff.
        metrics: Counts refreshes by reason, and failures.
        broker_source: Finds further addresses when no known address answers.
        names_unknown: Whether a request may name topics that the brokers may not know; brokers with
            ``auto.create.topics.enable`` then create these topics. If False, a request asks for all topics instead, if
            a topic is not known or ``listing`` is not reliable.
    """

    def __init__(
        self,
        config: BrokerConfig,
        metrics: Metrics,
        *,
        broker_source: BrokerSource | None = None,
        names_unknown: bool = False,
    ) -> None:
        self.config = config
        self._metrics = metrics
        self._names_unknown = names_unknown
        self._backoff = self.new_backoff()
        self._pool = ConnectionPool(config, metrics, self._lost)
        self._brokers: dict[int, HostPort] = {}
        self._topics: dict[str, ListedTopic] = {}
        self._tracked: set[str] = set()
        self._once_known: set[str] = set()
        self._broker_source = broker_source
        self._sources = MetadataSources(config, self._pool, metrics, broker_source)
        #: The leaders that ZooKeeper named in one read, and their addresses. They override the brokers' metadata: a
        #: broker that is cut off from ZooKeeper keeps naming itself the leader. If a leader fails or refuses a request,
        #: it has lost the partition since the read, or does not know yet that it leads. Then its override is dropped.
        self._overrides: dict[TopicPartition, int] = {}
        self._override_addresses: dict[int, HostPort] = {}
        #: Tells whether a request may name the known topics. A caller reports a doubt if a broker does not know one of
        #: them.
        self.listing = TopicListing()
        #: The incarnations of topics, as the answers show them.
        self.seen = SeenTopics()
        #: Whether the brokers are asked for the ids of topics. Brokers know these ids from 2.8 on.
        self.asks_ids = False
        #: Changes whenever ``leader_of`` may change.
        self.leaders_version = 0
        self._last_refresh: _Refresh | None = None
        self._not_before_s = 0.0
        #: When each broker has last ended a connection that a request was lost with, and was asked for its versions.
        self._lost_s: dict[HostPort, float] = {}
        self._examined_s: dict[HostPort, float] = {}
        #: The brokers that do not support the requests of this package.
        self._too_new: set[HostPort] = set()
        #: Held while a broker is asked for its versions, on a connection that one caller uses at a time.
        self._asking_versions = asyncio.Lock()

    # ------------------------------------------------------------------ the view

    @property
    def brokers(self) -> dict[int, HostPort]:
        """The addresses of the live brokers by node id, as last reported."""
        return dict(self._brokers)

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """
        Return the node id of a partition's leader, or None if the leader or its address is unknown.

        A leader that ZooKeeper names takes precedence over the leader that brokers last reported.
        """
        topic = self._topics.get(topic_partition.topic)
        reported = topic.leaders.get(topic_partition.partition) if topic else None
        leader = self._overrides.get(topic_partition, reported)
        return leader if leader is not None and self._address_of(leader) is not None else None

    async def leaderless(self, partitions: Collection[TopicPartition], what: str) -> dict[TopicPartition, BrokerError]:
        """
        Return an error for each of these partitions, whose leaders are unknown.

        ``what`` is the start of the errors' texts; the partition replaces the ``{}`` in ``what``. The error's text says
        if brokers know the topic without this partition. It also says if they do not know the topic, and ZooKeeper
        registers none of them.
        """
        named, registered = frozenset(self._brokers.values()), frozenset[HostPort]()
        if self._broker_source is not None and any(each.topic not in self._topics for each in partitions):
            with suppress(KielGroupsError):
                registered = frozenset(await self._broker_source())
        errors: dict[TopicPartition, BrokerError] = {}
        for each in partitions:
            errors[each] = LEADER_NOT_AVAILABLE.exception(what.format(each))
            known = self.known_partitions(each.topic)
            if known and each.partition not in known:
                errors[each] = RetriableBrokerError(
                    f"{what.format(each)}: brokers know partitions {known[0]} to {known[-1]} of {each.topic} only",
                    code=LEADER_NOT_AVAILABLE.number,
                )
            if each.topic not in self._topics and registered and named and not registered & named:
                errors[each] = RetriableBrokerError(
                    f"{what.format(each)}: the brokers {some(sorted(named))} do not know the topic, and ZooKeeper"
                    f" registers {some(sorted(registered))}: unless these are the same brokers at other addresses, give"
                    " the brokers and the ZooKeeper of one cluster",
                    code=LEADER_NOT_AVAILABLE.number,
                )
        return errors

    def _address_of(self, node_id: int) -> HostPort | None:
        return self._brokers.get(node_id) or self._override_addresses.get(node_id)

    @property
    def unreachable(self) -> NoBrokersError | None:
        """The error of the last request if ``UNREACHABLE_AFTER`` metadata requests in a row failed, else None."""
        return self._sources.unreachable

    def override_leaders(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """
        Follow the leaders that ZooKeeper names, instead of the brokers' metadata and the leaders of earlier calls.

        A broker that is cut off from ZooKeeper keeps calling itself the leader, and answers fetches.

        Args:
            leaders: Leaders by partition, as ZooKeeper names them; registered brokers only.
            brokers: The addresses of these leaders, used for a leader that the brokers' metadata leaves out.
        """
        moved = [tp for tp, leader in leaders.items() if self.leader_of(tp) not in (None, leader)]
        self._overrides = dict(leaders)
        self._override_addresses = {node_id: brokers[node_id] for node_id in set(leaders.values())}
        self.leaders_version += 1
        if moved:
            log.warning(
                "ZooKeeper names another leader than the brokers for %s, first %s: broker %d; following ZooKeeper",
                counted(moved, "partition"),
                min(moved),
                leaders[min(moved)],
            )
            self._metrics.count("leaders_corrected", len(moved))

    def drop_overrides(self, partitions: Iterable[TopicPartition]) -> None:
        """Follow the brokers' metadata for these partitions until the next ``override_leaders``."""
        for partition in partitions:
            self._overrides.pop(partition, None)
        self.leaders_version += 1

    def new_backoff(self) -> Backoff:
        """Return the delays of an action that retries requests: ``backoff_ms`` to ``max_backoff_ms``, with jitter."""
        return Backoff(self.config.backoff_ms / 1000, self.config.max_backoff_ms / 1000, shortening(random.random))

    async def partitions_of(self, topic: str) -> tuple[int, ...]:
        """
        Return the topic's partition numbers, ascending. First refresh metadata older than ``metadata_max_age_ms``.

        Raises:
            UnknownTopicError: No broker knows the topic.
            BrokerError: The topic exists, but got no partitions in time.
            NoBrokersError: No broker answered.
        """
        known = self._topics.get(topic)
        if known is None or not known.partitions or self._is_old(known):
            await self.await_topics([topic])
        return self._topics[topic].partitions

    async def all_topics(self) -> frozenset[str]:
        """
        Ask a broker for all topics, and return the names of the topics that have partitions or are being created.

        Raises:
            NoBrokersError: No broker answered.
        """
        return frozenset(topic.topic for topic in (await self.all_metadata()).topics if topic.topic in self._topics)

    async def all_metadata(self) -> MetadataResponse:
        """Ask a broker for the live brokers and all topics. Raise NoBrokersError if no broker answers."""
        answer = await self._sources.ask(MetadataRequest(()))
        self._apply(frozenset(self._tracked), answer)
        return answer

    async def identity(self, *, with_id: bool) -> ClusterIdentity:
        """
        Ask a broker for the cluster's brokers and topics and, if ``with_id``, for the cluster's id.

        The id is None without ``with_id``, or if the broker is older than 0.10.1.

        Raises:
            KielGroupsError: No broker answered.
        """
        answer, cluster_id = await self.all_metadata(), None
        node_id = min(self._brokers, default=None)
        if with_id and node_id is not None and await self.knows(node_id, ClusterRequest):
            cluster_id = (await self.send(node_id, ClusterRequest())).cluster_id or None
        topics = {each.topic: {part.partition: part.replicas for part in each.partitions} for each in answer.topics}
        return self.known_identity._replace(topics=topics, cluster_id=cluster_id)

    @property
    def known_identity(self) -> ClusterIdentity:
        """The identity of the cluster as known without a request: the brokers' addresses, without topics and id."""
        addresses = {node_id: frozenset({address}) for node_id, address in self._brokers.items()}
        return ClusterIdentity(addresses, asked=frozenset(self.config.hosts))

    def known_partitions(self, topic: str) -> tuple[int, ...] | None:
        """
        Return the topic's last reported partition numbers, ascending, or None if no partitions are known. Do not wait.

        Metadata older than ``metadata_max_age_ms`` is returned, too, and refreshed in the background.
        """
        known = self._topics.get(topic)
        if known is None or not known.partitions:
            return None
        if self._is_old(known) and self._refresh_in_flight is None and time.monotonic() >= self._not_before_s:
            spawn(self._renew([topic], AGE), f"metadata refresh of {topic}")
        return known.partitions

    async def _renew(self, topics: Collection[str], reason: str) -> None:
        try:
            await self.refresh(topics, reason)
        except ClosedError:
            return
        except KielGroupsError as error:
            log.warning("keeping the current metadata of %s: %s", ", ".join(topics) or "all topics", error)

    async def refresh_when_old(self, topics: Callable[[], Collection[str]]) -> None:
        """
        Wait for ``metadata_max_age_ms``, then refresh these topics from another broker than the last time.

        While no broker answers, the refresh is retried with backoff. The refresh starts at once when the brokers become
        ``unreachable``, because perhaps no other caller asks the brokers again.

        Raises:
            ClosedError: The client was closed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.metadata_max_age_ms / 1000):
                await self._sources.all_unreachable.wait()
        while wanted := topics():
            try:
                await self.refresh(wanted, AGE)
            except NoBrokersError as error:
                log.info("keeping the current metadata of %s: %s", counted(wanted, "topic"), error)
            else:
                return
        # There are no topics to refresh: a caller that loops must not spin.
        await asyncio.sleep(self.config.max_backoff_ms / 1000)

    def _is_old(self, topic: ListedTopic) -> bool:
        return (time.monotonic() - topic.seen_s) * 1000 > self.config.metadata_max_age_ms

    # ------------------------------------------------------------------ refreshing

    async def await_topics(self, topics: Collection[str]) -> None:
        """
        Refresh the metadata until every topic is known and has partitions. Retry with backoff for topics that are being
        created.

        Raises:
            UnknownTopicError: No broker knows one of the topics, after several tries.
            BrokerError: A topic exists, but got no partitions in time.
            NoBrokersError: No broker answered.
        """
        if not topics:
            return
        for attempt in range(_TRIES_LEADERLESS):
            await asyncio.sleep(self._backoff.delay_s(attempt))
            await self.refresh(topics, "asked")
            missing = [topic for topic in topics if topic not in self._topics]
            if not missing and all(self._topics[topic].leaders for topic in topics):
                return
            # If a topic was known once, the broker has more likely just started than the topic been deleted.
            if attempt + 1 >= _TRIES_UNKNOWN and not self._once_known.issuperset(missing):
                break
        if missing:
            names = ", ".join(sorted(missing))
            raise UnknownTopicError(f"no broker knows the topic {names}; check the name, or create it first")
        empty = ", ".join(sorted(topic for topic in topics if not self._topics[topic].leaders))
        raise LEADER_NOT_AVAILABLE.exception(f"the topic {empty} has no partitions yet; is a broker missing?")

    async def find_leader(self, topic_partition: TopicPartition) -> int:
        """
        Return the leader of a partition. While no leader is known, ask the brokers, with backoff.

        Raises:
            UnknownTopicError: No broker knows the topic.
            BrokerError: There is no such partition (code 3), or the partition got no leader in time (code 5).
            NoBrokersError: No broker answered.
        """
        for attempt in range(_TRIES_LEADERLESS):
            leader = self.leader_of(topic_partition)
            if leader is not None:
                return leader
            await asyncio.sleep(self._backoff.delay_s(attempt))
            await self.await_topics([topic_partition.topic])
        raise self.no_leader(topic_partition)

    def no_leader(self, topic_partition: TopicPartition) -> BrokerError:
        """Return the error of a partition without a known leader: the last metadata tell the reason."""
        listed = self._topics.get(topic_partition.topic)
        leaders = {} if listed is None else listed.leaders
        if listed is None or (leaders and topic_partition.partition not in leaders):
            why = f"the topic has {counted(leaders, 'partition')}" if leaders else "no broker knows the topic"
            return RetriableBrokerError(
                f"{topic_partition} does not exist (any more): {why}", code=UNKNOWN_TOPIC_OR_PARTITION.number
            )
        if (unlisted := leaders.get(topic_partition.partition)) is not None:
            return LEADER_NOT_AVAILABLE.exception(
                f"the leader of {topic_partition} is broker {unlisted}, for which the brokers give no address; has it a"
                " listener like the one that this client uses (plain text, TLS or SASL)?"
            )
        return LEADER_NOT_AVAILABLE.exception(f"{topic_partition} has no leader; is the broker that holds it down?")

    async def refresh(self, topics: Collection[str], reason: str) -> None:
        """
        Request the metadata of these topics, and of all topics that are tracked already.

        Callers share a request in flight that covers their topics and reason. The next request waits for
        ``backoff_ms``, and longer after failures.

        Args:
            topics: Topics to track from now on; a topic that turns out to be unknown is tracked no longer. If no topic
                is tracked, a broker answers for every topic it knows.
            reason: One word for the log and the metric.

        Raises:
            NoBrokersError: No known address answered. The error gives the reasons of the first five addresses.
            ClosedError: The client was closed.
        """
        wanted = frozenset(topics)
        asks_another = reason in _ASK_ANOTHER
        # Before the wait, so that the next request covers the topics of all callers that wait for it.
        self._tracked |= wanted
        while (running := self._refresh_in_flight) is not None:
            if wanted <= running.topics and (running.asks_another or not asks_another):
                await asyncio.shield(running.task)
                return
            await asyncio.wait([running.task])
        self._tracked |= wanted
        asked = frozenset(self._tracked)
        task = spawn(self._refresh_once(asked, reason), f"metadata refresh ({reason})")
        # Every caller gets the failure. If all callers were cancelled, asyncio must not report it as never retrieved.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._last_refresh = _Refresh(asked, asks_another, task)
        await asyncio.shield(task)

    @property
    def _refresh_in_flight(self) -> _Refresh | None:
        # A program may cancel all tasks, also before they begin: only the task itself knows that it has ended.
        last = self._last_refresh
        return None if last is None or last.task.done() else last

    async def _refresh_once(self, topics: frozenset[str], reason: str) -> None:
        try:
            await asyncio.sleep(max(0.0, self._not_before_s - time.monotonic()))
            log.debug("asking for the metadata of %s (%s)", counted(topics, "topic"), reason)
            self._metrics.count("metadata_refreshes", reason=reason)
            is_listed = self.listing.is_reliable and topics <= self._topics.keys()
            request = MetadataRequest(tuple(sorted(topics)) if self._names_unknown or is_listed else ())
            if reason in _ASK_ANOTHER:
                if not self._sources.knows_last(self._brokers.values()):
                    self._sources.rotate(self._brokers.values())
                    self._apply(topics, await self._sources.ask(request))
                self._sources.rotate(self._brokers.values())
            asked_s = time.monotonic()
            self._apply(topics, await self._sources.ask(request))
            if not request.topics:
                self.listing.received(asked_s)
            if self.asks_ids:
                await self._ask_ids(topics & self._topics.keys())
        except KielGroupsError:
            self._metrics.count("metadata_failures")
            raise
        finally:
            self._not_before_s = time.monotonic() + self._backoff.delay_s(max(1, self._sources.failures))

    async def _ask_ids(self, topics: Collection[str]) -> None:
        """Ask the broker that answered last for the ids of topics, and record the ids. A failure is only logged."""
        if not topics or self._sources.last is None:
            return
        timeout_ms = min(self.config.connect_timeout_ms, self.config.request_timeout_ms)
        try:
            connection = self._pool.get(self._sources.last, CONTROL)
            found = await connection.request(TopicIdsRequest(tuple(sorted(topics))), timeout_ms)
        except KielGroupsError as error:
            # A broker that an upgrade has not reached yet closes the connection.
            log.info("no ids of topics from %s", error)
            return
        for topic, topic_id in (found or {}).items():
            self.seen.identified(topic, topic_id)

    def _apply(self, asked: frozenset[str], answer: MetadataResponse) -> None:
        """Update brokers, topics and leaders from an answer. ``asked`` are the topics that the refresh requested."""
        now_s = time.monotonic()
        self.leaders_version += 1
        for missing in asked.difference(topic.topic for topic in answer.topics):
            self._topics.pop(missing, None)
        for topic in answer.topics:
            leaders = {p.partition: p.leader if p.leader >= 0 else None for p in topic.partitions}
            if not leaders:
                self.listing.doubt()
            if leaders or topic.error.number == LEADER_NOT_AVAILABLE.number:
                self._topics[topic.topic] = ListedTopic(tuple(sorted(leaders)), leaders, now_s)
                self._once_known.add(topic.topic)
            else:
                self._topics.pop(topic.topic, None)
        unknown = asked - self._topics.keys()
        # A broker that has just started lists neither topics nor brokers.
        for name in asked if answer.brokers else ():
            (self.seen.missing if name in unknown else self.seen.listed)(name)
        self._tracked -= unknown
        if unknown or not answer.brokers:
            # A broker that has just started knows no topics yet: ask another broker next time.
            self._sources.demote(self._sources.last)
        if answer.brokers:
            self._brokers = {broker.node_id: HostPort(broker.host, broker.port) for broker in answer.brokers}
            live = [*self._brokers.values(), *self.config.hosts]
            self._sources.keep(live)
            self._pool.keep_only({*live, *self._override_addresses.values()})

    # ------------------------------------------------------------------ requests

    def connection(self, node_id: int, purpose: str = CONTROL) -> Connection:
        """
        Return the connection to a broker for one purpose.

        Raises:
            BrokerConnectionError: The metadata lists no live broker of this id.
            ConfigError: The broker does not support the requests of this package.
            ClosedError: The client was closed.
        """
        self._pool.check_open()
        address = self._address_of(node_id)
        if address is None:
            known = sorted(self._brokers)
            raise BrokerConnectionError(f"broker {node_id} is not among the live brokers {known}", broker_id=node_id)
        if address in self._too_new:
            raise ConfigError(f"brokers: {address} and the other brokers of its release {TOO_NEW}")
        return self._pool.get(address, purpose)

    def connection_to(self, address: HostPort, purpose: str) -> Connection:
        """
        Return the connection to the broker at this address for one purpose. The metadata need not list the broker.

        Raises:
            ClosedError: The client was closed.
        """
        return self._pool.get(address, purpose)

    def some_connection(self, without: int | None = None) -> Connection:
        """
        Return a connection to any broker, preferably one whose requests have not failed lately.

        The broker ``without`` is chosen only if no other broker is known.

        Brokers of 0.8 list no broker before there is a topic: until then, the address that answered last is used.

        Raises:
            BrokerConnectionError: No broker is known yet.
            ClosedError: The client was closed.
        """
        self._pool.check_open()
        nodes = [node for node in sorted(self._brokers) if node != without] or list(self._brokers)
        addresses = [self._brokers[node] for node in nodes]
        if not addresses and self._sources.last is not None:
            addresses = [self._sources.last]
        if not addresses:
            raise BrokerConnectionError("no broker is known")
        return self._pool.get(self._pool.best(addresses), CONTROL)

    def note_failure(self, connection: Connection) -> None:
        """Record that a request on this connection failed, so that other brokers are preferred for 30 s."""
        self._pool.note_failure(connection.address)

    async def send(
        self,
        target: TopicPartition | int,
        request: Request[T],
        *,
        purpose: str = CONTROL,
        timeout_ms: int | None = None,
    ) -> T:
        """
        Send a request once to a broker, or to the leader of a partition, and return its answer.

        Raises:
            UnknownTopicError: No broker knows the partition's topic.
            BrokerError: There is no leader, no connection, or no answer in time.
            ProtocolError: The answer cannot be decoded, or is too long.
            ClosedError: The client was closed.
        """
        node_id = target if isinstance(target, int) else await self.find_leader(target)
        answer = await self.connection(node_id, purpose).request(request, timeout_ms)
        assert answer is not None, "requests without an answer are sent on a connection"
        return answer

    async def knows(self, node_id: int, request: type[Request[Any]]) -> bool:
        """
        Ask a broker whether it knows a request that is newer than Kafka 0.9.

        Each call asks the broker again, because the broker may run another release after a restart.

        Raises:
            BrokerError: The broker is not known, or does not answer.
            ClosedError: The client was closed.
        """
        async with self._asking_versions:
            ranges = (await self.ask_versions(lambda: self.connection(node_id).address, "request")).ranges or {}
        found = ranges.get(request.API_KEY)
        return found is not None and found.least <= request.API_VERSION <= found.most

    def _lost(self, address: HostPort, unanswered: bool) -> None:
        """
        Ask a broker for its versions if it ends connections with requests in flight again and again.

        Brokers of 4.0 or later answer metadata requests, and close the connection on other requests of this package.

        After requests without a response (``unanswered``), refresh the metadata, too: a broker refuses such a request
        by ending the connection, for instance if it no longer leads the partition. No response would say so.
        """
        if unanswered:
            spawn(self._renew([], "produce"), f"metadata refresh without {address}")
        now_s = time.monotonic()
        never_s = float("-inf")
        if now_s - self._lost_s.get(address, never_s) < _AGAIN_S <= now_s - self._examined_s.get(address, never_s):
            # Other connections may end before the question is sent.
            self._examined_s[address] = now_s
            spawn(self._examine(address), f"versions of {address}")
        self._lost_s[address] = now_s

    async def _examine(self, address: HostPort) -> None:
        with suppress(KielGroupsError):
            async with self._asking_versions:
                found = await self.ask_versions(lambda: address, "versions")
            if found.ranges is not None and not supports_early_requests(found.ranges):
                self._too_new.add(address)

    async def ask_versions(
        self, address_of: Callable[[], HostPort], purpose: str, *, then: Request[Any] | None = None
    ) -> BrokerVersions:
        """
        Ask a broker for its versions, on a connection of its own, in a few tries.

        Brokers of 0.9 do not support the request for versions, and drop requests of other clients after such a request.
        So another request recognises brokers of 0.9 first: see ``FetchProbeRequest``.

        Args:
            address_of: Chooses the broker of each try.
            purpose: The purpose of the connection, which no other call may use at the same time.
            then: A request for brokers of 0.8 and 0.9, whose answer is not read. Brokers that do not know the request
                close the connection.

        Raises:
            BrokerConnectionError: The broker has closed the connection on a request in each try.
            NoBrokersError: No broker has answered.
        """
        backoff, closed, refused = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), 0, 0
        timeout_ms = self.config.connect_timeout_ms
        failure: KielGroupsError = NoBrokersError()
        for attempt in range(_VERSION_TRIES):
            await asyncio.sleep(backoff.delay_s(attempt))
            address = address_of()
            self._examined_s[address] = time.monotonic()
            connection = self.connection_to(address, purpose)
            is_open = is_probed = False
            try:
                await connection.wait_open()
                is_open = True
                # Brokers answer these requests from memory: one that takes longer than a handshake is stuck.
                is_later = refused >= _REFUSED or bool(await connection.request(FetchProbeRequest(), timeout_ms))
                is_probed = True
                if is_later:
                    found = await connection.request(ApiVersionsRequest(), timeout_ms)
                    assert found is not None, "the request has an answer"
                    return BrokerVersions(address, found.versions)
                if then is not None:
                    await connection.request(then, timeout_ms)
                return BrokerVersions(address, None)
            except KielGroupsError as error:
                failure = error
                is_closed = is_open and isinstance(error, BrokerConnectionError)
                closed += is_closed
                refused += is_closed and not is_probed
                self.note_failure(connection)
            finally:
                connection.close()
        if closed == _VERSION_TRIES:
            raise BrokerConnectionError(f"{address} closes the connection on being asked: {failure}") from failure
        raise NoBrokersError(f"{address} does not say which requests it knows: {failure}") from failure

    def close(self) -> None:
        """Close every connection. Requests in flight fail."""
        self._pool.close()
