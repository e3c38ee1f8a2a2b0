"""The operations of scenarios of groups of programs: faults, and changes by programs and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.operations import ON_SERVERS
from tests.sim.programs.program_process import STRANGE
from tests.sim.scenario import Event

if TYPE_CHECKING:
    from tests.sim.programs.program_process import Program
    from tests.sim.programs.program_world import ProgramWorld

__all__ = ["GARBAGE", "ON_PROGRAMS", "ON_THE_GROUP", "SERVER_FAULTS", "fail_server", "perform"]

#: What an operator writes by mistake.
GARBAGE = (b"", b"garbage", b"[]", b'{"version":1}', b'{"version":2,"generation":"x"}', b"\xff\xfe")
#: The names of servers' faults that differ from those of programs' faults.
SERVER_FAULTS = {"lag": "lag", "partition": "partition", "cut": "cut", "freeze_server": "freeze", "crash": "crash"}


def perform(world: ProgramWorld, event: Event) -> str:
    """Perform an event's operation, and return a description for the report."""
    operation = event.operation
    if operation in ON_PROGRAMS:
        running = world.running
        if not running:
            return f"{operation}: no program is running"
        program = running[event.target % len(running)]
        ON_PROGRAMS[operation](world, program, event)
        return f"{operation} {program.name} ({event.choice:.2f}, {event.duration_s:.2f} s)"
    if operation in SERVER_FAULTS:
        return fail_server(world, event)
    return f"{operation} {ON_THE_GROUP[operation](world, event) or ''}"


def fail_server(world: Any, event: Event) -> str:
    """Have a server fail for a while, and return a description for the report."""
    server = world.ensemble.servers[event.target % len(world.ensemble.servers)]
    on_server: Any = ON_SERVERS[SERVER_FAULTS[event.operation]]
    on_server(world, server, event)
    return f"{event.operation} {server!r} for {event.duration_s:.2f} s"


# Programs


def _kill(world: ProgramWorld, program: Program, event: Event) -> None:
    program.kill()


def _restart(world: ProgramWorld, program: Program, event: Event) -> None:
    program.kill()
    world.join()


def _leave(world: ProgramWorld, program: Program, event: Event) -> None:
    if len(world.running) > 1:
        program.leave()


def _leave_soon(world: ProgramWorld, program: Program, event: Event) -> None:
    if len(world.running) > 1:
        program.leave(min(event.duration_s, 2.0))


def _rejoin(world: ProgramWorld, program: Program, event: Event) -> None:
    if program.process.runs:
        program.request_rejoin()


def _rejoin_beginning(world: ProgramWorld, program: Program, event: Event) -> None:
    """Have the program rejoin a little after the next round has begun."""
    world.on_begun = lambda _: world.timeline.after(0.2 * event.choice, _rejoin, world, program, event)


def _freeze(world: ProgramWorld, program: Program, event: Event) -> None:
    program.process.freeze()
    world.timeline.after(event.duration_s, program.process.thaw)


def _block(world: ProgramWorld, program: Program, event: Event) -> None:
    program.process.block(event.duration_s)


def _stall(world: ProgramWorld, program: Program, event: Event) -> None:
    program.process.stall()
    world.timeline.after(event.duration_s, program.process.resume)


def _reset(world: ProgramWorld, program: Program, event: Event) -> None:
    program.process.reset()


def _lose_reply(world: ProgramWorld, program: Program, event: Event) -> None:
    program.process.lose("reply")


def _lose_request(world: ProgramWorld, program: Program, event: Event) -> None:
    program.process.lose("request")


def _lose_events(world: ProgramWorld, program: Program, event: Event) -> None:
    """Lose the events of all watches of a program."""
    program.process.loses_events = lambda _: True
    world.timeline.after(event.duration_s, setattr, program.process, "loses_events", lambda _: False)


def _hang(world: ProgramWorld, program: Program, event: Event) -> None:
    """Have the program's next ``prepare`` take longer than the rebalance timeout."""
    program.hangs = True
    program_rejoins = event.choice < 0.7
    if program_rejoins:
        _rejoin(world, world.running[0], event)
    hang_s = world.scenario.rebalance_timeout_ms / 1000 + event.duration_s
    world.timeline.after(hang_s, program.process.run_on_loop, program.end_hang)


def _hang_assigning(world: ProgramWorld, program: Program, event: Event) -> None:
    """Have the program's next ``perform_assignment`` take longer than the rebalance timeout."""
    program.hangs_assigning = True
    _rejoin(world, program, event)
    hang_s = world.scenario.rebalance_timeout_ms / 1000 + event.duration_s
    world.timeline.after(hang_s, program.process.run_on_loop, program.end_hang)


def _fail_assignment(world: ProgramWorld, program: Program, event: Event) -> None:
    program.fails = True


def _delete_member(world: ProgramWorld, program: Program, event: Event) -> None:
    if program.znode_id:
        world.operator.delete_async(world.layout.member(program.znode_id))


def _garble_member(world: ProgramWorld, program: Program, event: Event) -> None:
    if program.znode_id:
        world.operator.set_async(world.layout.member(program.znode_id), _garbage(event))


def _delete_assignment(world: ProgramWorld, program: Program, event: Event) -> None:
    if program.znode_id:
        world.operator.delete_async(world.layout.assignment(program.znode_id))


def _garble_assignment(world: ProgramWorld, program: Program, event: Event) -> None:
    if program.znode_id:
        world.operator.set_async(world.layout.assignment(program.znode_id), _garbage(event))


def _garbage(event: Event) -> bytes:
    return GARBAGE[event.target % len(GARBAGE)]


# The group


def _join(world: ProgramWorld, event: Event) -> str:
    return world.join().name


def _stranger(world: ProgramWorld, event: Event) -> str:
    """Start a program that knows no protocol of the others, until it is refused."""
    return world.join(STRANGE).name


def _kill_beginning(world: ProgramWorld, event: Event) -> None:
    """Kill the leader between the beginning of the next round and its publication."""
    world.on_begun = lambda leader: world.timeline.after(0.05 * event.choice, _kill_one_of, world, leader)


def _kill_publishing(world: ProgramWorld, event: Event) -> None:
    """Kill the leader when the next round is published."""
    world.on_published = lambda leader: world.timeline.after(0.01 * event.choice, _kill_one_of, world, leader)


def _kill_one_of(world: ProgramWorld, program: Program) -> None:
    if len(world.running) > 1:
        program.kill()


def _delete_candidate(world: ProgramWorld, event: Event) -> str:
    election, tree = world.layout.election, world.ensemble.tree
    candidates = tree.children(election) if election in tree.znodes else []
    if not candidates:
        return ""
    name = candidates[event.target % len(candidates)]
    world.operator.delete_async(f"{election}/{name}")
    return name


def _delete_group_state(world: ProgramWorld, event: Event) -> None:
    """Delete the assignments and then their parent, the group state."""
    group_state, tree = world.layout.group_state, world.ensemble.tree
    if group_state not in tree.znodes:
        return
    transaction = world.operator.transaction()
    for slot in tree.children(group_state):
        transaction.delete(f"{group_state}/{slot}")
    transaction.delete(group_state)
    transaction.commit_async()


def _garble_group_state(world: ProgramWorld, event: Event) -> None:
    world.operator.set_async(world.layout.group_state, _garbage(event))


#: Also used for groups of workers, whose members have the same names.
ON_PROGRAMS: dict[str, Callable[[Any, Any, Event], None]] = {
    "kill": _kill,
    "restart": _restart,
    "leave": _leave,
    "leave_soon": _leave_soon,
    "rejoin": _rejoin,
    "rejoin_beginning": _rejoin_beginning,
    "freeze": _freeze,
    "block": _block,
    "stall": _stall,
    "reset": _reset,
    "lose_reply": _lose_reply,
    "lose_request": _lose_request,
    "lose_events": _lose_events,
    "hang": _hang,
    "hang_assigning": _hang_assigning,
    "fail_assignment": _fail_assignment,
    "delete_member": _delete_member,
    "garble_member": _garble_member,
    "delete_assignment": _delete_assignment,
    "garble_assignment": _garble_assignment,
}
ON_THE_GROUP: dict[str, Callable[[Any, Event], str | None]] = {
    "join": _join,
    "stranger": _stranger,
    "kill_beginning": _kill_beginning,
    "kill_publishing": _kill_publishing,
    "delete_candidate": _delete_candidate,
    "delete_group_state": _delete_group_state,
    "garble_group_state": _garble_group_state,
}
