"""How operations are split into transactions."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.transactions import (
    MOST_BYTES,
    MOST_OPERATIONS,
    Check,
    Create,
    Delete,
    Operation,
    Put,
    chunks,
    size_of,
)

pytestmark = pytest.mark.unit


def test_a_chunk_has_a_bounded_number_of_operations() -> None:
    """
    A chunk has a bounded number of operations. All operations are kept in order, and only the last chunk is shorter.
    """
    operations: list[Operation] = [Delete(f"/{number}") for number in range(2 * MOST_OPERATIONS + 1)]
    split = list(chunks(operations))
    assert [operation for chunk in split for operation in chunk] == operations
    assert [len(chunk) for chunk in split] == [MOST_OPERATIONS, MOST_OPERATIONS, 1]
    assert list(chunks([])) == []


def test_a_chunk_has_a_bounded_size() -> None:
    """A chunk has a bounded size, so large data ends it early. An operation larger than a chunk has its own chunk."""
    half = bytes(MOST_BYTES // 2 - 100)
    operations: list[Operation] = [Create("/a", half), Put("/b", half), Put("/c", half), Put("/d", bytes(MOST_BYTES))]
    operations.append(Check("/e"))
    assert [len(chunk) for chunk in chunks(operations)] == [2, 1, 1, 1]
    assert sum(map(size_of, operations[:2])) <= MOST_BYTES
