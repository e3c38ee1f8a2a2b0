"""Mutants of reading logs of newer brokers: filler, offsets without records, unsent messages, and named topics."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_CHECKS = "wire/message_sets/corrupt_messages.py"
_PARTIAL = "wire/message_sets/partial_messages.py"
_BATCHES = "wire/message_sets/record_batches.py"
_PARTITION = "clients/fetch/partition_fetch.py"
_ANSWERS = "clients/fetch/fetch_answers.py"
_BUFFER = "clients/fetch/fetch_buffer.py"
_FETCHER = "clients/fetch/fetcher.py"
_OWNED = "clients/delivery/owned_records.py"
_CLUSTER = "clients/net/cluster_metadata.py"
_LISTING = "clients/net/topic_listing.py"

_DECODER_TESTS = "tests/unit/wire/message_sets/test_decoder.py"
_FETCH_TESTS = "tests/unit/clients/fetch/test_converted_logs.py"
_DELIVERY_TESTS = "tests/unit/clients/delivery/test_passed_offsets.py"
_LISTING_TESTS = "tests/unit/clients/net/test_topic_listing.py"

MUTANTS = (
    # Filler
    Mutant(
        "filler is damage",
        _CHECKS,
        "    if offset == FILLER_OFFSET and end > len(data):\n",
        "    if False:\n",
        _DECODER_TESTS,
    ),
    Mutant(
        "a whole message of a negative offset is filler",
        _CHECKS,
        "    if offset == FILLER_OFFSET and end > len(data):\n",
        "    if offset == FILLER_OFFSET:\n",
        _DECODER_TESTS,
    ),
    Mutant(
        "filler is the beginning of a large message",
        _PARTIAL,
        "following = position + 1 if offset == FILLER_OFFSET else offset_after",
        "following = offset_after",
        _DECODER_TESTS,
    ),
    Mutant(
        "filler leads two offsets further",
        _PARTIAL,
        "following = position + 1 if",
        "following = position + 2 if",
        _FETCH_TESTS,
    ),
    # Offsets without records
    Mutant(
        "a batch with records is passed",
        _BATCHES,
        "    if not (attributes & _CONTROL or size == _HEADER_BYTES) or offset < 0 or last < 0:\n",
        "    if offset < 0 or last < 0:\n",
        _DECODER_TESTS,
    ),
    Mutant(
        "a damaged batch is passed",
        _BATCHES,
        " if _crc32c(message_at(data, start)[_CHECKED_START:]) == crc else None",
        "",
        _DECODER_TESTS,
    ),
    Mutant(
        "a control batch as it is in the log is damage",
        _CHECKS,
        "    if magic and offset_after_empty_batches(data, position) is not None:\n",
        "    if False:\n",
        _DECODER_TESTS,
    ),
    Mutant(
        "a damaged offset of a batch passes the end of the log",
        _PARTITION,
        "        if offset > end:\n",
        "        if False:\n",
        _FETCH_TESTS,
    ),
    Mutant(
        "callers do not notice that offsets were passed",
        _BUFFER,
        "        self.passed.add(state.topic_partition)\n",
        "",
        _FETCH_TESTS,
    ),
    Mutant(
        "offsets are passed before the records in front of them are finished",
        _OWNED,
        "            if self.batch.has_records_of(partition) or self.in_flight.in_flight_of([partition]):\n",
        "            if False:\n",
        _DELIVERY_TESTS,
    ),
    Mutant(
        "buffered records count as passed",
        _OWNED,
        "            if self._fetcher.is_buffering(partition):\n",
        "            if False:\n",
        _DELIVERY_TESTS,
    ),
    Mutant(
        "passed offsets hide a reset",
        _OWNED,
        "if state is None or position is None or state.reset is not None:",
        "if state is None or position is None:",
        _DELIVERY_TESTS,
    ),
    # Messages of which the broker sends nothing
    Mutant(
        "an empty answer below the high watermark is an idle partition",
        _ANSWERS,
        "        if before is not None and state.position < before and state.position < fetched.high_watermark:\n",
        "        if False:\n",
        _FETCH_TESTS,
    ),
    Mutant(
        "an empty answer is older than its high watermark, and yet counts",
        _ANSWERS,
        "        if before is not None and state.position < before and state.position < fetched.high_watermark:\n",
        "        if state.position < fetched.high_watermark:\n",
        _FETCH_TESTS,
    ),
    Mutant(
        "what the others use up makes a message too large",
        _PARTITION,
        "        if share >= most and is_first:\n",
        "        if share >= most:\n",
        _FETCH_TESTS,
    ),
    Mutant(
        "an unsent message is asked for in ordinary shares for ever",
        _PARTITION,
        "        self.needed_bytes = min(2 * self.unanswered_bytes, most)\n",
        "        self.needed_bytes = 0\n",
        _FETCH_TESTS,
    ),
    Mutant(
        "batches that the request cannot carry are retried without an error",
        _FETCHER,
        "            elif fetched.error in _UNSENDABLE:\n",
        "            elif False:\n",
        _FETCH_TESTS,
    ),
    # Topics that requests name
    Mutant(
        "topics are named however old their listing is",
        _LISTING,
        "        return self._doubted_s < self._asked_s > time.monotonic() - NAMED_FOR_S\n",
        "        return self._doubted_s < self._asked_s\n",
        _LISTING_TESTS,
    ),
    Mutant(
        "a topic that a broker denies is named",
        _LISTING,
        "        return self._doubted_s < self._asked_s > time.monotonic() - NAMED_FOR_S\n",
        "        return self._asked_s > time.monotonic() - NAMED_FOR_S\n",
        _LISTING_TESTS,
    ),
    Mutant(
        "a topic that has lost its partitions is named again",
        _CLUSTER,
        "                self.listing.doubt()\n",
        "                pass\n",
        _LISTING_TESTS,
    ),
    Mutant(
        "a listing that was under way settles a doubt",
        _CLUSTER,
        "                self.listing.received(asked_s)\n",
        "                self.listing.received(time.monotonic())\n",
        _LISTING_TESTS,
    ),
    Mutant(
        "a broker that denies a topic in a fetch is believed to have lost its leader only",
        _FETCHER,
        "                    self._cluster.listing.doubt()\n",
        "                    pass\n",
        "tests/unit/clients/fetch/test_fetch_retries.py",
    ),
    Mutant(
        "a broker that denies a topic in a look-up of offsets is believed to have lost its leader only",
        "clients/net/offset_lookup.py",
        "        cluster.listing.doubt()\n",
        "        pass\n",
        _LISTING_TESTS,
    ),
)
