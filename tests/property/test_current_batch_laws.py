"""
The offsets of a batch that a loop is delivering, compared with a model that writes them for each record.

``CurrentBatch`` derives position, finished offset and the record in flight from a cursor. The model keeps all three up
to date at each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kiel_groups.clients.delivery.in_flight import CurrentBatch
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.group.partition_offsets import PartitionOffsets, StartOrigin
from kiel_groups.model import Record, TopicPartition

pytestmark = pytest.mark.property

P0 = TopicPartition("t", 0)


@dataclass
class Unit:
    """A record, and the offsets of the records after it that the deserializer skipped."""

    record: Record
    #: The position before the record is delivered.
    before: int
    skipped: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The position once the record is delivered."""
        return (self.skipped or [self.record.offset])[-1] + 1


class Deliveries(RuleBasedStateMachine):
    """A loop over the batches of one partition, with everything that may happen to a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = CurrentBatch()
        self.state = PartitionOffsets(0, 0, 7, 10, StartOrigin.STORED, 10, 10, 10, 1)
        self.position = self.finished = 10
        self.rest: list[Unit] = []
        self.in_flight: Unit | None = None
        self.counts = self.dropped = False

    @rule(records=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=8))
    def start(self, records: list[tuple[int, bool]]) -> None:
        """Ask for a record although the batch is used up: the next one comes. Each offset follows after a gap."""
        if self.rest:
            return
        self.finish()
        raw, readable, offset = [], [], self.position - 1
        for step, is_skipped in records:
            offset += step
            raw.append(Record("t", 0, offset, None, b""))
            if not is_skipped:
                unit = Unit(raw[-1], self.position if not readable else readable[-1].end)
                readable.append(unit)
            elif readable:
                readable[-1].skipped.append(offset)
            else:
                self.position = offset + 1
                # A commit may have counted a record that was put back after it.
                self.finished = max(self.finished, offset + 1)
        self.batch.start(FetchedBatch(P0, raw, 1, 1), self.state, [unit.record for unit in readable])
        self.rest, self.counts, self.dropped = readable, True, False

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        """Take records by the cursor."""
        for _, record in zip(range(count), self.batch.cursor, strict=False):
            self._finish()
            self.in_flight = self.rest.pop(0)
            assert record is self.in_flight.record
            if self.counts:
                self.position = self.in_flight.end
            if not self.rest:
                break

    def _finish(self) -> None:
        if self.in_flight is not None and self.counts:
            self.finished = max(self.finished, self.in_flight.end)
        self.in_flight = None

    @rule()
    def finish(self) -> None:
        self.batch.finish()
        self._finish()

    @rule()
    def count(self) -> None:
        """A commit counts the record in flight."""
        self.batch.count()
        if self.in_flight is not None and self.counts:
            self.finished = max(self.finished, self.in_flight.end)

    @rule()
    def put_back(self) -> None:
        """The loop was left by an exception."""
        to_fetch = self.batch.put_back()
        unit, self.in_flight = self.in_flight, None
        assert to_fetch == (P0 if unit and self.counts and self.dropped else None)
        if unit is None or not self.counts:
            return
        if self.dropped:
            self.counts, self.position = False, unit.record.offset
        else:
            self.rest.insert(0, unit)
            self.position = unit.before

    @rule(takes=st.booleans())
    def drop(self, takes: bool) -> None:
        """A revocation or a pause."""
        expected = [offset for unit in self.rest for offset in (unit.record.offset, *unit.skipped)]
        if takes:
            rest = self.batch.take_rest(P0)
            assert (rest is None) == (not self.rest)
            if rest is None:
                return
            assert [record.offset for record in rest[0].records[rest[1] :]] == expected
        else:
            self.batch.drop([P0])
        self.rest, self.dropped = [], True

    @rule(ahead=st.integers(-2, 6))
    def truncate(self, ahead: int) -> None:
        """The log ends at an offset before or behind the position."""
        end = self.position + ahead
        left = [
            Unit(unit.record, unit.before, [offset for offset in unit.skipped if offset < end])
            for unit in self.rest
            if unit.record.offset < end
        ]
        gone = sum(1 + len(unit.skipped) for unit in self.rest) - sum(1 + len(unit.skipped) for unit in left)
        assert self.batch.cut_off(P0, end) == gone
        self.batch.truncate(P0, end)
        self.rest = left
        if self.in_flight is not None and self.in_flight.record.offset >= end:
            self.counts = False

    @rule()
    def stop_counting(self) -> None:
        """A loss: what is in flight does not count any more, and the rest is dropped."""
        self.drop(False)
        self.batch.stop_counting([P0])
        self.counts = False

    @rule(offset=st.integers(0, 40))
    def seek(self, offset: int) -> None:
        """A seek, which sets both offsets and drops the rest."""
        self.state.position = self.state.finished = offset
        self.drop(False)
        self.counts, self.position, self.finished = False, offset, offset

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        assert (self.state.position, self.state.finished) == (self.position, self.finished)
        assert self.batch.record is (None if self.in_flight is None else self.in_flight.record)
        assert self.batch.used_up == (not self.rest)
        assert self.batch.in_flight_of([P0]) == (frozenset() if self.in_flight is None else {P0})
        if self.in_flight is not None:
            assert self.batch.fencing_token_of(self.in_flight.record) == (7 if self.counts else None)


TestDeliveries = Deliveries.TestCase
