"""
Derive from the configuration what a worker runs of its assignment, and whether the group has to assign again.

These functions are pure: a ``WorkSpec`` is all that a start of a connector or a task depends on, so work is restarted
if and only if its spec has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kiel_groups.workers.plugins.standard_keys import standard_settings
from kiel_groups.workers.values.config_snapshot import ConfigSnapshot, ConnectorEntry, TargetState
from kiel_groups.workers.values.work_ids import ConnectorId, Work

__all__ = ["WorkSpec", "needs_rejoin", "outdated", "planned"]


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """
    What a connector or a task is started with.

    Args:
        config: The settings of the connector. For a task, only the standard ones: the others are the task's own.
        task: The settings of the task; None for a connector.
        target: Whether it has to run.
        problem: Why it cannot run; "" if it can.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    task: Mapping[str, str] | None = None
    target: TargetState = TargetState.STARTED
    problem: str = ""


def planned(config: ConfigSnapshot, works: Iterable[Work]) -> dict[Work, WorkSpec]:
    """
    Return what has to run of the assigned work. Work that the configuration lacks is left out.

    A connector whose configuration has a problem is included, so that its owner reports it as FAILED.
    """
    specs = {work: _spec_of(config.connectors.get(work.connector), work) for work in works}
    return {work: spec for work, spec in specs.items() if spec is not None}


def _spec_of(entry: ConnectorEntry | None, work: Work) -> WorkSpec | None:
    if entry is None:
        return None
    if isinstance(work, ConnectorId):
        return WorkSpec(dict(entry.config), None, entry.target, entry.problem)
    if entry.problem or entry.tasks is None or work.task >= len(entry.tasks):
        return None
    return WorkSpec(standard_settings(entry.config), dict(entry.tasks[work.task]), entry.target)


def outdated(config: ConfigSnapshot, running: Mapping[Work, WorkSpec]) -> list[Work]:
    """
    Return the running work that has to stop before the group assigns again: what the configuration lacks, and tasks
    with other settings.

    Other tasks of the same connector get settings that fit the new ones. They may start on other workers, so the
    former tasks must not run beside them.
    """
    wanted = planned(config, running)
    return [work for work, spec in running.items() if work not in wanted or wanted[work].task != spec.task]


def needs_rejoin(assigned: ConfigSnapshot, present: ConfigSnapshot) -> bool:
    """
    Return whether the group has to assign its work again.

    That is so if the set of connectors or of tasks has changed, or the settings of a task. Changed settings of a
    connector, a pause and a resume are its owner's business.

    Args:
        assigned: The configuration by which the present work was assigned.
        present: The newest configuration.
    """
    return _shared(assigned) != _shared(present)


def _shared(config: ConfigSnapshot) -> dict[str, object]:
    """Return what is assigned of each connector: the settings of its tasks, or None if these are not assigned."""
    return {name: None if entry.problem else entry.tasks for name, entry in config.connectors.items()}
