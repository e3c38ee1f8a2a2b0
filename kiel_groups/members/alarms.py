"""Report a member's partitions that cannot be released yet, or whose start position is not known yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)


def report_slow_drain(
    group: str, partitions: Collection[TopicPartition], seconds: float, handler: PartitionHandler, metrics: Metrics
) -> None:
    """
    Log that the application has delayed the release of these partitions for ``seconds``. Count ``drain_alarms``.

    Hooks run one at a time, so a hook for other partitions may be the cause, too.
    """
    metrics.count("drain_alarms")
    works = handler.in_progress()
    hooks = [work.hook for work in works if work.hook]
    is_processing = any(not work.hook and not work.partitions.isdisjoint(partitions) for work in works)
    log.error(
        "group %s: cannot release %s, first %s, for %.0f s now: %s; other members wait for them",
        group,
        counted(partitions, "partition"),
        min(partitions),
        seconds,
        f"the listener's {hooks[0]} is still running"
        if hooks and not is_processing
        else "the application is still processing records",
    )


#: A new topic has leaders within this time, in seconds; a failure before that is not worth a warning.
NEW_TOPIC_S = 1.0

#: The most partitions that a log line names.
_MOST_NAMES = 10


@dataclass(slots=True)
class _Failure:
    since_s: float
    error: KielGroupsError
    is_warned: bool = False


class UnopenedClaims:
    """
    Tracks the claims of one member that could not be opened yet, with the error of each claim.

    A claim is a partition that the member owns. The member opens a claim when the claim's start position is known.

    The gauge ``claims_unopened`` is the number of these claims. The counter ``claims_not_opened`` counts the failed
    attempts, and the counter ``open_alarms`` counts the alarms.
    """

    def __init__(self, group: str, metrics: Metrics, handler: PartitionHandler) -> None:
        self._group = group
        self._metrics = metrics
        self._handler = handler
        self._failures: dict[TopicPartition, _Failure] = {}

    def attempt_failed(self, topic: str, errors: Mapping[TopicPartition, KielGroupsError]) -> None:
        """
        Record a failed attempt to open these claims. Warn once of each claim that has failed for ``NEW_TOPIC_S``.

        A NoOffsetsError means that an operator or the application must choose the start position. Then the next call
        that consumes this topic raises the error. Calls that consume other topics do not raise the error.
        """
        self._metrics.count("claims_not_opened")
        now_s = asyncio.get_running_loop().time()
        due = []
        for partition, error in sorted(errors.items()):
            failure = self._failures.setdefault(partition, _Failure(now_s, error))
            failure.error = error
            if not failure.is_warned and now_s - failure.since_s >= NEW_TOPIC_S:
                failure.is_warned = True
                due.append(partition)
        self._set_gauge()
        if due:
            log.warning(
                "group %s: the positions of %s of %s cannot be read yet (%s): %s; the brokers are asked again",
                self._group,
                counted(due, "claim"),
                topic,
                some(due, most=_MOST_NAMES),
                errors[due[0]],
            )
        if refusals := [error for error in errors.values() if isinstance(error, NoOffsetsError)]:
            self._handler.start_unknown(topic, refusals[0])

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reporting these claims, because they were opened, or the member no longer owns them."""
        for partition in partitions:
            self._failures.pop(partition, None)
        self._set_gauge()

    def alarm(self, topic: str, partitions: Collection[TopicPartition], seconds: float) -> None:
        """
        If there are ``partitions``, log that they have had no position for ``seconds``, and count ``open_alarms``.
        """
        if not partitions:
            return
        self._metrics.count("open_alarms")
        known = [self._failures[partition].error for partition in sorted(partitions) if partition in self._failures]
        log.error(
            "group %s: %s of %s (%s) without a position for %.0f s: %s. Their records are not delivered, and no other"
            " member can claim them; they open as soon as their offsets are known",
            self._group,
            counted(partitions, "claim"),
            topic,
            some(sorted(partitions), most=_MOST_NAMES),
            seconds,
            known[0] if known else "ZooKeeper or the brokers have not answered yet",
        )

    def _set_gauge(self) -> None:
        self._metrics.gauge("claims_unopened", len(self._failures))
