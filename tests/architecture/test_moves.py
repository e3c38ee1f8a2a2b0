"""The tables of legal moves: the page shows them all, each phase is described, and no move evades its assertion."""

from __future__ import annotations

import ast
from enum import Enum
from pathlib import Path

import pytest

from tests.architecture.moves import MACHINES, WIDTH, Machine, moves_picture
from tests.architecture.source import modules, name_of, tree

# One process reads the package, for all of these modules.
pytestmark = [pytest.mark.unit, pytest.mark.xdist_group("the package's sources")]

PICTURE = Path(__file__).parents[2] / "docs" / "moves.txt"


def test_the_picture_is_what_the_command_writes() -> None:
    """The tables in the documentation equal what ``python -m tests.architecture`` writes."""
    assert PICTURE.read_text(encoding="utf-8") == moves_picture()


def test_the_picture_fits_its_width() -> None:
    """The longest line of the tables has exactly ``WIDTH`` columns, like the picture of the layers."""
    assert max(map(len, moves_picture().splitlines())) == WIDTH


def test_every_state_machine_is_drawn() -> None:
    """Every enumeration of phases has a table in its module, and is listed in ``MACHINES``."""
    found = {
        (name_of(module), node.name)
        for module in modules()
        for node in tree(module).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Phase")
    }
    assert found == {(machine.module, machine.phases) for machine in MACHINES}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.title)
def test_each_phase_has_entry_duty_and_exit(machine: Machine) -> None:
    """The comment of each phase has these three, in this order."""
    comments = machine.comments()
    assert list(comments) == [phase.value for phase in machine.members]
    for comment in comments.values():
        places = [comment.find(f"{key}: ") for key in ("Entry", "Duty", "Exit")]
        assert places[0] == 0, comment
        assert places == sorted(places), comment
        assert min(places) == 0, comment


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.title)
def test_a_table_has_every_phase_and_reaches_it(machine: Machine) -> None:
    """A table has a row for each phase, no move from a phase to itself, and a way from its first row to each other."""
    phases: set[Enum | None] = {*machine.members, *([None] if machine.no_phase else [])}
    assert set(machine.moves) == phases
    assert not [source for source, targets in machine.moves.items() if source in targets]
    waiting = [next(iter(machine.moves))]
    found = set(waiting)
    while waiting:
        fresh = set(machine.moves[waiting.pop()]) - found
        found |= fresh
        waiting += fresh
    assert found == phases


def test_only_the_methods_that_assert_moves_set_a_phase() -> None:
    """An attribute ``phase`` is set by ``enter`` and ``_enter`` alone, after its first value: they assert the move."""
    setters = {
        f"{name_of(module)}.{function.name}"
        for module in modules()
        for function in ast.walk(tree(module))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "phase" and isinstance(node.ctx, ast.Store)
    }
    assert setters == {
        "clients/fetch/partition_fetch.enter",
        "members/zookeeper/group_session.__init__",
        "members/zookeeper/group_session._enter",
    }
