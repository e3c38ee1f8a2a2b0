"""The demo's proof detects lost, misplaced and uncommitted records, and its input is numbered without a gap."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiel_groups.demo.records import (
    Receipt,
    ReceiptFile,
    foreign_lines,
    load_records,
    number_of,
    prove,
    received_number,
    visitor_of,
)
from kiel_groups.model import Record

pytestmark = pytest.mark.unit

SENT = {0: (0, 0), 1: (1, 0), 2: (1, 1)}
RECEIPTS = [Receipt(0, 0, 0), Receipt(1, 0, 1), Receipt(1, 1, 2)]
COMMITTED = {0: 1, 1: 2}


def test_a_proof_holds_if_all_records_are_received_and_committed() -> None:
    """
    The proof holds if all records are received and committed. Repeated deliveries are counted, and do not break it.
    """
    proof = prove(SENT, [*RECEIPTS, RECEIPTS[1], RECEIPTS[1]], COMMITTED)
    assert proof.holds
    assert (proof.repeated, proof.most_often) == (1, 3)


def test_a_missing_record_is_named() -> None:
    """A record without a receipt breaks the proof, although its offset is committed. The proof names the record."""
    proof = prove(SENT, RECEIPTS[:2], COMMITTED)
    assert not proof.holds
    assert proof.missing == (2,)


def test_a_record_with_another_offset_is_named() -> None:
    """
    A record received with an offset that the broker did not acknowledge breaks the proof. The proof names the receipt.
    """
    proof = prove(SENT, [*RECEIPTS, Receipt(0, 1, 2)], COMMITTED)
    assert not proof.holds
    assert proof.misplaced == (Receipt(0, 1, 2),)


@pytest.mark.parametrize("committed", [1, 3, None])
def test_a_committed_offset_that_is_not_the_end_of_the_log_is_named(committed: int | None) -> None:
    """A committed offset that is too low, too high or missing breaks the proof. The proof names the partition."""
    proof = prove(SENT, RECEIPTS, {0: 1, 1: committed})
    assert not proof.holds
    assert proof.uncommitted == {1: (committed, 2)}


def test_the_proof_ignores_records_that_the_demo_did_not_send() -> None:
    """A record that the demo did not send has no number, whatever its value is. The proof ignores its receipt."""
    for value in (b"/index.html", b"17", b"", None):
        record = Record("page-views", 0, 1, None, value)
        assert received_number(record, number_in_key=False) is None
        assert received_number(record, number_in_key=True) is None
    foreign = Receipt(0, 1, None)
    assert Receipt.parse(foreign.line().encode()) == foreign
    assert prove(SENT, [*RECEIPTS, foreign], COMMITTED).holds


def test_receipts_are_read_while_they_are_written(tmp_path: Path) -> None:
    """Receipts are read while they are written. An incomplete line is read once the rest of it is written."""
    path = tmp_path / "receipts"
    receipts = ReceiptFile(path)
    assert receipts.read_new() == 0
    path.write_text("0 0 7\n1 12")
    assert receipts.read_new() == 1
    with path.open("a") as file:
        file.write("3 8\n")
    assert receipts.read_new() == 2
    assert receipts.receipts == [Receipt(0, 0, 7), Receipt(1, 123, 8)]


def test_the_input_is_100_000_numbered_records() -> None:
    """
    The demo's input has 100,000 records. Their numbers start at 0 without a gap, and every record names its visitor.
    """
    records = load_records()
    assert [number_of(record) for record in records] == list(range(100_000))
    assert all(visitor_of(record).startswith(b"visitor-") for record in records)


def test_foreign_records_read_together_are_one_line_per_partition() -> None:
    """Records that the demo did not send are logged as one line for each partition, however many there are."""
    burst = [Receipt(3, offset, None) for offset in (7, 8, 9)]
    assert list(foreign_lines([*burst, Receipt(1, 5, None)])) == [
        "1 record that the demo did not send: partition 1, offset 5",
        "3 records that the demo did not send: partition 3, offsets 7 to 9",
    ]
