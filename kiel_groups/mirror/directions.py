"""The direction of a mirrored topic, which a task checks while it copies records."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kiel_groups.errors import ConfigError, KielGroupsError, ProtocolError, TaskStoppedError
from kiel_groups.mirror.values import Claim, LostTopicsError
from kiel_groups.workers.plugins.interfaces import TaskContext

if TYPE_CHECKING:
    from kiel_groups.mirror.target import TargetCluster

log = logging.getLogger(__name__)

#: How long a task that copies no records relies on the claims that it has read, in seconds.
_IDLE_S = 5.0
#: The pause before the target is asked again, in seconds.
_PAUSE_S = 0.25


class DirectionCheck:
    """
    Checks by the claims on the target that topics have not been turned since a task has started to copy their records.

    A task calls ``turned`` after it has read records and before it writes them. A topic is copied in another direction
    only after its claim was changed. So a task never writes a record that was copied the other way, however long the
    task was frozen. This also holds if the topic has its direction again, as the task does not know where the records
    of the other direction end.

    Args:
        target: The target cluster.
        mirror: The name of the mirror.
        topics: The claim of each target topic for which the task copies its records, or None if there was none.
        context: The functions of the worker.
    """

    def __init__(
        self, target: TargetCluster, mirror: str, topics: Mapping[str, Claim | None], context: TaskContext
    ) -> None:
        self._target = target
        self._mirror = mirror
        self._topics = topics
        self._context = context
        self._turned: frozenset[str] = frozenset()
        #: The claims by which these topics were found.
        self._claims: Mapping[str, Claim] | None = None
        self._checked_s = float("-inf")
        self._problem = ""

    @property
    def is_due(self) -> bool:
        """Whether a task that has read no records checks the claims."""
        return time.monotonic() - self._checked_s > _IDLE_S

    def check_ids(self, topics: Collection[str]) -> None:
        """
        Check that target topics are those that were claimed.

        Raises:
            LostTopicsError: Some were created again. Their offsets count other records.
            KielGroupsError: The target does not answer.
        """
        claims = {each: claim for each in topics if (claim := self._topics[each]) is not None and claim.target_id}
        if claims and (lost := self._target.replaced(claims)):
            raise LostTopicsError(lost)

    def turned(self, read: Collection[str] = ()) -> frozenset[str]:
        """
        Return the target topics that are not copied as they were at the start: stopped, turned or without a claim.

        Wait until the target answers.

        Args:
            read: Target topics whose records the task has read. They may have been created again before.

        Raises:
            LostTopicsError: As ``check_ids`` of these topics.
            ConfigError: The target denies access to the claims.
            ProtocolError: A claim cannot be read.
            TaskStoppedError: The task must stop.
        """
        while True:
            try:
                if (claims := self._target.latest_claims()) is not self._claims:
                    self._claims, self._turned = claims, self._turned_by(claims)
                self.check_ids(read)
            except (ConfigError, ProtocolError, LostTopicsError):
                raise
            except KielGroupsError as error:
                self._report(f"{error}; trying again")
                if self._context.should_stop:
                    raise TaskStoppedError(f"stopped while {self._target.servers} does not answer") from error
                time.sleep(_PAUSE_S)
            else:
                self._report("")
                self._checked_s = time.monotonic()
                return self._turned

    def _turned_by(self, claims: Mapping[str, Claim]) -> frozenset[str]:
        return frozenset(
            topic
            for topic, expected in self._topics.items()
            if expected is None or (claim := claims.get(topic)) is None or claim.turn != expected.turn
        )

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._context.metrics.count("mirror_problems", int(bool(problem)))
            log.warning("%s: %s", self._mirror, problem or f"the target {self._target.servers} answers again")
            self._context.report_problem(problem)
