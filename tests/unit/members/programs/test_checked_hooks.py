"""What a program's hooks may return, and how each error names its hook."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, ItemsView, Iterator, Mapping
from typing import Any

import pytest

from kiel_groups.errors import AllocatorError, HookError
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.members.programs.checked_hooks import CheckedHooks, MessageSizes, StoredSizes, ZnodeSizes
from kiel_groups.model import GenerationToken
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.zookeeper import tasks as slow_step
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


def checked(program: Any, sizes: StoredSizes | None = None) -> CheckedHooks:
    return CheckedHooks(program, "g", sizes or MessageSizes())


class Unreadable(Mapping[str, bytes]):
    """A mapping of the program's own class, whose items cannot be read."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getitem__(self, key: str) -> bytes:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        return 1

    def items(self) -> ItemsView[str, bytes]:
        raise self._error

    def __repr__(self) -> str:
        raise self._error


class Pairless(Mapping[str, bytes]):
    """A mapping whose items are no pairs."""

    def __getitem__(self, key: str) -> bytes:
        return b""

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1

    def items(self) -> Any:
        return [5]


def released() -> memoryview:
    """Return a view whose bytes cannot be read any more."""
    view = memoryview(b"1")
    view.release()
    return view


def broken_list() -> Iterator[GroupProtocol]:
    """Yield one protocol, and fail."""
    yield GroupProtocol("p", b"")
    raise ValueError("no file")


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


UTF_8 = "expected a text that UTF-8 can encode, without lone surrogates"

IDS = "expected a mapping of member ids to bytes"


@pytest.mark.parametrize("sizes", [MessageSizes(), ZnodeSizes()], ids=["brokers", "zookeeper"])
@pytest.mark.parametrize(
    ("offered", "error"),
    [
        ([GroupProtocol("p\udcff", b"")], rf"returned a protocol named 'p\udcff' (str); {UTF_8} as its name"),
        (
            [GroupProtocol("ä" * 20_000, b"")],
            f"returned a protocol named '{'ä' * 59}… (str); expected a text of at most 32,767 bytes in UTF-8, not of"
            " 40,000 as its name",
        ),
        (broken_list(), f"returned an object (generator) whose items raised ValueError: no file; {LIST}"),
        (
            [GroupProtocol("p", released())],  # type: ignore[arg-type]
            "(memoryview) as the metadata of p; expected bytes that are not released",
        ),
    ],
    ids=["surrogate", "long", "iterator", "released"],
)
async def test_an_offer_that_only_one_coordination_could_store_is_illegal_in_both(
    offered: Any, error: str, sizes: StoredSizes
) -> None:
    """The text is the same, so a program that works with one coordination works with the other."""
    program = Program()
    # A generator can be read once only.
    program.offered = broken_list() if isinstance(offered, Iterator) else offered
    with pytest.raises(HookError) as found:
        await checked(program, sizes).protocols()
    assert str(found.value).startswith("group g: protocols() of Program returned ")
    assert str(found.value).endswith(error)


@pytest.mark.parametrize("sizes", [MessageSizes(), ZnodeSizes()], ids=["brokers", "zookeeper"])
@pytest.mark.parametrize(
    ("assigned", "error"),
    [
        ({"a\udcff": b"1"}, rf"returned 'a\udcff' (str) as a member id; {UTF_8}"),
        ({5: b"1"}, "returned 5 (int) as a member id; expected a non-empty text"),
        (
            {"x" * 40_000: b"1"},
            "… (str) as a member id; expected a text of at most 32,767 bytes in UTF-8, not of 40,000",
        ),
        ({"a": released()}, "(memoryview) as the assignment of a; expected bytes that are not released"),
        (Unreadable(ValueError("no")), f"returned an object (Unreadable) whose items raised ValueError: no; {IDS}"),
        (
            Unreadable(asyncio.CancelledError()),
            f"returned an object (Unreadable) whose items raised CancelledError: ; {IDS}",
        ),
        (Pairless(), "returned an object (Pairless) whose items raised TypeError: "),
        ({"a": Unreadable(ValueError("no"))}, "returned an object (Unreadable) as the assignment of a; expected bytes"),
    ],
    ids=["surrogate", "number", "long", "released", "items", "cancelled", "pairs", "repr"],
)
async def test_an_assignment_that_cannot_be_read_or_stored_is_illegal_in_both_coordinations(
    assigned: Any, error: str, sizes: StoredSizes
) -> None:
    """Objects of the program's own classes may raise while they are read; the hook is named all the same."""
    program = Program()
    program.assigned = assigned
    with pytest.raises(HookError) as found:
        await checked(program, sizes).perform_assignment(JOINED)
    assert str(found.value).startswith("group g: perform_assignment() of Program returned ")
    assert error in str(found.value)


async def test_an_error_of_this_package_from_a_collection_is_passed_on() -> None:
    """A mapping that is read lazily may say itself why there is no assignment, as its hook may."""
    program, error = Program(), AllocatorError("no capacity")
    program.assigned = Unreadable(error)
    with pytest.raises(AllocatorError) as found:
        await checked(program).perform_assignment(JOINED)
    assert found.value is error


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


@pytest.mark.parametrize(
    ("type_", "error"),
    [
        (None, "is None; expected a non-empty text"),
        ("", "is '' (str); expected a non-empty text"),
        (b"x", "is b'x' (bytes); expected a non-empty text"),
        ("x\udcff", rf"is 'x\udcff' (str); {UTF_8}"),
        ("x" * 40_000, "… (str); expected a text of at most 32,767 bytes in UTF-8, not of 40,000"),
    ],
    ids=["none", "empty", "bytes", "surrogate", "long"],
)
def test_a_program_needs_a_type(type_: object, error: str) -> None:
    """All members of a group have the same type, so there must be one that either coordination can store."""
    program = Program()
    program.protocol_type = type_
    with pytest.raises(HookError) as found:
        checked(program)
    assert str(found.value).startswith("group g: protocol_type of Program ")
    assert str(found.value).endswith(error)


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
