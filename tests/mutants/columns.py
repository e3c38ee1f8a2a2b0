"""Mutants of ``consume_batches()``: parts of runs as columns, how they are delivered, and what an application sees."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_BATCH = "clients/fetch/fetched_batch.py"
_PARTITION = "clients/fetch/partition_fetch.py"
_OWNED_RECORDS = "clients/delivery/owned_records.py"
_VALUE_DELIVERY = "clients/delivery/value_delivery.py"
_ACCESS = "clients/methods/record_access.py"
_RECORD_COLUMNS = "wire/message_sets/record_columns.py"
_ARROW = "wire/message_sets/arrow_arrays.py"
_RUNS = "wire/message_sets/message_runs.py"

_BATCH_TESTS = "tests/unit/clients/fetch/test_fetched_columns.py"
_BATCH_LAWS = "tests/property/test_fetched_batch_laws.py"
_DELIVERY_TESTS = "tests/unit/clients/delivery/test_column_delivery.py"
_METHOD_TESTS = "tests/unit/clients/methods/test_record_access.py"
_COLUMNS_TESTS = "tests/unit/wire/message_sets/test_record_columns.py"

MUTANTS = (
    # Parts of runs
    Mutant(
        "a part of a run has the columns of the whole run",
        _BATCH,
        "self._content.columns(), self._rows)",
        "self._content.columns(), range(len(self._content)))",
        _BATCH_TESTS,
    ),
    Mutant(
        "a limit makes the records of a run",
        _PARTITION,
        "return head.part(start, until)",
        "return head._replace(records=head.records[start:until])",
        _BATCH_TESTS,
    ),
    Mutant(
        "each part of a run is decoded again",
        _BATCH,
        "changed._content, changed._rows = self._content, self._rows[start:stop]",
        "changed._content, changed._rows = _Content(self._content.messages), self._rows[start:stop]",
        _BATCH_TESTS,
    ),
    Mutant(
        "the records of a part are those of the whole run",
        _BATCH,
        "        if len(records) != len(self._rows):\n",
        "        if not records:\n",
        _BATCH_TESTS,
    ),
    Mutant(
        "records before a truncated end are counted as dropped because they are delivered",
        _PARTITION,
        "left = max(taken, item.count_before(end))",
        "left = item.count_before(end)",
        _BATCH_TESTS,
    ),
    Mutant(
        "a part of a run is truncated by the rows of the run",
        _BATCH,
        "self._content.row_of(offset) - self._rows.start",
        "self._content.row_of(offset)",
        _BATCH_TESTS,
    ),
    Mutant(
        "a part of a run knows the offsets of the run only",
        _BATCH,
        "return self._content.offset_of(self._rows[number])",
        "return self._content.offset_of(number)",
        _BATCH_LAWS,
    ),
    Mutant(
        "columns of a run without the compiled decoder end one offset early",
        _RUNS,
        "return columns_of(self._records, self.last_offset + 1)",
        "return columns_of(self._records[:-1], self.last_offset)",
        _BATCH_LAWS,
    ),
    # Delivery
    Mutant(
        "an exit while columns are made loses their run",
        _OWNED_RECORDS,
        "        with self.kept(fetched):\n            columns",
        "        if fetched:\n            columns",
        _DELIVERY_TESTS,
    ),
    Mutant(
        "columns without a claim have a fencing token",
        _OWNED_RECORDS,
        "fetched.columns(state.token or None)",
        "fetched.columns(state.token)",
        _DELIVERY_TESTS,
    ),
    Mutant(
        "columns are not counted by the limit of records",
        _VALUE_DELIVERY,
        "left = None if left is None else left - len(records)",
        "left = None if left is None else left - (len(records) if isinstance(records, list) else 0)",
        _DELIVERY_TESTS,
    ),
    # The method
    Mutant(
        "columns of a consumer with a deserializer have bytes that it was to convert",
        _ACCESS,
        "            if not self._require_reader().owned.deserializer.keeps_bytes:\n",
        "            if False:\n",
        _METHOD_TESTS,
    ),
    Mutant(
        "a call that was read too late raises, where it has an empty result",
        _ACCESS,
        'return self._start("consume_batches()", partitions, get, dict)',
        'return self._start("consume_batches()", partitions, get, _raise_late)',
        _METHOD_TESTS,
    ),
    # What an application sees
    Mutant(
        "a null value is an empty one",
        _RECORD_COLUMNS,
        "            return None\n        return self._data",
        "            return memoryview(b'')\n        return self._data",
        _COLUMNS_TESTS,
    ),
    Mutant(
        "values of a part are those of the beginning of its run",
        _RECORD_COLUMNS,
        "data, start = self._data, self._ends[self._rows.start]",
        "data, start = self._data, self._ends[0]",
        _COLUMNS_TESTS,
    ),
    Mutant(
        "a record batch counts the nulls of the whole run",
        _ARROW,
        "null_count = 0 if validity is None else -1",
        "null_count = column.null_count",
        _COLUMNS_TESTS,
    ),
)
