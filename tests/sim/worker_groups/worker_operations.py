"""The operations of scenarios of groups of workers: faults, and changes by users and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kiel_groups.workers.values import ConnectorId, TaskId
from tests.sim.programs.program_operations import GARBAGE, ON_PROGRAMS, ON_THE_GROUP, SERVER_FAULTS, fail_server
from tests.sim.scenario import Event
from tests.sim.worker_groups.worker_world import Hang

if TYPE_CHECKING:
    from tests.sim.worker_groups.sim_worker import SimWorker
    from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["perform"]

#: The number of names that connectors have, and the most tasks that one wants.
NAMES, MOST_TASKS = 4, 4


def perform(world: WorkerWorld, event: Event) -> str:
    """Perform an event's operation, and return a description for the report."""
    operation = event.operation
    if operation in SERVER_FAULTS:
        return fail_server(world, event)
    if operation in _ON_WORKERS or operation in ON_PROGRAMS:
        running = world.running
        if not running:
            return f"{operation}: no worker is running"
        worker = running[event.target % len(running)]
        done = (_ON_WORKERS.get(operation) or ON_PROGRAMS[operation])(world, worker, event)
        return f"{operation} {worker.name} {done or ''} ({event.choice:.2f}, {event.duration_s:.2f} s)"
    if operation in _ON_THE_GROUP:
        return f"{operation} {_ON_THE_GROUP[operation](world, event)} for {event.duration_s:.2f} s"
    return f"{operation} {ON_THE_GROUP[operation](world, event) or ''}"


# Users, who ask a worker


def _name(event: Event) -> str:
    return f"c{1 + int(event.choice * NAMES)}"


def _create(world: WorkerWorld, worker: SimWorker, event: Event) -> str:
    name = _name(event)
    config = world.config(name, 1 + event.target % MOST_TASKS, restarts=event.target % 3 != 0)
    worker.ask(lambda: worker.requests.create(name, config))
    return name


def _delete(world: WorkerWorld, worker: SimWorker, event: Event) -> str:
    worker.ask(lambda: worker.requests.delete(_name(event)))
    return _name(event)


def _configure(world: WorkerWorld, worker: SimWorker, event: Event) -> str:
    """Change the settings of a connector, or replace garbage by a new connector."""
    name = _name(event)
    config = world.config(name, 1 + event.target % MOST_TASKS, restarts=event.target % 3 != 0)
    if world.workers_layout.connector(name) in world.ensemble.tree.znodes:
        worker.ask(lambda: worker.requests.put_config(name, config))
    return f"{name} with revision {config['rev']}"


def _new_tasks(world: WorkerWorld, worker: SimWorker, event: Event) -> str:
    world.want(_name(event), event.target % (MOST_TASKS + 1))
    return f"{_name(event)} wants {event.target % (MOST_TASKS + 1)} tasks"


def _pause(world: WorkerWorld, worker: SimWorker, event: Event) -> str:
    worker.ask(lambda: worker.requests.pause(_name(event)))
    return _name(event)


def _resume(world: WorkerWorld, worker: SimWorker, event: Event) -> str:
    worker.ask(lambda: worker.requests.resume(_name(event)))
    return _name(event)


def _restart_work(world: WorkerWorld, worker: SimWorker, event: Event) -> str:
    """Restart a connector or a task that some worker runs."""
    work = _some_work(world, event)
    if not work:
        return ""
    connector, _, number = work.partition("-")
    owner = world.checker.runs[work][-1].worker
    if owner.process.runs:
        restarted = TaskId(connector, int(number)) if number else ConnectorId(connector)
        owner.ask(lambda: owner.requests.restart(restarted))
    return work


# Faults


def _some_work(world: WorkerWorld, event: Event) -> str:
    running = sorted(work for work, runs in world.checker.runs.items() if runs)
    return running[int(event.choice * len(running))] if running else ""


def _task_raises(world: WorkerWorld, event: Event) -> str:
    work = f"{_name(event)}-{event.target % MOST_TASKS}"
    return _raises(world, work, event)


def _connector_raises(world: WorkerWorld, event: Event) -> str:
    return _raises(world, _name(event), event)


def _raises(world: WorkerWorld, work: str, event: Event) -> str:
    world.raising.add(work)
    world.timeline.after(event.duration_s, world.raising.discard, work)
    return work


def _stop_hangs(world: WorkerWorld, event: Event) -> str:
    """Have the next stop of a connector or a task hang, and in most cases have its worker stop it."""
    work = _some_work(world, event)
    if not work or work in world.hanging:
        return ""
    hang = world.hanging[work] = Hang()
    owner = world.checker.runs[work][-1].worker
    if event.target % 4 and owner.process.runs and owner.is_running:
        owner.request_rejoin()

    def end() -> None:
        hang.end()
        if world.hanging.get(work) is hang:
            del world.hanging[work]
            world.hung_until_s[work] = world.timeline.now_s

    world.timeline.after(event.duration_s, end)
    return work


def _lose_partitions(world: WorkerWorld, event: Event) -> str:
    return world.cluster.lose_partitions(event.choice)


def _refuse_commits(world: WorkerWorld, event: Event) -> str:
    world.cluster.refuses_until_s = world.timeline.now_s + event.duration_s
    return ""


def _silence_brokers(world: WorkerWorld, event: Event) -> str:
    world.cluster.silent_until_s = world.timeline.now_s + event.duration_s
    return ""


def _slow_sinks(world: WorkerWorld, event: Event) -> str:
    world.cluster.slow_until_s = world.timeline.now_s + event.duration_s
    return ""


# Operators


def _one_of(world: WorkerWorld, folder: str, event: Event, *, deep: bool = True) -> str:
    """Return the path of a znode below a folder, or ""."""
    depth = folder.count("/") + (2 if deep else 1)
    paths = sorted(
        path for path in world.ensemble.tree.znodes if path.startswith(f"{folder}/") and path.count("/") == depth
    )
    return paths[int(event.choice * len(paths))] if paths else ""


def _delete_owner(world: WorkerWorld, event: Event) -> str:
    if path := _one_of(world, world.workers_layout.owners, event):
        world.operator.delete_async(path)
    return path


def _delete_worker(world: WorkerWorld, event: Event) -> str:
    if path := _one_of(world, world.workers_layout.workers, event, deep=False):
        world.operator.delete_async(path)
    return path


def _delete_status(world: WorkerWorld, event: Event) -> str:
    if path := _one_of(world, world.workers_layout.statuses, event):
        world.operator.delete_async(path)
    return path


def _garble_status(world: WorkerWorld, event: Event) -> str:
    if path := _one_of(world, world.workers_layout.statuses, event):
        world.operator.set_async(path, GARBAGE[event.target % len(GARBAGE)])
    return path


def _garble_connector(world: WorkerWorld, event: Event) -> str:
    """Overwrite the configuration of a connector, without a change of the configuration offset."""
    if path := _one_of(world, world.workers_layout.connectors, event, deep=False):
        world.operator.set_async(path, GARBAGE[event.target % len(GARBAGE)])
    return path


def _garble_config(world: WorkerWorld, event: Event) -> str:
    """Overwrite the configuration offset, and empty its znode later."""
    if (path := world.workers_layout.config) in world.ensemble.tree.znodes:
        world.operator.set_async(path, b"garbage")
        world.timeline.after(event.duration_s, world.operator.set_async, path, b"")
    return path


_ON_WORKERS: dict[str, Callable[[WorkerWorld, SimWorker, Event], str]] = {
    "create": _create,
    "delete": _delete,
    "configure": _configure,
    "tasks_max": _configure,
    "new_tasks": _new_tasks,
    "pause": _pause,
    "resume": _resume,
    "restart_work": _restart_work,
}
_ON_THE_GROUP: dict[str, Callable[[WorkerWorld, Event], str]] = {
    "task_raises": _task_raises,
    "connector_raises": _connector_raises,
    "stop_hangs": _stop_hangs,
    "lose_partitions": _lose_partitions,
    "refuse_commits": _refuse_commits,
    "silence_brokers": _silence_brokers,
    "slow_sinks": _slow_sinks,
    "delete_owner": _delete_owner,
    "delete_worker": _delete_worker,
    "delete_status": _delete_status,
    "garble_status": _garble_status,
    "garble_connector": _garble_connector,
    "garble_config": _garble_config,
}
