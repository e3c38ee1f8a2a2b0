"""Draw the tables of legal moves as text: the phases of each state machine, with entry, duty, exit and next phases."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from tests.architecture.source import PACKAGE, tree

__all__ = ["MACHINES", "WIDTH", "Machine", "moves_picture"]

WIDTH = 100

_LEGEND = (
    "The states of kiel_groups and their legal moves. Any other move is a bug, and fails an assertion in",
    "the machine. Each phase has its entry (when it begins), its duty (what is done in it), its exit, and",
    "the phases that may follow.",
)
_ENTRIES = ("Entry", "Duty", "Exit")


@dataclass(frozen=True)
class Machine:
    """
    A state machine: its title, its module's path below ``kiel_groups``, and the name of its enumeration of phases.

    ``no_phase`` is what the absence of a phase means, for machines whose table has None.
    """

    title: str
    module: str
    phases: str
    no_phase: str = ""

    @property
    def path(self) -> Path:
        return PACKAGE / f"{self.module}.py"

    @property
    def members(self) -> type[Enum]:
        return cast(type[Enum], getattr(self._imported(), self.phases))

    @property
    def moves(self) -> Mapping[Any, Collection[Any]]:
        """The table: for each phase, the phases that may follow."""
        return cast(Mapping[Any, Collection[Any]], self._imported().MOVES)

    def _imported(self) -> Any:
        return import_module(f"kiel_groups.{self.module.replace('/', '.')}")

    def names(self, phases: Collection[Any]) -> list[str]:
        """Return the names of phases in the order of the table, with the absence of a phase last."""
        order = [*self.members, None]
        return [self.no_phase if each is None else each.value for each in order if each in phases]

    def comments(self) -> dict[str, str]:
        """Return the comment of each phase, by the phase's value."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        (body,) = (
            node.body for node in tree(self.path).body if isinstance(node, ast.ClassDef) and node.name == self.phases
        )
        values = [node for node in body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
        return {str(cast(ast.Constant, node.value).value): _comment_above(lines, node.lineno) for node in values}

    def summary(self) -> str:
        """Return the docstring of the enumeration as one paragraph."""
        return " ".join((self.members.__doc__ or "").split())


#: In the order of a member's work: its session, the leader, the claims, and what is done with a claimed partition.
MACHINES = (
    Machine("A session of a process in its group", "members/zookeeper/group_session", "SessionPhase"),
    Machine("A candidate in the election", "group/candidate", "ElectionPhase"),
    Machine("The leader", "group/leader_state", "LeaderPhase"),
    Machine("A claim of a partition", "group/claims", "Phase", no_phase="free"),
    Machine("The offsets of a claimed partition", "group/partition_offsets", "Phase", no_phase="not claimed"),
    Machine("A member of a group that brokers coordinate", "group/member_state", "Phase"),
    Machine("The fetch of a partition", "clients/fetch/partition_fetch", "Phase"),
)


def moves_picture() -> str:
    """Return all tables, the content of ``docs/moves.txt``."""
    lines = list(_LEGEND)
    for machine in MACHINES:
        lines += ["", *_table(machine)]
    return "\n".join(lines) + "\n"


def _table(machine: Machine) -> Iterator[str]:
    file = f"{machine.module}.py"
    comments = machine.comments()
    rows = [(phase.value, _described(comments[phase.value]), machine.moves[phase]) for phase in machine.members]
    if None in machine.moves:
        rows.insert(0, (machine.no_phase, [("", "no phase")], machine.moves[None]))
    first = max(len(name) for name, _, _ in rows)
    last = first + len("→ ")
    middle = WIDTH - first - last - 10
    yield machine.title + file.rjust(WIDTH - len(machine.title))
    yield from textwrap.wrap(machine.summary(), WIDTH)
    yield f"┌{'─' * (first + 2)}┬{'─' * (middle + 2)}┬{'─' * (last + 2)}┐"
    for at, (name, described, targets) in enumerate(rows):
        if at:
            yield f"├{'─' * (first + 2)}┼{'─' * (middle + 2)}┼{'─' * (last + 2)}┤"
        text = [line for key, words in described for line in _entry(key, words, middle)]
        arrows = [f"→ {target}" for target in machine.names(targets)]
        for number in range(max(len(text), len(arrows))):
            one = name if not number else ""
            two = text[number] if number < len(text) else ""
            three = arrows[number] if number < len(arrows) else ""
            yield f"│ {one.ljust(first)} │ {two.ljust(middle)} │ {three.ljust(last)} │"
    yield f"└{'─' * (first + 2)}┴{'─' * (middle + 2)}┴{'─' * (last + 2)}┘"


def _entry(key: str, words: str, width: int) -> list[str]:
    """Return the lines of an entry, a duty or an exit."""
    label = f"{key.lower():5}  " if key else ""
    return textwrap.wrap(words, width, initial_indent=label, subsequent_indent=" " * len(label))


def _described(comment: str) -> list[tuple[str, str]]:
    """Split a phase's comment into entry, duty and exit; a duty of "none" is left out."""
    parts = re.split(rf"\b({'|'.join(_ENTRIES)}): ", comment.replace("``", ""))
    pairs = zip(parts[1::2], (part.strip().removesuffix(".") for part in parts[2::2]), strict=True)
    return [(key, words) for key, words in pairs if (key, words) != ("Duty", "none")]


def _comment_above(lines: list[str], number: int) -> str:
    """Return the ``#:`` comment right above a line."""
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#: "):
            break
        found.insert(0, line.strip().removeprefix("#: "))
    return " ".join(found)
