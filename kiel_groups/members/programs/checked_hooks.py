"""Wrap the hooks of a program: check that each result has the right type, and is small enough to be stored."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias, TypeVar, cast

from kiel_groups.errors import HookError, KielGroupsError
from kiel_groups.group.znodes.transactions import LARGEST_BYTES
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup, MemberHooks
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.wire.primitives import LONGEST_STRING
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.tasks import SlowStep

log = logging.getLogger(__name__)


#: The largest data of one member, as they are stored. The rest of a znode names the member and the generation. The
#: default of the brokers' ``message.max.bytes`` is 1,000,000 bytes or a little more, so the same number fits both.
_LARGEST = LARGEST_BYTES - 4_096

#: What a coordinator stores for each member beside the data: its id, its client, its host, and its timeouts.
_MEMBER_BYTES = 512

_ADVICE = "store larger data elsewhere, and offer or assign its place"


class ZnodeSizes:
    """
    Checks that ZooKeeper can store the data of programs: each member's offer and each assignment has its own znode,
    with bytes in base64.
    """

    def excess_of_offer(self, protocols: Sequence[GroupProtocol]) -> str:
        """Return why the protocols with which a member joins do not fit in a znode, or ""."""
        size = sum(len(json.dumps(name)) + _in_base64(metadata) for name, metadata in protocols)
        return _excess(_offer(protocols), size, "in ZooKeeper")

    def excess_of_assignments(self, metadata: Mapping[str, bytes], assignments: Mapping[str, bytes]) -> str:
        """Return which of a leader's assignments does not fit in a znode, or "". The metadata are stored already."""
        for member_id, assignment in assignments.items():
            if what := _excess(f"the assignment of {member_id} takes", _in_base64(assignment), "in ZooKeeper"):
                return what
        return ""


class MessageSizes:
    """
    Checks that brokers can store the data of programs: the coordinator stores a group as one message with all metadata
    and all assignments.

    The coordinator accepts any join. If the message is larger than ``message.max.bytes``, the coordinator refuses the
    leader's sync without a reason. So the leader checks the sum first.
    """

    def excess_of_offer(self, protocols: Sequence[GroupProtocol]) -> str:
        """Return why the protocols with which a member joins do not fit in a message, or ""."""
        size = sum(len(name.encode()) + len(metadata) for name, metadata in protocols)
        return _excess(_offer(protocols), size, "in its coordinator's message")

    def excess_of_assignments(self, metadata: Mapping[str, bytes], assignments: Mapping[str, bytes]) -> str:
        """Return why all metadata and all assignments together do not fit in a message, or ""."""
        size = sum(len(data) + _MEMBER_BYTES for data in metadata.values()) + sum(map(len, assignments.values()))
        what = f"the metadata and the assignments of {counted(metadata, 'member')} take"
        return _excess(what, size, "in its coordinator's message")


StoredSizes: TypeAlias = ZnodeSizes | MessageSizes


def _in_base64(data: bytes) -> int:
    return (len(data) + 2) // 3 * 4


def _offer(protocols: Sequence[GroupProtocol]) -> str:
    return f"what this member offers ({some(name for name, _ in protocols)}) takes"


def _excess(what: str, size: int, place: str) -> str:
    if size <= _LARGEST:
        return ""
    return f"{what} {size >> 10} KiB {place}; expected at most {_LARGEST >> 10}; {_ADVICE}"


# The hooks of a program, with a check of what each returns: only this part knows what a legal result is.
#
# The hooks belong to the users of this package. An illegal result is found here, before anything of it is sent or
# written. So it fails the member in the same way as a hook that raises, whatever coordinates the group.


_HOOKS = ("protocols", "perform_assignment", "complete", "prepare", "lost")

_BYTES = (bytes, bytearray, memoryview)

_ReadT = TypeVar("_ReadT")

#: The effect on the group while a hook runs, in words for the log. Nothing waits for ``complete``.
_WAITING = {
    "protocols": "this member joins when it has returned",
    "perform_assignment": "no member has an assignment before it returns",
    "prepare": "the rebalance, or the leave, waits for it",
}


class CheckedHooks:
    """
    Calls a program's hooks for its member, and checks their results; see ``MemberHooks``.

    Errors of this package that a hook raises are passed on. Other errors, and illegal results, become a ``HookError``
    that names the hook.

    Args:
        hooks: The hooks of the program.
        group: The group's name.
        sizes: Checks that results can be stored.

    Raises:
        HookError: A hook is missing, or ZooKeeper or brokers could not store the protocol type.
    """

    def __init__(self, hooks: MemberHooks, group: str, sizes: StoredSizes) -> None:
        self._hooks = hooks
        self._group = group
        self._sizes = sizes
        self._program = type(hooks).__name__
        #: The ids that the last warning about unknown members has named.
        self._unknown: frozenset[str] = frozenset()
        missing = [name for name in _HOOKS if not callable(getattr(hooks, name, None))]
        if missing:
            raise HookError(
                f"group {group}: the hooks ({self._program}) have no method {', '.join(missing)}; expected the methods"
                " of kiel_groups.MemberHooks"
            )
        type_: Any = getattr(hooks, "protocol_type", None)
        if expected := _expected_text(type_):
            raise HookError(f"group {group}: protocol_type of {self._program} is {_shown(type_)}; expected {expected}")
        self._protocol_type: str = type_

    @property
    def protocol_type(self) -> str:
        """The protocol type of the program."""
        return self._protocol_type

    async def protocols(self) -> Sequence[GroupProtocol]:
        """
        Return the program's protocols.

        Raises:
            HookError: The hook has raised an error, or its result is not a list of at least one protocol with different
                names and metadata in bytes, or the protocols are too large.
        """
        offered = await self._called("protocols", self._hooks.protocols)
        expected = "a list of GroupProtocol(name, metadata), the preferred one first"
        if isinstance(offered, (str, bytes, Mapping)) or not isinstance(offered, Iterable):
            raise self._illegal("protocols", _shown(offered), expected)
        found: dict[str, GroupProtocol] = {}
        for each in self._read("protocols", offered, lambda: list(offered), expected):
            if not isinstance(each, GroupProtocol):
                raise self._illegal("protocols", f"{_shown(each)} in its list", expected)
            name, metadata = cast("tuple[Any, object]", each)
            if why := _expected_text(name):
                raise self._illegal("protocols", f"a protocol named {_shown(name)}", f"{why} as its name")
            if name in found:
                raise self._illegal("protocols", f"{name} twice", "each name once")
            found[name] = GroupProtocol(name, self._bytes("protocols", metadata, f"the metadata of {name}"))
        if not found:
            raise self._illegal("protocols", "no protocol", f"at least one, which all members know: {expected}")
        protocols = list(found.values())
        if what := self._sizes.excess_of_offer(protocols):
            raise HookError(f"group {self._group}: protocols() of {self._program}: {what}")
        return protocols

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        """
        Return the program's assignments. Leave out assignments of unknown members, with a warning.

        Raises:
            HookError: The hook has raised an error, or its result is not a mapping of member ids to bytes, or the
                result is too large.
        """
        assigned = await self._called("perform_assignment", self._hooks.perform_assignment, joined)
        expected = "a mapping of member ids to bytes"
        if not isinstance(assigned, Mapping):
            raise self._illegal("perform_assignment", _shown(assigned), expected)
        found = self._read("perform_assignment", assigned, lambda: dict(assigned.items()), expected)
        assignments: dict[str, bytes] = {}
        for member_id, assignment in found.items():
            if why := _expected_text(member_id):
                raise self._illegal("perform_assignment", f"{_shown(member_id)} as a member id", why)
            what = f"the assignment of {member_id}"
            assignments[member_id] = self._bytes("perform_assignment", assignment, what)
        self._report_unknown(assignments.keys() - joined.members.keys())
        assignments = {member: data for member, data in assignments.items() if member in joined.members}
        if what := self._sizes.excess_of_assignments(joined.members, assignments):
            raise HookError(f"group {self._group}: perform_assignment() of {self._program}: {what}")
        return assignments

    def _report_unknown(self, unknown: Set[str]) -> None:
        if unknown and unknown != self._unknown:
            log.warning(
                "group %s: perform_assignment() of %s has assigned to %s, which the generation has no member of; the"
                " work that these assignments name is done by no member: %s",
                self._group,
                self._program,
                counted(unknown, "unknown id"),
                some(sorted(unknown)),
            )
        self._unknown = frozenset(unknown)

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        """Call the program's ``complete``, and wait until it has returned."""
        await self._called("complete", self._hooks.complete, gate, joined, assignment)

    async def prepare(self, gate: GenerationGate) -> None:
        """Call the program's ``prepare``, and wait until it has returned."""
        await self._called("prepare", self._hooks.prepare, gate)

    def lost(self, gate: GenerationGate) -> None:
        """Call the program's ``lost``."""
        try:
            returned = cast("Callable[[GenerationGate], object]", self._hooks.lost)(gate)
        except KielGroupsError:
            raise
        except Exception as error:
            raise self._raised("lost", error) from error
        if inspect.iscoroutine(returned):
            returned.close()
            raise self._illegal("lost", "a coroutine", "a plain method that acts at once; define it without async")

    async def _called(self, name: str, hook: Callable[..., Awaitable[Any]], *args: object) -> Any:
        """Call a hook, and return its result. For hooks in ``_WAITING``, log warnings while the hook runs for long."""
        task = asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        try:
            awaitable = hook(*args)
            if not inspect.isawaitable(awaitable):
                raise self._illegal(name, _shown(awaitable), f"a coroutine; define it as async def {name}")
            if name not in _WAITING:
                return await awaitable
            with SlowStep(lambda seconds: self._warn(name, seconds)):
                return await awaitable
        except KielGroupsError:
            raise
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling() > cancelled:
                raise
            # The member has not cancelled the hook: it has awaited a task that was cancelled.
            raise self._raised(name, error) from error
        except Exception as error:
            raise self._raised(name, error) from error

    def _read(self, name: str, returned: object, read: Callable[[], _ReadT], expected: str) -> _ReadT:
        """Read a collection that a hook has returned. If reading raises an error, raise a HookError."""
        try:
            return read()
        except KielGroupsError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            given = f"an object ({type(returned).__name__}) whose items raised {type(error).__name__}: {error}"
            raise self._illegal(name, given, expected) from error

    def _bytes(self, name: str, data: object, role: str) -> bytes:
        """Return a copy, as bytes, of data that a hook has returned, such as a bytearray."""
        if not isinstance(data, _BYTES):
            raise self._illegal(name, f"{_shown(data)} as {role}", "bytes; encode text and objects")
        try:
            return bytes(data)
        except ValueError as error:
            raise self._illegal(name, f"{_shown(data)} as {role}", "bytes that are not released") from error

    def _warn(self, name: str, seconds: float) -> None:
        log.warning(
            "group %s: %s() of %s has run for %.0f s; %s", self._group, name, self._program, seconds, _WAITING[name]
        )

    def _raised(self, name: str, error: BaseException) -> HookError:
        return HookError(f"group {self._group}: {name}() of {self._program} raised {type(error).__name__}: {error}")

    def _illegal(self, name: str, given: str, expected: str) -> HookError:
        return HookError(f"group {self._group}: {name}() of {self._program} returned {given}; expected {expected}")


def _expected_text(given: object) -> str:
    """Return "" if ZooKeeper and brokers can store ``given``, else a description of the texts that they can store."""
    if not isinstance(given, str) or not given:
        return "a non-empty text"
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        return "a text that UTF-8 can encode, without lone surrogates"
    # Brokers have 16 bits for the length. ZooKeeper could store more, but a program should work with either.
    return "" if size <= LONGEST_STRING else f"a text of at most {LONGEST_STRING:,} bytes in UTF-8, not of {size:,}"


def _shown(value: object) -> str:
    """Return the text of a value with its type, shortened, for an error."""
    if value is None:
        return "None"
    try:
        text = repr(value)
    except Exception:  # The program's code may raise anything.
        text = "an object"
    return f"{text if len(text) <= 60 else text[:60] + '…'} ({type(value).__name__})"
