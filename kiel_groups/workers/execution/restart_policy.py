"""Decide when failed work is started again: by the settings ``restart.*`` of its connector."""

from __future__ import annotations

from collections.abc import Callable

from kiel_groups.backoff import Backoff
from kiel_groups.workers.plugins.config_definition import Settings

__all__ = ["RestartPolicy"]


class RestartPolicy:
    """
    Counts the failures of one piece of work.

    Args:
        jitter: The factor of each delay, so that the tasks of a system that fails do not all return at once.
    """

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._restarts = 0

    def reset(self) -> None:
        """Forget all failures, because a user has restarted the work or changed its settings."""
        self._restarts = 0

    def delay_s(self, settings: Settings | None, ran_s: float) -> float | None:
        """
        Return how long to wait before the work that has failed is started again.

        Args:
            settings: The checked settings; None if they are not legal, so that a restart is useless.
            ran_s: How long the work ran before it failed. After the longest delay, earlier failures do not count.

        Returns:
            The delay in seconds, or None if the work stays FAILED.
        """
        if settings is None or settings["restart.policy"] != "backoff":
            return None
        first_s, longest_s = settings["restart.backoff.ms"] / 1000, settings["restart.backoff.max.ms"] / 1000
        if ran_s > longest_s:
            self._restarts = 0
        if self._restarts >= settings["restart.max"]:
            return None
        self._restarts += 1
        return Backoff(first_s, longest_s, self._jitter).delay_s(self._restarts)
