"""What a program's hooks may return, and how each error names its hook."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.clients.coordinator.generation_gate import GenerationGate
from kiel_groups.clients.coordinator.member_hooks import JoinedGroup
from kiel_groups.clients.generic.checked_hooks import CheckedHooks
from kiel_groups.clients.generic.stored_sizes import MessageSizes
from kiel_groups.coordination.session import slow_step
from kiel_groups.errors import AllocatorError, HookError
from kiel_groups.model import GenerationToken
from kiel_groups.wire.groups.join_group import GroupProtocol
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

JOINED = JoinedGroup("p", "a", {"a": b"1", "b": b"2"})
GATE = GenerationGate(GenerationToken(1, "a"), 6_000, 0.0)

LIST = "expected a list of GroupProtocol(name, metadata), the preferred one first"


class Program:
    """A program whose hooks do what a test says; an exception is raised, and an event waited for."""

    protocol_type: Any = "programs"

    def __init__(self) -> None:
        self.offered: Any = [GroupProtocol("p", b"data")]
        self.assigned: Any = {"a": b"1", "b": b"2"}
        self.done: Any = None
        self.on_lost: Callable[[], Any] = lambda: None

    async def protocols(self) -> Any:
        return await result(self.offered)

    async def perform_assignment(self, joined: JoinedGroup) -> Any:
        return await result(self.assigned)

    async def complete(self, gate: object, joined: JoinedGroup, assignment: bytes) -> None:
        await result(self.done)

    async def prepare(self, gate: object) -> None:
        await result(self.done)

    def lost(self, gate: object) -> Any:
        return self.on_lost()


async def result(given: Any) -> Any:
    if isinstance(given, BaseException):
        raise given
    if isinstance(given, asyncio.Event):
        await given.wait()
    return given


def checked(program: Any) -> CheckedHooks:
    return CheckedHooks(program, "g", MessageSizes())


async def test_legal_results_are_passed_on_as_bytes() -> None:
    """Any kind of bytes is accepted, and any iterable of protocols and mapping of assignments."""
    program = Program()
    program.offered = (GroupProtocol(name, data) for name, data in [("p", bytearray(b"1")), ("q", memoryview(b"2"))])
    program.assigned = {"a": bytearray(b"1")}
    hooks = checked(program)
    assert hooks.protocol_type == "programs"
    assert await hooks.protocols() == [GroupProtocol("p", b"1"), GroupProtocol("q", b"2")]
    assert await hooks.perform_assignment(JOINED) == {"a": b"1"}
    await hooks.complete(GATE, JOINED, b"1")
    await hooks.prepare(GATE)
    hooks.lost(GATE)


@pytest.mark.parametrize(
    ("offered", "error"),
    [
        (None, f"returned None; {LIST}"),
        ("p", f"returned 'p' (str); {LIST}"),
        ({"p": b""}, f"returned {{'p': b''}} (dict); {LIST}"),
        (5, f"returned 5 (int); {LIST}"),
        ([], f"returned no protocol; expected at least one, which all members know: {LIST.removeprefix('expected ')}"),
        ([("p", b"")], f"returned ('p', b'') (tuple) in its list; {LIST}"),
        ([GroupProtocol("", b"")], "returned a protocol named '' (str); expected a non-empty text as its name"),
        ([GroupProtocol(5, b"")], "returned a protocol named 5 (int); expected"),  # type: ignore[arg-type]
        (
            [GroupProtocol("p", "text")],  # type: ignore[arg-type]
            "returned 'text' (str) as the metadata of p; expected bytes; encode text and objects",
        ),
        ([GroupProtocol("p", None)], "returned None as the metadata of p; expected bytes"),  # type: ignore[arg-type]
        ([GroupProtocol("p", b""), GroupProtocol("p", b"")], "returned p twice; expected each name once"),
        ([GroupProtocol("p", bytes(2_000_000))], "what this member offers (p) takes 1953 KiB in its coordinator's"),
        (ValueError("no file"), "raised ValueError: no file"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
async def test_an_illegal_offer_names_its_hook(offered: Any, error: str) -> None:
    """The error says what was given and what was expected."""
    program = Program()
    program.offered = offered
    with pytest.raises(HookError) as found:
        await checked(program).protocols()
    assert str(found.value).startswith("group g: protocols() of Program")
    assert error in str(found.value)
    assert found.value.__cause__ is (offered if isinstance(offered, Exception) else None)


@pytest.mark.parametrize(
    ("assigned", "error"),
    [
        (None, "returned None; expected a mapping of member ids to bytes"),
        ([b"1"], "returned [b'1'] (list); expected a mapping of member ids to bytes"),
        (
            {"a": b"1", "b": "x" * 99},
            f"returned '{'x' * 59}… (str) as the assignment of b; expected bytes; encode text",
        ),
        ({"a": None}, "returned None as the assignment of a; expected bytes"),
        ({"a": bytes(1_000_000)}, "the metadata and the assignments of 2 members take 977 KiB in its coordinator's"),
        (KeyError("x"), "raised KeyError: 'x'"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
async def test_an_illegal_assignment_names_its_hook(assigned: Any, error: str) -> None:
    """The error names the member whose assignment is none."""
    program = Program()
    program.assigned = assigned
    with pytest.raises(HookError) as found:
        await checked(program).perform_assignment(JOINED)
    assert str(found.value).startswith("group g: perform_assignment() of Program")
    assert error in str(found.value)


async def test_assignments_of_unknown_members_are_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the ids; it comes again only for others."""
    program = Program()
    hooks = checked(program)
    for assigned in ({"a": b"1", "x": b"2"}, {"a": b"1", "x": b"2"}, {"a": b"1", "y": b"2"}):
        program.assigned = assigned
        assert await hooks.perform_assignment(JOINED) == {"a": b"1"}
    warnings = [record.message for record in caplog.records]
    assert [line.rpartition(" ")[2] for line in warnings] == ["x", "y"]
    assert "group g: perform_assignment() of Program has assigned to 1 unknown id" in warnings[0]


@pytest.mark.parametrize("hook", ["complete", "prepare", "lost"])
async def test_an_error_of_another_hook_names_it(hook: str) -> None:
    """Its cause is the program's own error."""
    program, error = Program(), ValueError("broken")
    program.done = error

    def raises() -> None:
        raise error

    program.on_lost = raises
    hooks = checked(program)
    with pytest.raises(HookError, match=rf"group g: {hook}\(\) of Program raised ValueError: broken") as found:
        await called(hooks, hook)
    assert found.value.__cause__ is error


async def called(hooks: CheckedHooks, hook: str) -> None:
    """Call a hook."""
    match hook:
        case "protocols":
            await hooks.protocols()
        case "perform_assignment":
            await hooks.perform_assignment(JOINED)
        case "complete":
            await hooks.complete(GATE, JOINED, b"")
        case "prepare":
            await hooks.prepare(GATE)
        case _:
            hooks.lost(GATE)


@pytest.mark.parametrize("hook", ["complete", "prepare", "lost", "perform_assignment", "protocols"])
async def test_an_error_of_this_package_is_passed_on(hook: str) -> None:
    """A program may say itself why it cannot go on."""
    program, error = Program(), AllocatorError("no capacity")
    program.done = program.assigned = program.offered = error

    def raises() -> None:
        raise error

    program.on_lost = raises
    hooks = checked(program)
    with pytest.raises(AllocatorError) as found:
        await called(hooks, hook)
    assert found.value is error


async def test_hooks_of_the_wrong_kind_are_named() -> None:
    """A hook that should be a coroutine and is not, or the other way round, is an error that says so."""

    class Plain(Program):
        def protocols(self) -> Any:  # type: ignore[override]
            return [GroupProtocol("p", b"")]

    with pytest.raises(HookError, match=r"protocols\(\) of Plain returned .* define it as async def protocols"):
        await checked(Plain()).protocols()

    class Async(Program):
        async def lost(self, gate: object) -> None: ...  # type: ignore[override]

    with pytest.raises(HookError, match=r"lost\(\) of Async returned a coroutine; .* define it without async"):
        checked(Async()).lost(GATE)


@pytest.mark.parametrize("type_", [None, "", b"x"])
def test_a_program_needs_a_type(type_: object) -> None:
    """All members of a group have the same type, so there must be one."""
    program = Program()
    program.protocol_type = type_
    with pytest.raises(HookError, match=rf"protocol_type of Program is {type_!r}; expected a non-empty text"):
        checked(program)


def test_missing_hooks_are_named() -> None:
    """A program that lacks hooks finds out when it starts, not in the first rebalance."""

    class Partial:
        protocol_type = "programs"
        lost = None

        async def protocols(self) -> None: ...

    with pytest.raises(HookError, match=r"\(Partial\) have no method perform_assignment, complete, prepare, lost"):
        checked(Partial())


@pytest.mark.parametrize(
    ("hook", "waits"),
    [
        ("protocols", "this member joins when it has returned"),
        ("perform_assignment", "no member has an assignment before it returns"),
        ("prepare", "the rebalance, or the leave, waits for it"),
    ],
)
async def test_a_hook_that_hangs_is_warned_of(
    hook: str, waits: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says which hook is waited for, and what waits, until the hook ends."""
    monkeypatch.setattr(slow_step, "FIRST_S", 0.01)
    program, done = Program(), asyncio.Event()
    program.offered = program.assigned = program.done = done
    running = asyncio.ensure_future(called(checked(program), hook))
    await eventually(lambda: len(caplog.records) >= 2, "two warnings")
    assert {(record.levelno, record.message) for record in caplog.records} == {
        (logging.WARNING, f"group g: {hook}() of Program has run for 0 s; {waits}")
    }
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_work_in_complete_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing waits for ``complete``, which may work as long as the assignment lasts."""
    monkeypatch.setattr(slow_step, "FIRST_S", 0.0)
    program, done = Program(), asyncio.Event()
    program.done = done
    asyncio.get_running_loop().call_later(0.05, done.set)
    await checked(program).complete(GATE, JOINED, b"")
    assert not caplog.records


@pytest.mark.parametrize("hook", ["protocols", "perform_assignment", "complete", "prepare"])
async def test_a_hook_that_awaits_a_cancelled_task_has_raised(hook: str) -> None:
    """The error would otherwise end the member's own task, without a word."""
    program = Program()
    program.offered = program.assigned = program.done = asyncio.CancelledError()
    hooks = checked(program)
    calls: dict[str, Callable[[], Any]] = {
        "protocols": hooks.protocols,
        "perform_assignment": lambda: hooks.perform_assignment(JOINED),
        "complete": lambda: hooks.complete(GATE, JOINED, b""),
        "prepare": lambda: hooks.prepare(GATE),
    }
    with pytest.raises(HookError, match=rf"{hook}\(\) of Program raised CancelledError"):
        await calls[hook]()


async def test_a_hook_that_the_member_cancels_is_cancelled() -> None:
    """Also if it was cancelled before it has waited."""
    program = Program()
    program.done = asyncio.Event()
    preparing = asyncio.ensure_future(checked(program).prepare(GATE))
    await asyncio.sleep(0)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
