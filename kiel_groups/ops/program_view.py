"""The view of a group whose members are programs, such as workers, which share other work than partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import parse_object
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.round_contents import (
    RoundAssignment,
    RoundMember,
    RoundSettings,
    RoundState,
    program_type,
)
from kiel_groups.group.znodes.snapshot import Snapshot
from kiel_groups.group.znodes.worker_layout import WorkerLayout
from kiel_groups.model import CONNECT_TYPE

__all__ = ["ProgramView", "view_programs"]

_Value = TypeVar("_Value")

#: The version of the znodes of programs.
_VERSION = 2


@dataclass(frozen=True, slots=True)
class ProgramView:
    """
    The programs of a group at one moment.

    ``protocol_type`` is that of all members, "" if no znode has it. ``round`` is None before the first rebalance, and
    if brokers coordinate the group. ``members`` are in the order in which they have joined. ``workers`` is the number
    of live workers, whatever coordinates them. ``unreadable`` has an error text for each znode that cannot be parsed.
    """

    protocol_type: str
    round: RoundState | None
    members: tuple[RoundMember, ...]
    workers: int
    unreadable: tuple[str, ...]

    @property
    def are_workers(self) -> bool:
        """Whether the members are workers, which share connectors and their tasks."""
        return self.protocol_type == CONNECT_TYPE

    @property
    def size(self) -> int:
        """The number of members; workers that brokers coordinate have no member znodes."""
        return len(self.members) or self.workers

    @property
    def state(self) -> str:
        """The state in one word or two: ``empty``, ``by brokers``, ``joining`` or ``done``."""
        if not self.members:
            return "by brokers" if self.workers else "empty"
        return "joining" if self.round is None else self.round.state


def view_programs(layout: GroupLayout, znodes: Snapshot) -> ProgramView | None:
    """
    Return the view of the programs of a group, or None if it is a group of consumers.

    Args:
        layout: The paths of the group.
        znodes: The group's znodes.
    """
    workers = WorkerLayout(layout.group)
    paths = [path for path in znodes if path.startswith(f"{layout.root}/") and not znodes[path].closed]
    members = [path for path in paths if path.startswith(f"{layout.members}/")]
    shared = [path for path in (layout.config, layout.group_state) if path in paths]
    live_workers = sum(path.startswith(f"{workers.workers}/") for path in paths)
    settings_data, configuration = (
        znodes[path].data if path in paths else None for path in (layout.config, workers.config)
    )
    found_type = program_type(settings_data, configuration, has_workers=live_workers > 0)
    if found_type is None and not any(_is_of_programs(znodes[path].data, path) for path in (*shared, *members)):
        return None
    unreadable: list[str] = []

    def parsed(parse: Callable[[bytes, str], _Value], path: str) -> Iterator[_Value]:
        try:
            yield parse(znodes[path].data, path)
        except ProtocolError as error:
            unreadable.append(str(error))

    settings = list(parsed(RoundSettings.parse, layout.config)) if layout.config in shared else []
    states = list(parsed(RoundState.parse, layout.group_state)) if layout.group_state in shared else []
    found = [each for path in members for each in parsed(_parse_member, path)]
    for path in paths:
        if path.startswith(f"{layout.group_state}/"):
            # The text of the error counts only.
            _ = list(parsed(RoundAssignment.parse, path))
    types = [each.protocol_type for each in settings] or [each.offer.protocol_type for each in found]
    return ProgramView(
        protocol_type=types[0] if types else found_type or "",
        round=states[0] if states else None,
        members=tuple(sorted(found, key=lambda each: (each.started_at_ms, each.member_id))),
        workers=live_workers,
        unreadable=tuple(unreadable),
    )


def _parse_member(data: bytes, path: str) -> RoundMember:
    return RoundMember.parse(path.rpartition("/")[2], data, path)


def _is_of_programs(data: bytes, path: str) -> bool:
    """Return whether a znode of a group has the version that those of programs have."""
    try:
        return parse_object(data, path).get("version") == _VERSION
    except ProtocolError:
        return False
