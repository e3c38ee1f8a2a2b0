"""
Derive from the configuration which assigned connectors and tasks run, and whether the group must assign again.

These functions have no effects. A ``WorkSpec`` has everything that the start of a connector or a task depends on. So a
changed configuration restarts work if and only if its spec has changed.
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
    The settings and the target state with which a connector or a task is started.

    Args:
        config: The settings of the connector. For a task, only the standard settings, because ``task`` has the task's
            own settings.
        task: The settings of the task; None for a connector.
        target: Whether the work has to run.
        problem: Why the work cannot run; "" if it can run.
        created: Distinguishes a connector from earlier connectors of the same name; see ``ConnectorEntry``.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    task: Mapping[str, str] | None = None
    target: TargetState = TargetState.STARTED
    problem: str = ""
    created: int = 0


def planned(config: ConfigSnapshot, works: Iterable[Work]) -> dict[Work, WorkSpec]:
    """
    Return the specs of the assigned work. Omit work that the configuration does not contain.

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
    Return the running work that must stop before the group assigns again.

    The work of deleted connectors must stop, even if connectors of the same names were created since. Each task that
    was removed, or has changed settings, must stop, too. The settings of a connector's tasks belong together, because
    the tasks divide the connector's work. So a task with former settings must not run beside a task with new settings
    on another worker.
    """
    wanted = planned(config, running)
    return [work for work, spec in running.items() if work not in wanted or _identity(wanted[work]) != _identity(spec)]


def still_valid(assigned: ConfigSnapshot | None, wanted: Mapping[Work, WorkSpec]) -> dict[Work, WorkSpec]:
    """
    Return the work in ``wanted`` that may run by the present assignment.

    A task may run if it is unchanged since the assignment. A connector may run unless it was deleted and created again.

    Args:
        assigned: The configuration by which the work was assigned. If the configuration is None, it is not known, and
            no task may run.
        wanted: The specs of the work by the newest configuration.
    """
    former = {} if assigned is None else planned(assigned, wanted)
    return {
        work: spec
        for work, spec in wanted.items()
        if (_identity(former[work]) == _identity(spec) if work in former else spec.task is None)
    }


def _identity(spec: WorkSpec) -> tuple[int, Mapping[str, str] | None]:
    """Return the part of a spec whose changes require another assignment. The owner handles other changes."""
    return spec.created, spec.task


def needs_rejoin(assigned: ConfigSnapshot, present: ConfigSnapshot) -> bool:
    """
    Return whether the group must assign its work again.

    The group must assign again if a connector or a task was added or removed, if the settings of a task have changed,
    or if a connector was deleted and created again. If only the settings of a connector have changed, or a connector
    was paused or resumed, the owners of the connector and its tasks act alone.

    Args:
        assigned: The configuration by which the present work was assigned.
        present: The newest configuration.
    """
    return _shared(assigned) != _shared(present)


def _shared(config: ConfigSnapshot) -> dict[str, object]:
    """Return the part of a configuration that the group assigns: the connectors by name, and their task settings."""
    return {name: (entry.created, None if entry.problem else entry.tasks) for name, entry in config.connectors.items()}
