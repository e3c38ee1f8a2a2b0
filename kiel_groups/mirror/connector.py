"""Mirror topics to another cluster: ``Mirror``."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from kiel_groups.errors import ConfigError, KielGroupsError, UnknownTopicError
from kiel_groups.mirror.settings import CONFIG, hashed_partitions, open_target, target_name, target_of
from kiel_groups.mirror.task import MirrorTask
from kiel_groups.mirror.topics import (
    FoundTopics,
    growing,
    partitions_of_tasks,
    plan_topics,
    refuse,
    source_topics,
    start_problems,
    summary,
)
from kiel_groups.mirror.values import (
    BACK,
    BACK_KEY,
    INTERRUPTED,
    PARTITIONS_KEY,
    Claim,
    MirroredTopic,
    check_dead_letters,
    names_of,
)
from kiel_groups.ops.actions.topics import TopicState, ZooKeeperTopics
from kiel_groups.wording import some
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.interfaces import ConnectorContext, SourceConnector

if TYPE_CHECKING:
    from kiel_groups.mirror.target import TargetCluster

log = logging.getLogger(__name__)

#: How long the target and the source may refuse the preparation of tasks, in seconds.
_PATIENCE_S = 60.0
#: The longest pause before the tasks are prepared again, in seconds. The connector cannot stop meanwhile.
_LONGEST_PAUSE_S = 4
#: The limit of the topic of dead letters: what the writers' producers send at most.
_DEAD_LETTER_BYTES = 100_000_000


class MirrorConnector(SourceConnector):
    """Mirrors topics of any cluster from 0.8 on to a cluster of 0.11 or later, with partitions, keys and order."""

    version: ClassVar[str] = "1.0"
    task_class = MirrorTask
    config = CONFIG
    #: The source, if its claims were read.
    _source: TargetCluster | None = None

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._target = target_of(settings)
        self._ended = threading.Event()
        #: The topics and the turns that the tasks were made for last. The worker calls ``task_configs`` next.
        self._known: tuple[Mapping[str, int], Mapping[str, object]] = {}, {}
        #: Why topics, or some of their partitions, wait since then.
        self._problems: Mapping[str, str] = {}
        self._watching = threading.Thread(target=self._watch, name=f"mirror {context.name}", daemon=True)
        self._watching.start()

    def checked_topics(
        self,
        name: str,
        settings: Settings,
        *,
        timeout_s: float,
        must_move: bool,
        awaited: Collection[str] | None = None,
    ) -> dict[str, int]:
        """
        Check, without a change, whether both clusters permit a mirror. No other method was called before.

        Args:
            name: The name of the mirror.
            settings: The settings of the mirror.
            timeout_s: How long to wait for the target's first answer, in seconds.
            must_move: Whether each topic must be copied in some direction.
            awaited: The topics whose problems count, or None for all.

        Returns:
            The number of partitions of each topic to mirror, without topics that are copied back.

        Raises:
            ConfigError: A setting is wrong, or claims or topics of the target are in the way.
            KielGroupsError: A cluster does not answer, or a topic is stopped that must move.
        """
        self._settings = settings
        target, source = target_of(settings), settings["source.bootstrap.servers"]
        # Asked first. Otherwise, a user corrects a topic, and learns only then that the target does not answer.
        target.partitions(timeout_s)
        found = self._topics()
        topics, missing = self._described(found.partitions)
        claims, refused = target.check(name, source, settings["partition.sets"], topics)
        starts = start_problems(source, settings["start.offsets"], found.partitions)
        problems = {**found.problems, **missing, **refused, **starts}
        # A topic that was mirrored before waits, with a warning, and must not keep a restart from mirroring the others.
        own = {claim.topic: copy for copy, claim in claims.items() if claim.mirror == name and not must_move}
        begun = {topic for topic, copy in own.items() if copy == target_name(settings, topic)}
        left_out = begun if awaited is None else begun | (problems.keys() - set(awaited))
        refuse({topic: problem for topic, problem in problems.items() if topic not in left_out})
        check_dead_letters(settings["dead.letter.topic"], claims, topics)
        moving = [topic for topic in topics if must_move and (awaited is None or topic.source in awaited)]
        for topic in moving:
            if (claim := claims.get(topic.target)) and (stop := INTERRUPTED.get(claim.direction)):
                raise KielGroupsError(f"the topic {topic.source} {stop}")
        back = {claim.topic for claim in claims.values() if claim.mirror == name and claim.direction == BACK}
        return {topic: count for topic, count in found.partitions.items() if topic not in back}

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        began_s, pause_s = time.monotonic(), 1
        while True:
            try:
                return self._configured(most)
            except ConfigError:
                raise
            except KielGroupsError as error:
                # A cluster is gone for now, or another mirror claims topics at this moment.
                if time.monotonic() - began_s + pause_s > _PATIENCE_S:
                    raise
                log.warning("%s: %s; trying again in %d s", self._context.name, error, pause_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _configured(self, most: int) -> Sequence[Mapping[str, str]]:
        """
        Prepare the target for the topics of the source, and return the settings of each task.

        A topic with a problem waits, and the others are copied.

        Raises:
            ConfigError: Each topic has a problem, or a setting of the mirror has one.
        """
        found = self._topics()
        topics, claims, counts, problems = self._prepared(found)
        turns = self._turns(claims)
        self._known = found.partitions, turns
        plan = plan_topics(topics, claims, counts)
        problems = {**plan.problems, **problems}
        if not (plan.topics or plan.stopped):
            refuse(problems)
        for text in plan.stopped:
            log.warning("%s: %s", self._context.name, text)
        self._report(problems)
        configs = []
        for partitions in partitions_of_tasks(plan.topics, self._settings["partition.sets"], most):
            forward = [each for each in partitions if each.topic not in plan.back]
            rest = [each for each in partitions if each.topic in plan.back]
            back = [(*each, plan.back[each.topic].start(each.partition)) for each in rest]
            configs.append({**self._context.config, PARTITIONS_KEY: json.dumps(forward), BACK_KEY: json.dumps(back)})
        return configs

    def _prepared(
        self, found: FoundTopics
    ) -> tuple[Sequence[MirroredTopic], Mapping[str, Claim], Mapping[str, int], dict[str, str]]:
        """
        Prepare the target for topics of the source.

        Returns:
            The topics that can be copied, the claims and the numbers of partitions by target topic, and why other
            topics, or some of their partitions, wait, by names on the source.
        """
        settings, target, name = self._settings, self._target, self._context.name
        source, replication = settings["source.bootstrap.servers"], settings["target.replication.factor"]
        problems = dict(found.problems)

        def usable(topics: Iterable[MirroredTopic], more: Mapping[str, str]) -> list[MirroredTopic]:
            problems.update(more)
            return [topic for topic in topics if topic.source not in problems]

        topics = usable(*self._described(found.partitions))
        starts = start_problems(source, settings["start.offsets"], found.partitions)
        topics = usable(topics, {topic: text for topic, text in starts.items() if topic in found.partitions})
        target.create_checkpoints(name, settings["partition.sets"], replication)
        # Claimed first: a topic of another mirror stays as it is.
        claims, refused = target.claim(name, source, topics)
        topics = usable(topics, refused)
        check_dead_letters(settings["dead.letter.topic"], claims, topics)
        for topic in topics:
            if topic.hashed_partitions:
                log.info(
                    "the keys of %s are hashed anew on the target: the order within a key is kept, and that within a"
                    " partition is not; records without a key keep their partition",
                    topic.source,
                )
        counts, refused = target.create(name, topics, replication)
        topics = usable(topics, refused)
        claims, lost = self._identified(topics, claims)
        topics = usable(topics, lost)
        small = growing(topics, claims, counts)
        # A topic that was created again, with fewer partitions, is no copy any more.
        lost = target.lost_topics(names_of(small), target.last_ends(name), claims) if small else {}
        topics, small = usable(topics, lost), [topic for topic in small if topic.source not in lost]
        # The partitions that the target has are copied, even if it refuses to add others.
        refused = target.grow(small)
        problems |= refused
        counts |= {topic.target: topic.partitions for topic in small if topic.source not in refused}
        if dead := settings["dead.letter.topic"]:
            letters = MirroredTopic(dead, dead, 1, {"max.message.bytes": str(_DEAD_LETTER_BYTES)})
            refuse(target.create(name, [letters], replication)[1])
        return topics, claims, counts, problems

    def _identified(
        self, topics: Sequence[MirroredTopic], claims: dict[str, Claim]
    ) -> tuple[dict[str, Claim], dict[str, str]]:
        """
        Note in the claims which topics of the target the mirror copies to, before it copies the first record.

        Args:
            topics: The topics, which the mirror has claimed, and the target has.
            claims: The claims by target topic.

        Returns:
            All claims; and why topics are lost, by their names on the source: see ``lost_topics``.
        """
        target, former = self._target, {topic.target: claims[topic.target].target_id for topic in topics}
        ids = former | target.topic_ids(former, must_exist=True)
        changed = [topic for topic in topics if ids[topic.target] != former[topic.target]]
        others = [topic for topic in changed if former[topic.target]]
        lost = target.lost_topics(names_of(others), target.last_ends(self._context.name), claims) if others else {}
        new = {topic.target: ids[topic.target] for topic in changed if topic.source not in lost}

        def noted(latest: Mapping[str, Claim]) -> Mapping[str, Claim]:
            return {name: latest[name]._replace(target_id=new[name]) for name in new.keys() & latest.keys()}

        return {**claims, **target.change_claims(noted)} if new else claims, lost

    def _report(self, problems: Mapping[str, str]) -> None:
        """Show in the status of the connector why topics wait, and log what is new."""
        name = self._context.name
        # Where users read why a topic waits, the name of that setting is no help.
        problems = {topic: problem.removeprefix("topics: ") for topic, problem in problems.items()}
        for topic, problem in problems.items():
            if self._problems.get(topic) != problem:
                log.warning("%s: %s; other topics are copied", name, problem)
        if gone := sorted(self._problems.keys() - problems.keys()):
            log.info("%s: %s: no longer waiting", name, some(gone))
        self._problems = problems
        self._context.report_problem(summary(problems))

    def _turns(self, claims: Mapping[str, Claim]) -> dict[str, object]:
        """Return the turn of each target topic of the mirror, and the partitions of those that are copied back."""
        own = {topic: claim for topic, claim in claims.items() if claim.mirror == self._context.name}
        is_back = {topic for topic, claim in own.items() if claim.direction == BACK}
        counts = self._target.partitions() if is_back else {}
        return {topic: (claim.turn, counts.get(topic) if topic in is_back else 0) for topic, claim in own.items()}

    def stop(self) -> None:
        if hasattr(self, "_ended"):
            self._ended.set()

    def _topics(self) -> FoundTopics:
        """
        Return the topics of the source; see ``source_topics``.

        Raises:
            ConfigError: There is none that can be copied.
            NoBrokersError: No broker of the source answers.
        """
        settings = self._settings
        claims = None if settings["source.mirrors"] else self._source_claims
        found = source_topics(settings["source.bootstrap.servers"], settings["topics"], claims)
        if not found.partitions:
            refuse(found.problems)
        return found

    def _source_claims(self) -> Mapping[str, Claim]:
        """Return the claims of mirrors whose target is the source of this one."""
        if self._source is None:
            self._source = open_target({"bootstrap.servers": self._settings["source.bootstrap.servers"]})
        return self._source.latest_claims()

    def _described(self, topics: Mapping[str, int]) -> tuple[list[MirroredTopic], dict[str, str]]:
        """
        Return topics of the source with their settings, and why some are not described.

        Raises:
            KielGroupsError: ZooKeeper does not answer, or a topic is deleted at this moment.
        """
        settings, states = self._settings, dict[str, TopicState]()
        problems: dict[str, str] = {}
        if hosts := settings["source.zookeeper"]:
            zookeeper = ZooKeeperTopics(hosts)
            # Brokers still list a topic that was deleted a moment ago.
            gone = topics.keys() - set(zookeeper.names())
            problems = {topic: f"topics: the source has no topic {topic!r} any more" for topic in sorted(gone)}
            try:
                found = zookeeper.describe([topic for topic in topics if topic not in gone])
            except UnknownTopicError as error:
                raise KielGroupsError(str(error)) from error
            states = {state.topic: state for state in found.states}
        described = []
        for topic in topics.keys() - problems.keys():
            config, created = (states[topic].config or {}, states[topic].created) if topic in states else ({}, 0)
            hashed = hashed_partitions(settings["target.partitions"], topics[topic])
            name = target_name(settings, topic)
            described.append(MirroredTopic(topic, name, topics[topic], config, created, hashed))
        return sorted(described), problems

    def _watch(self) -> None:
        while not self._ended.wait(self._settings["refresh.interval.ms"] / 1000):
            try:
                topics, claims = self._topics().partitions, self._target.latest_claims()
                own = {
                    copy: claim
                    for copy, claim in claims.items()
                    if claim.mirror == self._context.name and claim.topic in topics
                }
                # A user may have removed the cause of a problem, or created a topic of the target again.
                is_known = self._known == (topics, self._turns(claims))
                if not is_known or self._problems or self._target.replaced(own):
                    self._context.request_task_reconfiguration()
            except KielGroupsError as error:
                again_s = self._settings["refresh.interval.ms"] / 1000
                text = "%s: its tasks stay as they are: %s; looking for changes again in %g s"
                log.warning(text, self._context.name, error, again_s)
            except Exception as error:
                self._context.raise_error(error)
                return
