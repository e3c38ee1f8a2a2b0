"""
Derive from the configuration which assigned work a worker runs, and whether the group has to assign again.

These functions are pure: a ``WorkSpec`` is all that a start of a connector or a task depends on, so work is restarted
if and only if its spec has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kiel_groups.group.znodes.worker_contents import TargetState
from kiel_groups.workers.plugins.standard_keys import standard_settings
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, Work


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """
    The settings and the state that a connector or a task is started with.

    Args:
        config: The settings of the connector. For a task, only the standard ones, because ``task`` has the others.
        task: The settings of the task; None for a connector.
        target: Whether it has to run.
        problem: Why it cannot run; "" if it can.
        created: Distinguishes connectors that have had the same name, one after the other; see ``ConnectorEntry``.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    task: Mapping[str, str] | None = None
    target: TargetState = TargetState.STARTED
    problem: str = ""
    created: int = 0


def planned(config: ConfigSnapshot, works: Iterable[Work]) -> dict[Work, WorkSpec]:
    """
    Return the specs of the assigned work. Work that the configuration lacks is left out.

    A connector whose configuration has a problem is included, so that its owner reports it as FAILED.
    """
    specs = {work: _spec_of(config.connectors.get(work.connector), work) for work in works}
    return {work: spec for work, spec in specs.items() if spec is not None}


def _spec_of(entry: ConnectorEntry | None, work: Work) -> WorkSpec | None:
    if entry is None:
        return None
    if isinstance(work, ConnectorId):
        return WorkSpec(dict(entry.config), None, entry.target, entry.problem, entry.created)
    if entry.problem or entry.tasks is None or work.task >= len(entry.tasks):
        return None
    return WorkSpec(standard_settings(entry.config), dict(entry.tasks[work.task]), entry.target, created=entry.created)


def outdated(config: ConfigSnapshot, running: Mapping[Work, WorkSpec]) -> list[Work]:
    """
    Return the running work that has to stop before the group assigns again.

    That is the work of deleted connectors, even if connectors of the same names were created since, and tasks that were
    removed or whose settings have changed. The settings of a connector's tasks belong together, because they divide its
    work. So a task with former settings must not run beside a task with new settings on another worker.
    """
    wanted = planned(config, running)
    return [work for work, spec in running.items() if work not in wanted or _identity(wanted[work]) != _identity(spec)]


def still_valid(assigned: ConfigSnapshot | None, wanted: Mapping[Work, WorkSpec]) -> dict[Work, WorkSpec]:
    """
    Return the work in ``wanted`` that has not changed since the group assigned it.

    Args:
        assigned: The configuration by which the work was assigned; None if it is not known, so that no task is valid.
        wanted: The specs of the work by the newest configuration.
    """
    former = {} if assigned is None else planned(assigned, wanted)
    return {
        work: spec
        for work, spec in wanted.items()
        if (_identity(former[work]) == _identity(spec) if work in former else spec.task is None)
    }


def _identity(spec: WorkSpec) -> tuple[int, Mapping[str, str] | None]:
    """Return the part of a spec whose change requires another assignment. The owner handles other changes."""
    return spec.created, spec.task


def needs_rejoin(assigned: ConfigSnapshot, present: ConfigSnapshot) -> bool:
    """
    Return whether the group has to assign its work again.

    It has to if a connector or a task was added or removed, if the settings of a task have changed, or if a connector
    was deleted and created again. If only the settings of a connector have changed, or it was paused or resumed, the
    owners of its work act alone.

    Args:
        assigned: The configuration by which the present work was assigned.
        present: The newest configuration.
    """
    return _shared(assigned) != _shared(present)


def _shared(config: ConfigSnapshot) -> dict[str, object]:
    """Return what the group assigns: each connector, and the settings of its tasks, or None if it has a problem."""
    return {name: (entry.created, None if entry.problem else entry.tasks) for name, entry in config.connectors.items()}
