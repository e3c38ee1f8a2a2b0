"""Define what supervisors of work share, and how they get the runners of their work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.metrics import Metrics
from kiel_groups.workers.execution.session_parts import SessionParts
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.secret_texts import ErrorTexts
from kiel_groups.workers.runners.runner_interface import Runner
from kiel_groups.workers.runners.work_fence import WorkFence
from kiel_groups.workers.values.work_ids import Work

__all__ = ["RunnerFactory", "RunnerStart", "SupervisorContext"]


class RunnerStart(NamedTuple):
    """What is started: the work, its spec, its checked settings, and the fencing token of its claim."""

    work: Work
    spec: WorkSpec
    settings: Settings
    token: int


class RunnerFactory(Protocol):
    """Creates runners."""

    async def settings(self, work: Work, spec: WorkSpec) -> Settings:
        """
        Return the checked settings of a connector or a task.

        Raises:
            Exception: They are not legal, or the class of the connector cannot be imported, or one of both took too
                long.
        """

    def runner(
        self,
        start: RunnerStart,
        parts: SessionParts,
        fence: WorkFence,
        started: Callable[[], None],
        problem: Callable[[str], None],
    ) -> Runner:
        """
        Create a runner for one run; see ``RunnerContext``.

        Raises:
            Exception: The plugin's class cannot be used.
        """

    async def error_texts(self, error: BaseException, spec: WorkSpec) -> ErrorTexts:
        """Return what users and logs may see of an error of work, without the secrets of its settings."""

    async def problem_text(self, problem: str, spec: WorkSpec) -> str:
        """Return what users may see of a problem of work, in one line and without the secrets of its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorContext:
    """
    What the supervisors of one assignment on one session share.

    Args:
        parts: The stores and the claims of the session.
        factory: Creates runners.
        address: ``host:port`` of the worker's REST interface, for statuses.
        generation: The generation of the assignment that has started them.
        metrics: The worker's registry.
        runtime: Clocks and randomness.
    """

    parts: SessionParts
    factory: RunnerFactory
    address: str
    generation: int
    metrics: Metrics
    runtime: Runtime
