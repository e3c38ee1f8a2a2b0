"""Tables of legal moves that record the moves of a state machine during a test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest

__all__ = ["RecordedMoves", "assert_moves_of_table", "moves_in", "record_moves"]


class RecordedMoves(Mapping[Any, Collection[Any]]):
    """
    A table of legal moves in place of a machine's own.

    ``seen`` has the legal moves that the machine has made. ``forbidden`` is a move that the table lacks although the
    machine's own table has it.
    """

    def __init__(self, moves: Mapping[Any, Collection[Any]]) -> None:
        self._moves = moves
        self.seen: set[tuple[Any, Any]] = set()
        self.forbidden: tuple[Any, Any] | None = None

    def __getitem__(self, source: Any) -> Collection[Any]:
        return _Targets(self, source, self._moves[source])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._moves)

    def __len__(self) -> int:
        return len(self._moves)


class _Targets(Collection[Any]):
    """The legal moves from one phase."""

    def __init__(self, table: RecordedMoves, source: Any, targets: Collection[Any]) -> None:
        self._table = table
        self._source = source
        self._targets = targets

    def __contains__(self, target: object) -> bool:
        move = (self._source, target)
        is_legal = target in self._targets and move != self._table.forbidden
        if is_legal:
            self._table.seen.add(move)
        return is_legal

    def __iter__(self) -> Iterator[Any]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)


def record_moves(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> RecordedMoves:
    """Have a module use a table that records the moves."""
    table = RecordedMoves(module.MOVES)
    monkeypatch.setattr(module, "MOVES", table)
    return table


def moves_in(module: ModuleType) -> set[tuple[Any, Any]]:
    """Return the moves of a module's table."""
    return {(source, target) for source, targets in module.MOVES.items() for target in targets}


def assert_moves_of_table(monkeypatch: pytest.MonkeyPatch, module: ModuleType, play: Callable[[], None]) -> None:
    """Check that ``play`` makes all moves of a module's table: none is missing there, and none is superfluous."""
    legal = moves_in(module)
    recorded = record_moves(monkeypatch, module)
    play()
    assert recorded.seen == legal
