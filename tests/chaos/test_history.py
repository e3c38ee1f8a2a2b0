"""The history that is read from the files of a run and from ZooKeeper's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.history import Commit, Deliveries, Delivery, GrowingFile, Ownership, group_history, parse_receipt
from tests.chaos.transaction_log import Create, Delete, EndSession, Put, Transaction, Write

pytestmark = pytest.mark.unit

OWNER, OFFSET = "/consumers/g/owners/t/0", "/consumers/g/offsets/t/0"


def transactions(*steps: tuple[int, tuple[Write, ...]]) -> list[Transaction]:
    """Return transactions of these sessions, one each second, with zxids from 1."""
    return [Transaction(zxid, zxid * 1000, session, writes) for zxid, (session, writes) in enumerate(steps, start=1)]


def member(pid: int) -> Create:
    return Create(f"/kiel-groups/g/members/{pid}", b'{"pid": %d}' % pid, True)


def test_a_claim_ends_with_a_release_or_with_its_session() -> None:
    """Each claim has its czxid, its process, and its start and end in boot time."""
    history = group_history(
        transactions(
            (1, (member(11),)),
            (2, (member(12),)),
            (1, (Create(OWNER, b"", True),)),
            (1, (Put(OFFSET, b"5"), Delete(OWNER))),
            (2, (Create(OWNER, b"", True),)),
            (2, (EndSession(),)),
            (1, (Create(OWNER, b"", True), Create("/consumers/g/owners/other/0", b"", True))),
        ),
        "g",
        "t",
        boot_minus_wall_s=100.0,
    )
    assert history.ownerships == [
        Ownership(0, 3, 1, 11, 103.0, 104.0),
        Ownership(0, 5, 2, 12, 105.0, 106.0),
        Ownership(0, 7, 1, 11, 107.0, None),
    ]


def test_commits_are_by_the_owner_or_by_another_session() -> None:
    """
    A session that releases the partition in the same transaction counts as the owner. Any session may create an offset.
    """
    history = group_history(
        transactions(
            (2, (Create(OFFSET, b"0", False),)),
            (1, (Create(OWNER, b"", True),)),
            (1, (Put(OFFSET, b"4"),)),
            (1, (Put(OFFSET, b"5"), Delete(OWNER))),
            (1, (Put(OFFSET, b"6"),)),
            (1, (Delete(OFFSET),)),
        ),
        "g",
        "t",
        boot_minus_wall_s=0.0,
    )
    assert history.commits == [
        Commit(0, 0, 1.0, True),
        Commit(0, 4, 3.0, True),
        Commit(0, 5, 4.0, True),
        Commit(0, 6, 5.0, False),
    ]
    assert history.deleted_offsets == [(0, 6.0)]


def test_deliveries_of_a_killed_process(tmp_path: Path) -> None:
    """An incomplete line of a killed process is ignored, and the process's last delivery has no end."""
    path = tmp_path / "history"
    file, deliveries = GrowingFile(path), Deliveries(11)
    assert file.new_lines() == []
    path.write_text("s 1.5 0 7 33 70\ne 1.6\ns 1.7 0 8 33 71\ns 1")
    deliveries.add(file.new_lines())
    assert deliveries.found == [Delivery(11, 0, 7, 33, 70, 1.5, 1.6), Delivery(11, 0, 8, 33, 71, 1.7, None)]
    path.write_text("s 1.5 0 7 33 70\ne 1.6\ns 1.7 0 8 33 71\ns 1.9 1 0 34 72\n")
    deliveries.add(file.new_lines())
    assert deliveries.found[2:] == [Delivery(11, 1, 0, 34, 72, 1.9, None)]


def test_a_line_of_the_producer_is_an_acknowledged_record() -> None:
    """The producer's line contains the record's number, partition, offset and time."""
    assert parse_receipt("2.25 70 0 7\n") == (70, 0, 7, 2.25)
