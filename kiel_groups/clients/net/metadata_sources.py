"""Ask one broker after the other for metadata, and decide whether a metadata request may name topics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.backoff import RepeatedFailures
from kiel_groups.broker_security import broker_security
from kiel_groups.clients.net.connection import CONTROL, ConnectionPool
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import ConfigError, KielGroupsError, NoBrokersError
from kiel_groups.metrics import Metrics
from kiel_groups.wire.framing import NOT_A_BROKER, TLS_PORT
from kiel_groups.wire.metadata import MetadataRequest, MetadataResponse
from kiel_groups.wording import counted

log = logging.getLogger(__name__)

#: Finds further addresses, such as those in ``/brokers/ids``; called when no known address answers.
BrokerSource: TypeAlias = Callable[[], Awaitable[Iterable[HostPort]]]

#: The refreshes in a row without an answer after which the brokers count as unreachable. If connections are refused,
#: these refreshes take some six seconds with the default backoff: longer than an election, or the restart of a lone
#: broker. A silent broker adds ``connect_timeout_ms`` to each refresh.
UNREACHABLE_AFTER = 8

#: Seconds of unanswered refreshes before the first warning.
_WARN_AFTER_S = 10.0

_MOST_REASONS = 5

#: How long requests may name topics after a listing of all topics, in seconds. In an outage, a client asks several
#: times a second.
NAMED_FOR_S = 5.0


def _needs_no_credentials(config: BrokerConfig) -> bool:
    """Return whether the file with the credentials, or the arguments, ask for neither TLS nor SASL at the brokers."""
    with suppress(ConfigError):
        return broker_security(config).protocol == "PLAINTEXT"
    return False


class MetadataSources:
    """
    The addresses that metadata requests go to, in the order in which they are tried.

    Args:
        config: The bootstrap addresses, and timeouts.
        pool: The connections.
        metrics: Receives the gauge of requests in a row that were not answered (``metadata_unanswered``).
        broker_source: Finds further addresses when no known address answers.
    """

    def __init__(
        self, config: BrokerConfig, pool: ConnectionPool, metrics: Metrics, broker_source: BrokerSource | None
    ) -> None:
        self._config = config
        self._pool = pool
        self._metrics = metrics
        self._broker_source = broker_source
        #: The addresses in the order in which they are tried. An address that fails moves to the end.
        self._addresses: list[HostPort] = list(dict.fromkeys(config.hosts))
        #: The address that answered last.
        self.last: HostPort | None = None
        #: Requests in a row that no address has answered.
        self.failures = 0
        self._unanswered: NoBrokersError | None = None
        #: Set while ``unreachable`` is not None.
        self.all_unreachable = asyncio.Event()
        self._warn_at_s = 0.0
        #: The failures since the first one that was worth a warning.
        self._warnings = RepeatedFailures()

    @property
    def unreachable(self) -> NoBrokersError | None:
        """The error of the last request if at least ``UNREACHABLE_AFTER`` requests in a row failed, else None."""
        # A copy: an error that is raised in several places would collect the tracebacks of all.
        return copy(self._unanswered) if self.failures >= UNREACHABLE_AFTER else None

    async def ask(self, request: MetadataRequest) -> MetadataResponse:
        """
        Send a request to one address after the other, then to the addresses of the broker source, until one answers.

        The address that has answered becomes ``last``. Addresses that fail move to the end of the order.

        Raises:
            NoBrokersError: No address answered. The error gives the reasons of the first five addresses.
            ClosedError: The client was closed.
        """
        reasons: list[str] = []
        tried: set[HostPort] = set()
        for further in (False, True):
            addresses = await self._further_addresses(reasons) if further else list(self._addresses)
            for address in addresses:
                if address in tried:
                    continue
                tried.add(address)
                connection = self._pool.get(address, CONTROL)
                try:
                    # Metadata is answered from memory: a broker that takes longer than a handshake is stuck.
                    timeout_ms = min(self._config.connect_timeout_ms, self._config.request_timeout_ms)
                    answer = await connection.request(request, timeout_ms)
                except KielGroupsError as error:
                    log.info("no metadata from %s", error)
                    reasons.append(str(error))
                    self.demote(address)
                else:
                    assert answer is not None
                    self._answered(address)
                    return answer
        self._pool.check_open()
        more = f"; and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
        listed = "; ".join(reasons[:_MOST_REASONS]) + more
        failure = NoBrokersError(f"no broker answered: {listed}{await self._hint(reasons)}")
        self._not_answered(failure)
        raise failure

    async def _hint(self, reasons: Iterable[str]) -> str:
        """Return a question that helps to find out why no broker answers, for brokers that need no credentials."""
        if any(text in each for each in reasons for text in (TLS_PORT, NOT_A_BROKER)):
            return ""  # The first reason is about TLS and SASL, too; the second one asks already.
        if not (self._config.is_plain or await asyncio.to_thread(_needs_no_credentials, self._config)):
            return ""
        if any("closed by the other side" in each or "reset by peer" in each for each in reasons):
            return "; is it a broker that runs there, and its port for plain text (docs/security.rst)?"
        return "; is it a broker that runs there?"

    def _answered(self, address: HostPort) -> None:
        if self._warnings.forget():
            log.warning("brokers answer again, after %s without an answer", counted(self.failures, "metadata request"))
        self.last, self.failures, self._unanswered = address, 0, None
        self.all_unreachable.clear()
        self._metrics.gauge("metadata_unanswered", 0)

    def _not_answered(self, error: NoBrokersError) -> None:
        self.failures += 1
        self._unanswered = copy(error)
        self._metrics.gauge("metadata_unanswered", self.failures)
        if self.failures >= UNREACHABLE_AFTER:
            self.all_unreachable.set()
        now_s = asyncio.get_running_loop().time()
        if self.failures == 1:
            self._warn_at_s = now_s + _WARN_AFTER_S
        # Do not warn of each request: by then, refused connections fail every max_backoff_ms. The text of the error is
        # not the cause, because it names the brokers in the order in which they were tried.
        is_outage = self.failures >= UNREACHABLE_AFTER or now_s >= self._warn_at_s
        if is_outage and self._warnings.note("no answer", now_s) is not None:
            unanswered = counted(self.failures, "metadata request was", "metadata requests in a row were")
            log.warning("%s not answered: %s; trying again", unanswered, error)

    async def _further_addresses(self, reasons: list[str]) -> list[HostPort]:
        if self._broker_source is None:
            return []
        try:
            return list(await self._broker_source())
        except KielGroupsError as error:
            reasons.append(f"no further brokers from ZooKeeper: {error}")
            return []

    def demote(self, address: HostPort | None) -> None:
        """Move this address, if it is known, to the end of the order."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    def knows_last(self, live: Collection[HostPort]) -> bool:
        """
        Return False if it is unknown which ``live`` broker answered last; True if this broker is known, or if no broker
        has answered yet.

        A caller that doubts the last answer must ask another broker (see ``rotate``). If a bootstrap name such as
        ``localhost`` answered, its broker is unknown, because brokers register another address, and an answer does not
        name its broker. Then the caller asks two live brokers in turn: at least one of the two did not answer last.
        """
        return self.last is None or self.last in live

    def rotate(self, live: Collection[HostPort]) -> None:
        """
        Move a ``live`` broker that did not answer last, if there is such a broker, to the front of the order.

        A broker that is cut off from ZooKeeper keeps answering with its old metadata. The metadata of any other broker
        do not list it as live, so it is not asked any more after that broker's answer. See also ``knows_last``.
        """
        self.demote(self.last)
        others = [address for address in self._addresses if address in live]
        if others:
            self._addresses.remove(others[0])
            self._addresses.insert(0, others[0])

    def keep(self, addresses: Collection[HostPort]) -> None:
        """Keep only these addresses. Known addresses keep their order, and new addresses follow."""
        kept = [address for address in self._addresses if address in addresses]
        self._addresses = kept + [address for address in addresses if address not in kept]


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic as last reported: its partition numbers, ascending, and the leader of each partition, or None."""

    partitions: tuple[int, ...]
    leaders: dict[int, int | None]
    seen_s: float


class TopicListing:
    """
    Decides whether metadata requests may name topics.

    Requests may name topics while the last listing of all topics is recent, and no broker has denied a topic since.

    On brokers with ``auto.create.topics.enable``, a request that names a deleted topic creates the topic again. A
    request that names no topics creates no topics, but its answer has all topics of the cluster. In a large cluster,
    such answers are expensive for brokers and clients.

    A deleted topic may still be created again if two conditions hold. First, the topic is deleted within
    ``NAMED_FOR_S`` seconds after the brokers have listed the topic. Second, the client names the topic in a request,
    for example after a broken connection, before a broker has denied the topic.
    """

    def __init__(self) -> None:
        self._asked_s = self._doubted_s = float("-inf")

    @property
    def is_reliable(self) -> bool:
        """Whether the topics of the last listing may be named."""
        return self._doubted_s < self._asked_s > time.monotonic() - NAMED_FOR_S

    def received(self, asked_s: float) -> None:
        """Record that all topics were listed, by a request that was sent at this monotonic time."""
        self._asked_s = asked_s

    def doubt(self) -> None:
        """Record that a broker has denied that it knows a topic, or its partitions."""
        self._doubted_s = time.monotonic()
