"""Find the topics that match patterns, for leaders of groups on ZooKeeper, and for members that brokers coordinate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from kiel_groups.group.topic_patterns import TOO_MANY, KnownMatches, PatternMatch
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.runtime import Runtime

log = logging.getLogger(__name__)

#: The pause before comparisons that could not be made are tried again, in seconds.
RETRY_S = 5.0


class TopicMatcher:
    """
    Compares topics with patterns in a child process, each topic once with each pattern.

    Args:
        group: The group's name, for log lines.
        metrics: Counts the patterns that have a problem.
        runtime: Starts the process.
    """

    def __init__(self, group: str, metrics: Metrics, runtime: Runtime) -> None:
        self._group = group
        self._metrics = metrics
        self._runtime = runtime
        self._known = KnownMatches()
        self._comparing = asyncio.Lock()
        self._reported: dict[str, str] = {}
        #: Whether the last call of ``matches`` has compared all topics.
        self.is_complete = True

    async def matches(
        self, patterns: Collection[str], topics: Collection[str], before: Mapping[str, PatternMatch] | None = None
    ) -> dict[str, PatternMatch]:
        """
        Return what each pattern matches. Report each problem of a pattern once.

        If some topics cannot be compared now, ``is_complete`` is false. Of these topics, the result has those that
        matched ``before``.
        """
        left = "some topics are not compared with it yet, because other patterns have taken the time"
        # A plan of an earlier term may still wait for its comparisons.
        async with self._comparing:
            questions = self._known.questions(patterns, topics)
            try:
                if questions:
                    self._known.answered(questions, await self._runtime.compare_topics(questions))
            except (OSError, RuntimeError, ValueError, TypeError) as error:
                left = f"some topics are not compared with it yet, because the process that compares failed: {error}"
            found = self._known.matches(left, before)
            self.is_complete = not self._known.questions(patterns, topics)
        problems = {pattern: match.problem for pattern, match in found.items() if match.problem}
        problems |= dict.fromkeys(set(patterns) - found.keys(), f"left out: {TOO_MANY}")
        for pattern, problem in sorted(problems.items() - self._reported.items()):
            self._metrics.count("pattern_problems")
            log.error("group %s: pattern %r: %s", self._group, pattern, problem)
        self._reported = problems
        return found
