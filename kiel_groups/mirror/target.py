"""Prepare the target cluster of a mirror: create topics, claim them, and read positions."""

from __future__ import annotations

import json
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from kiel_groups import model
from kiel_groups.config import KAFKA_PORT, parse_hosts
from kiel_groups.errors import ConfigError, KielGroupsError, NoBrokersError, RetriableBrokerError, TaskStoppedError
from kiel_groups.mirror.checkpoints import MirroredPartition, last_ends, parse_checkpoints
from kiel_groups.mirror.target_errors import DENIED, FENCED, PASSING, error_of
from kiel_groups.mirror.values import (
    CARRIED_SETTINGS,
    CLAIMS_TOPIC,
    SETTLED_S,
    Claim,
    MirroredTopic,
    check_mirror,
    check_sets,
    checkpoints_topic,
    gone_text,
    names_of,
    parse_claims,
    replaced_text,
    short_text,
    topic_problems,
)
from kiel_groups.wording import counted, some

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Drops the library's own lines: no level leaves out those of fatal errors, such as of a task that is fenced.
_SILENT = logging.getLogger(f"{__name__}.library")
_SILENT.disabled = True

#: How long to wait for an answer of the target, in seconds.
_ANSWER_S = 30.0
#: How long a task waits for the end of the topic of claims, in seconds, before its status shows that.
_CLAIMS_S = 2.0
#: How long one request may take, in seconds, before the target is asked again, and it is checked whether to stop.
_REQUEST_S = 1.0
#: The most messages of one call of a consumer.
_MOST_MESSAGES = 1_000
#: The pause before a new topic is looked for again, in seconds.
_PAUSE_S = 0.05
#: How often claims are changed while other processes do so as well, and the longest pause before another try.
_CLAIM_TRIES, _CLAIM_PAUSE_S = 5, 1.0
#: Each batch adds checkpoints. A broker only compacts closed segments, and a gigabyte, the default, takes long to read.
_COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
#: The id of each topic of brokers before 2.8, which have no ids.
_NO_ID = str(Uuid(0, 0))


def open_client(kind: Callable[..., T], config: Mapping[str, Any]) -> T:
    """
    Return a client of the library.

    The library's own log lines are left out, unless the user sets ``log_level``. Problems of connections, and fatal
    ones, reach the client as errors, which the caller reports.

    Raises:
        ConfigError: The library refuses the settings of the user for clients of this kind.
    """
    try:
        return kind({"log_level": 0, **config}, logger=log if "log_level" in config else _SILENT)
    except KafkaException as error:
        raise ConfigError(f"target.properties: {error_of(error).str().strip()}") from error


def _note(last_error: deque[str], error: KafkaError) -> None:
    if error.code() != KafkaError._ALL_BROKERS_DOWN:
        last_error.append(error.str())


def _place_of(message: Message) -> model.TopicPartition:
    return model.TopicPartition(message.topic() or "", message.partition() or 0)


class TargetCluster:
    """
    The target cluster, asked through the library's own clients.

    Args:
        config: The library's settings for each client of the target, such as ``bootstrap.servers``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = dict(config)
        #: Whether the caller must end. Then methods that wait for the target raise TaskStoppedError.
        self.should_stop: Callable[[], bool] = lambda: False
        self.servers: str = self.config["bootstrap.servers"]
        #: The claims that were read last, and the end of their topic before that.
        self._claims: Mapping[str, Claim] = {}
        self._claims_end = -1
        #: Whether the target has the topic of claims.
        self._has_claims = False
        #: What ``last_ends`` has found by mirror, and where it continues in the topics of checkpoints.
        self._last_ends: dict[str, dict[model.TopicPartition, int]] = {}
        self._unread: dict[model.TopicPartition, int] = {}
        #: The last error of a connection. The answer to a request only says that a connection has failed.
        self._last_error = deque([""], maxlen=1)
        # With a method of this object, the client would keep its threads and connections until a garbage collection.
        self._admin = open_client(AdminClient, self.config | {"error_cb": partial(_note, self._last_error)})

    def check(
        self, mirror: str, source: str, sets: int, topics: Sequence[MirroredTopic]
    ) -> tuple[dict[str, Claim], dict[str, str]]:
        """
        Check, without a change, whether the target permits a mirror.

        Args:
            mirror: The name of the mirror.
            source: The addresses of the source.
            sets: The number of sets of partitions.
            topics: The topics to mirror.

        Returns:
            As ``claim``, and why topics are lost; see ``lost_topics``.

        Raises:
            ConfigError: As ``create_checkpoints`` and ``claim``.
            KielGroupsError: The target does not answer.
        """
        present = self.partitions()
        check_sets(present, mirror, sets)
        self._refuse_loops(source, topics)
        claims = self.claims() if CLAIMS_TOPIC in present else {}
        check_mirror(claims, mirror, source)
        lost = self.lost_topics(names_of(topics), self.last_ends(mirror), claims)
        return claims, lost | topic_problems(claims, mirror, topics, present)

    def lost_topics(
        self,
        names: Mapping[str, str],
        ends: Mapping[model.TopicPartition, int],
        claims: Mapping[str, Claim],
    ) -> dict[str, str]:
        """
        Return why topics of the target lack records before their last checkpoints, by their names on the source.

        A topic with another id than in its claim lacks them, unless nothing was copied to or from it yet.

        Args:
            names: The names on the target of topics of a mirror.
            ends: Where the logs of the mirror ended at the last checkpoints; see ``last_ends``.
            claims: The claims by target topic.

        Raises:
            KielGroupsError: The target does not answer.
        """
        ends = {own: records for own, records in ends.items() if records and own.topic in names}
        copies = {own: model.TopicPartition(names[own.topic], own.partition) for own in ends}
        logs = self.logs(names.values()) if ends else {}
        if any(logs.get(copies[own], (0, records))[1] < records for own, records in ends.items()):
            time.sleep(SETTLED_S)
            logs = self.logs(names.values())
        begun = {copy.topic for copy in copies.values()}
        own_claims = {name: claims[name] for name in names.values() if name in claims}
        replaced = self.replaced({name: each for name, each in own_claims.items() if name in begun or each.starts})
        found = {source: replaced[name] for source, name in names.items() if name in replaced}
        for own, records in ends.items():
            if (copy := copies[own]).topic not in replaced:
                if copy not in logs:
                    found[own.topic] = gone_text(copy.topic)
                elif (end := logs[copy][1]) < records:
                    found.setdefault(own.topic, short_text(copy, records, end))
        return found

    def _refuse_loops(self, source: str, topics: Sequence[MirroredTopic]) -> None:
        """Raise ConfigError if both clusters are one, and a topic would be copied to itself endlessly."""
        if not (loops := [topic.source for topic in topics if topic.source == topic.target]):
            return
        brokers = self._metadata(_ANSWER_S).brokers.values()
        addresses = {(broker.host, broker.port) for broker in brokers}
        if found := addresses.intersection(parse_hosts(source, KAFKA_PORT, "source.bootstrap.servers")):
            host, port = min(found)
            raise ConfigError(
                f"target.bootstrap.servers: the broker {host}:{port} is one of the source, too, so {some(loops)} would"
                " be copied to itself: choose another cluster, or other names (target.topic.format)"
            )

    def create(
        self, mirror: str, topics: Sequence[MirroredTopic], replication: int
    ) -> tuple[dict[str, int], dict[str, str]]:
        """
        Create the topics that do not exist, with their partitions and the settings that still exist.

        A topic that was deleted after it was mirrored is not created again.

        Returns:
            The number of partitions of each topic of the target; and why topics are not created, by their names on the
            source.

        Raises:
            KielGroupsError: The target does not answer.
        """
        present = self.partitions()
        absent = [topic for topic in topics if topic.target not in present]
        lost = self.lost_topics(names_of(absent), self.last_ends(mirror), {}) if absent else {}
        missing = {topic.target: topic for topic in absent if topic.source not in lost}
        for topic in missing.values():
            if dropped := sorted(topic.config.keys() - CARRIED_SETTINGS):
                log.warning("topic %s: these settings do not exist on the target: %s", topic.source, ", ".join(dropped))
        carried = [
            NewTopic(
                topic.target,
                topic.target_partitions,
                replication,
                config={name: text for name, text in topic.config.items() if name in CARRIED_SETTINGS},
            )
            for topic in missing.values()
        ]
        refused = self._create(carried)
        created = {name: topic for name, topic in missing.items() if name not in refused}
        for name, topic in created.items():
            log.info("created the target topic %s with %s", name, counted(topic.target_partitions, "partition"))
        counts = present | {name: topic.target_partitions for name, topic in created.items()}
        return counts, lost | {missing[name].source: problem for name, problem in refused.items()}

    def grow(self, topics: Sequence[MirroredTopic]) -> dict[str, str]:
        """
        Give topics as many partitions as their topics on the source have.

        Returns:
            Why the target refuses that, by topics of the source.

        Raises:
            KielGroupsError: The target does not answer.
        """
        wanted = {topic.target: topic for topic in topics}
        growth = [NewPartitions(name, topic.partitions) for name, topic in wanted.items()]
        answers = self._admin.create_partitions(growth, request_timeout=_ANSWER_S) if growth else {}
        errors, refused = self._errors(answers, "add partitions to"), {}
        for name, topic in wanted.items():
            if (error := errors.get(name)) is None:
                count = counted(topic.partitions, "partition")
                log.info("the target topic %s has %s now, as on the source", name, count)
                continue
            refused[topic.source] = (
                f"the target refuses to add partitions to {name}, as {topic.source} on the source has"
                f" {topic.partitions} now: {error.str()}; the records of the others wait: allow the mirror to alter the"
                " topic, or add partitions on the target"
            )
        return refused

    def create_checkpoints(self, mirror: str, sets: int, replication: int) -> None:
        """
        Create the topics of checkpoints and claims if they do not exist.

        Raises:
            ConfigError: The topic of checkpoints has another number of partitions than there are sets.
            KielGroupsError: The target does not answer.
        """
        wanted = {checkpoints_topic(mirror): sets, CLAIMS_TOPIC: 1}
        present = self.partitions()
        absent = wanted.keys() - present.keys()
        missing = [NewTopic(name, wanted[name], replication, config=_COMPACTED) for name in absent]
        for problem in self._create(missing).values():
            raise ConfigError(problem)
        check_sets(present, mirror, sets)

    def claim(
        self, mirror: str, source: str, topics: Sequence[MirroredTopic]
    ) -> tuple[dict[str, Claim], dict[str, str]]:
        """
        Claim the target topics for a mirror. A topic that the mirror has claimed already keeps its direction.

        Args:
            mirror: The name of the mirror.
            source: The addresses of the source.
            topics: The topics to claim.

        Returns:
            All claims by target topic; and why topics are not claimed, by their names on the source: see
            ``topic_problems``.

        Raises:
            ConfigError: A mirror of another source has the name.
            KielGroupsError: The target does not answer, or other processes change claims all the time.
        """
        present = self.partitions()
        problems: dict[str, str] = {}
        self._refuse_loops(source, topics)

        def change(claims: Mapping[str, Claim]) -> Mapping[str, Claim]:
            check_mirror(claims, mirror, source)
            problems.clear()
            problems.update(topic_problems(claims, mirror, topics, present))
            changed = {}
            for topic in topics:
                if topic.source not in problems:
                    claim = claims.get(topic.target, Claim(mirror, topic.source, source))
                    changed[topic.target] = claim._replace(source=source, created=topic.created or claim.created)
            return changed

        return self.change_claims(change), problems

    def change_claims(self, change: Callable[[Mapping[str, Claim]], Mapping[str, Claim]]) -> dict[str, Claim]:
        """
        Change claims in a transaction, and return all claims.

        All mirrors share the id of the transaction. So of two processes that change claims at the same time, the first
        one is fenced, and tries again.

        Args:
            change: Returns the changed claims by target topic, from all claims. An error that it raises changes none.

        Raises:
            KielGroupsError: The target does not answer, or other processes have fenced each try.
        """
        tries = 0
        while True:
            tries += 1
            producer = open_client(Producer, self.config | {"transactional.id": CLAIMS_TOPIC})
            try:
                producer.init_transactions(_ANSWER_S)
                claims = self.claims()
                changed = {topic: claim for topic, claim in change(claims).items() if claims.get(topic) != claim}
                producer.begin_transaction()
                for topic, claim in changed.items():
                    producer.produce(CLAIMS_TOPIC, claim.encode(), json.dumps(topic), 0)
                producer.commit_transaction(_ANSWER_S)
                return claims | changed
            except KafkaException as error:
                if tries == _CLAIM_TRIES or error_of(error).code() not in FENCED:
                    raise self.failure("claim topics", error) from error
            # The pauses of two processes must differ, or the second one would be fenced next.
            time.sleep(random.uniform(0, _CLAIM_PAUSE_S))  # nosec B311 # a pause that others may guess

    def claims(self) -> dict[str, Claim]:
        """
        Return the claims of all mirrors by target topic.

        Raises:
            KielGroupsError: The target does not answer, has no topic of claims, or has a claim that cannot be read.
        """
        found = parse_claims(self.read(CLAIMS_TOPIC, 0))
        self._has_claims = True
        return found

    def latest_claims(self) -> Mapping[str, Claim]:
        """
        Return the claims of all mirrors by target topic: the same object as the last call if none has changed.

        Only one request is sent then. Each change of a claim makes the topic of claims longer.

        Raises:
            KielGroupsError: As ``claims``.
        """
        try:
            (end,) = self.ends([model.TopicPartition(CLAIMS_TOPIC, 0)], _CLAIMS_S)
        except KafkaException as error:
            raise self.failure("look for changed claims", error) from error
        # The end is read first. A claim that changes after that is found by the next call.
        if end != self._claims_end:
            self._claims, self._claims_end = self.claims(), end
        return self._claims

    def claims_of(self, mirror: str) -> dict[str, Claim]:
        """
        Return the claims of one mirror by target topic.

        Raises:
            ConfigError: The target has no mirror of this name.
            KielGroupsError: The target does not answer.
        """
        counts = self.partitions()
        if checkpoints_topic(mirror) not in counts:
            # A broker with ZooKeeper that has just started shows no topics for about half a second.
            time.sleep(SETTLED_S)
            counts = self.partitions()
        claims = self.claims() if CLAIMS_TOPIC in counts else {}
        if checkpoints_topic(mirror) not in counts:
            names = sorted({claim.mirror for claim in claims.values()})
            others = f"; its mirrors are {some(names)}" if names else ", nor any other"
            raise ConfigError(f"the target {self.servers} has no mirror {mirror!r}{others}")
        return {name: claim for name, claim in claims.items() if claim.mirror == mirror}

    def mirrored(self, mirror: str) -> dict[model.TopicPartition, MirroredPartition]:
        """Return how far each partition of the source is mirrored: none before the first start. Raises as ``read``."""
        topic = checkpoints_topic(mirror)
        count = self.partitions().get(topic, 0)
        return parse_checkpoints(self.read(topic, *range(count))) if count else {}

    def last_ends(self, mirror: str) -> Mapping[model.TopicPartition, int]:
        """
        Return where partitions of the target ended at the last checkpoints, by topic of the source and their number.

        The first call reads all checkpoints, and each later one those that are new since.

        Raises:
            KielGroupsError: As ``mirrored``.
        """
        topic = checkpoints_topic(mirror)
        places = (model.TopicPartition(topic, number) for number in range(self.partitions().get(topic, 0)))
        unread = {place: self._unread.get(place, 0) for place in places}
        messages = list(self._messages(unread)) if unread else []
        found = self._last_ends.setdefault(mirror, {})
        for own, end in last_ends(parse_checkpoints((each.key() or b"", each.value()) for each in messages)).items():
            found[own] = max(found.get(own, 0), end)
        self._unread |= {_place_of(each): (each.offset() or 0) + 1 for each in messages}
        return found

    def topic_ids(self, topics: Iterable[str], *, must_exist: bool = False) -> dict[str, str]:
        """
        Return the ids of topics, without those that are not described. Brokers before 2.8 have no ids.

        Args:
            topics: The names of the topics.
            must_exist: Whether to wait for topics that a broker does not know yet.

        Raises:
            KielGroupsError: The target does not answer.
        """
        names = list(topics)
        passing = [KafkaError.UNKNOWN_TOPIC_OR_PART] if must_exist else []

        def ask(timeout_s: float) -> dict[str, str]:
            wanted, found = TopicCollection(names), dict[str, str]()
            answers = self._admin.describe_topics(wanted, request_timeout=timeout_s) if names else {}
            for name, answer in answers.items():
                try:
                    found[name] = str(answer.result().topic_id)
                except KafkaException as error:
                    # What uses the topic next says which right is missing, or that it is gone.
                    if error_of(error).code() in PASSING.union(passing):
                        raise
            return {name: each for name, each in found.items() if each != _NO_ID}

        return self._answer(ask, f"read the ids of {some(names)}", *passing)

    def replaced(self, claims: Mapping[str, Claim]) -> dict[str, str]:
        """
        Return why topics of the target are not those that were claimed, by their names there: their ids differ.

        Raises:
            KielGroupsError: The target does not answer.
        """
        ids = self.topic_ids(name for name, claim in claims.items() if claim.target_id)
        return {name: replaced_text(name, claims[name]) for name, each in ids.items() if each != claims[name].target_id}

    def logs(self, topics: Iterable[str]) -> dict[model.TopicPartition, tuple[int, int]]:
        """
        Return the start and the end of the log of each partition of the topics that exist.

        Raises:
            KielGroupsError: The target does not answer.
        """
        counts = self.partitions()
        wanted = [model.TopicPartition(topic, number) for topic in topics for number in range(counts.get(topic, 0))]
        starts = self._offsets(wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {each: (start, end) for each, start, end in zip(wanted, starts, ends, strict=True)}

    def stable_ends(self, partitions: Sequence[model.TopicPartition]) -> list[int]:
        """
        Return the last stable offset of each partition: its end, or the first offset of a transaction that is open.

        Raises:
            KielGroupsError: The target does not answer.
        """
        committed = IsolationLevel.READ_COMMITTED
        return self._offsets(partitions, OffsetSpec.latest(), isolation_level=committed)  # type: ignore[no-untyped-call]

    def _offsets(self, partitions: Sequence[model.TopicPartition], spec: OffsetSpec, **options: Any) -> list[int]:
        wanted = [TopicPartition(*partition) for partition in partitions]
        return self._answer(partial(self._listed, wanted, spec, **options), "look up the ends of logs")

    def _answer(self, ask: Callable[[float], T], what: str, *passing: int) -> T:
        """
        Ask the target, again and again if it does not answer, and return its answer.

        Args:
            ask: Sends a request with a time limit in seconds.
            what: The purpose of the request.
            passing: More errors that another try may not meet.

        Raises:
            KielGroupsError: The target refuses the request, or has not answered in ``_ANSWER_S``.
            TaskStoppedError: The caller must end.
        """
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            try:
                return ask(_REQUEST_S)
            except KafkaException as error:
                if error_of(error).code() not in PASSING.union(passing) or time.monotonic() > deadline_s:
                    raise self.failure(what, error) from error
            self._check_stop()
            time.sleep(_PAUSE_S)

    def _check_stop(self) -> None:
        if self.should_stop():
            raise TaskStoppedError(f"stopped while {self.servers} does not answer")

    def ends(self, partitions: Sequence[model.TopicPartition], timeout_s: float) -> list[int]:
        """Return the end of the log of each partition. Raise KafkaException if the target does not answer in time."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        return self._listed(wanted, OffsetSpec.latest(), timeout_s)  # type: ignore[no-untyped-call]

    def _listed(
        self, partitions: Sequence[TopicPartition], spec: OffsetSpec, timeout_s: float, **options: Any
    ) -> list[int]:
        if not partitions:
            return []
        answers = self._admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=timeout_s, **options)
        try:
            found = [int(answers[each].result().offset) for each in partitions]
            # The library does not report an error for each partition whose leader has not answered.
            if any(offset < 0 for offset in found):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return found
        except KafkaException:
            # The library keeps a leader's former epoch, or that a partition has no leader, for five minutes or more. A
            # list of all topics renews its metadata.
            with suppress(KafkaException):
                self._admin.list_topics(timeout=timeout_s)
            raise

    def read(self, topic: str, *partitions: int) -> list[tuple[bytes, bytes | None]]:
        """
        Return the keys and values of the committed records of some partitions, in the order of each partition.

        The caller has ended the transactions of the partitions, so the ends of the committed records are those of all.

        Raises:
            KielGroupsError: The target does not answer.
        """
        return [(message.key() or b"", message.value()) for message in self.messages(topic, *partitions)]

    def messages(self, topic: str, *partitions: int, start: int = 0) -> Iterator[Message]:
        """
        Yield the committed records of some partitions from an offset on, up to the ends or an open transaction.

        Raises:
            KielGroupsError: The target does not answer.
        """
        return self._messages({model.TopicPartition(topic, each): start for each in partitions})

    def with_records(self, ranges: Mapping[model.TopicPartition, tuple[int, int]]) -> set[model.TopicPartition]:
        """
        Return the partitions that have records for consumers between two offsets, or may get some.

        In another partition, the range has nothing but markers of transactions, and records that were aborted or
        deleted.

        Args:
            ranges: For each partition, the first offset and the one after the last.

        Raises:
            KielGroupsError: The target does not answer.
        """
        wanted = {partition: (start, end) for partition, (start, end) in ranges.items() if start < end}
        stable = dict(zip(wanted, self.stable_ends(list(wanted)), strict=True))
        # An open transaction may still be committed.
        found = {partition for partition, (_, end) in wanted.items() if stable[partition] < end}
        starts = {partition: start for partition, (start, _) in wanted.items() if partition not in found}
        for message in self._messages(starts, only_first=True) if starts else ():
            partition = _place_of(message)
            if (message.offset() or 0) < wanted[partition][1]:
                found.add(partition)
        return found

    def _messages(self, starts: Mapping[model.TopicPartition, int], *, only_first: bool = False) -> Iterator[Message]:
        """Yield the committed records of partitions, or only the first one of each. See ``messages``."""
        topics = some(sorted({partition.topic for partition in starts}))
        # The first records may be deleted. The end is reported after an empty answer, for which the broker waits.
        with closing(self.consumer({"auto.offset.reset": "earliest", "fetch.wait.max.ms": 10})) as consumer:
            consumer.assign([TopicPartition(*partition, start) for partition, start in starts.items()])
            left, answered_s = set(starts), time.monotonic()
            while left:
                # A call for many messages would wait until there are so many.
                found = consumer.consume(_MOST_MESSAGES, 0.0)
                if not found and (first := consumer.poll(_REQUEST_S)) is not None:
                    found = [first]
                if not found:
                    self._check_stop()
                    if time.monotonic() - answered_s > _ANSWER_S:
                        raise NoBrokersError(f"the target {self.servers} does not answer: cannot read {topics}")
                    continue
                for message in found:
                    if (error := message.error()) is None:
                        if not only_first:
                            yield message
                        elif (partition := _place_of(message)) in left:
                            left.discard(partition)
                            yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(_place_of(message))
                    elif error.code() not in PASSING:
                        raise self.failure(f"read {topics}", KafkaException(error))
                answered_s = time.monotonic()

    def consumer(self, more: Mapping[str, Any]) -> Consumer:
        """Return a consumer of committed records without a group, with ``more`` settings. It reports partition ends."""
        config = {"isolation.level": "read_committed", "enable.auto.commit": False, "enable.partition.eof": True}
        return open_client(Consumer, {**self.config, "group.id": CLAIMS_TOPIC, **config, **more})

    def settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of each of some topics."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        names = some(resource.name for resource in resources)

        def ask(timeout_s: float) -> dict[str, dict[str, str]]:
            answers = self._admin.describe_configs(resources, request_timeout=timeout_s) if resources else {}
            return {
                resource.name: {name: entry.value for name, entry in answer.result().items()}
                for resource, answer in answers.items()
            }

        # A broker of KRaft learns of a new topic after the controller has created it.
        return self._answer(ask, f"read the settings of {names}", KafkaError.UNKNOWN_TOPIC_OR_PART)

    def failure(self, what: str, error: KafkaException) -> KielGroupsError:
        """
        Return the error for users after the library has raised one.

        It is a ConfigError if rights are missing, and a RetriableBrokerError if another try may succeed.
        """
        text, code = f"the target {self.servers}: cannot {what}: {error_of(error).str()}", error_of(error).code()
        if code in PASSING:
            return RetriableBrokerError(text)
        return ConfigError(text) if code in DENIED else KielGroupsError(text)

    def partitions(self, timeout_s: float = _ANSWER_S) -> dict[str, int]:
        """
        Return the number of partitions of each topic.

        Raises:
            KielGroupsError: The target does not answer. Or it does not show the topic of claims any more, as a broker
                with ZooKeeper that has just started: another try may succeed.
        """
        found = {name: len(topic.partitions) for name, topic in self._metadata(timeout_s).topics.items()}
        if self._has_claims and CLAIMS_TOPIC not in found:
            raise RetriableBrokerError(f"the target {self.servers} does not show {CLAIMS_TOPIC} any more")
        self._has_claims = CLAIMS_TOPIC in found
        return found

    def _metadata(self, timeout_s: float) -> ClusterMetadata:
        try:
            return self._admin.list_topics(timeout=timeout_s)
        except KafkaException as error:
            self._admin.poll(0)  # This calls ``_note``.
            # Brokers before 0.10 close a connection that asks for their versions. One that hangs keeps it open.
            cause = self._last_error[0] or f"{error_of(error).str()}; does it hang, or is it older than Kafka 0.11?"
            raise NoBrokersError(f"no broker of the target {self.servers} answers: {cause}") from error

    def _create(self, topics: list[NewTopic]) -> dict[str, str]:
        """Create topics, and return why the target refuses some."""
        creations = self._admin.create_topics(topics, request_timeout=_ANSWER_S) if topics else {}
        return {
            name: f"the target refuses to create {name}: {error.str()}"
            for name, error in self._errors(creations, "create").items()
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS
        }

    def _errors(self, answers: Mapping[str, Future[None]], what: str) -> dict[str, KafkaError]:
        """Return the errors of changes of topics. Raise KielGroupsError if another try may succeed."""
        found = {}
        for name, answer in answers.items():
            try:
                answer.result()
            except KafkaException as error:
                if error_of(error).code() in PASSING:
                    raise self.failure(f"{what} {name}", error) from error
                found[name] = error_of(error)
        return found
