"""Mutants of fetches: bulk requests and polls, the size of a bite, the buffer's budget, and runs of records."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_SIZING = "fetch_sizing.py"
_REQUESTS = "clients/fetch/fetch_requests.py"
_BUFFER = "clients/fetch/fetch_buffer.py"
_FETCHER = "clients/fetch/fetcher.py"
_ANSWERS = "clients/fetch/fetch_answers.py"
_ANSWER_TESTS = "tests/unit/clients/fetch/test_fetch_answers.py"
_PARTITION = "clients/fetch/partition_fetch.py"
_RUNS = "wire/message_sets/message_runs.py"
_COMPILED = "wire/message_sets/compiled_decoder.py"

_SIZING_TESTS = "tests/unit/test_fetch_sizing.py"
_REQUEST_TESTS = "tests/unit/clients/fetch/test_fetch_requests.py"
_BULK_TESTS = "tests/unit/clients/fetch/test_fetch_bulk.py"
_FETCHER_TESTS = "tests/unit/clients/fetch/test_fetcher.py"
_STREAM_TESTS = "tests/unit/clients/net/test_broker_stream.py"
_WRAPPER_TESTS = "tests/unit/clients/fetch/test_large_wrappers.py"
_DECODER_TESTS = "tests/unit/wire/message_sets/test_decoder.py"
_COMPILED_CHECK_TESTS = "tests/unit/wire/message_sets/test_compiled_check.py"
_RUN_TESTS = "tests/property/test_wire_runs_laws.py"

MUTANTS = (
    # Many partitions
    Mutant(
        "one poll has all partitions, however many",
        _REQUESTS,
        "        if len(ready) >= WIDE_PARTITIONS:\n",
        "        if False:\n",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a wide poll takes more than its share",
        _REQUESTS,
        "list(islice(ready, WIDE_PARTITIONS))",
        "list(ready)",
        _REQUEST_TESTS,
    ),
    Mutant(
        "the rest waits briefly beside wide polls",
        _REQUESTS,
        "if planned.lane.startswith(_POLL)]",
        "if not planned.is_bulk]",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a poll of many partitions is not sent while both lanes are taken",
        _REQUESTS,
        "        return is_wide or self._free_lane(_BULK)",
        "        return self._free_lane(_BULK)",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a leader that moved is not noticed for partitions in the queue",
        _FETCHER,
        "        if broker.leaders_version == version or not broker.has_free_lane:\n",
        "        if broker.leaders_version >= 0 or not broker.has_free_lane:\n",
        "tests/unit/clients/fetch/test_fetch_retries.py",
    ),
    Mutant(
        "an empty answer does not end the count of failures",
        _ANSWERS,
        "        state.failures = state.unreadable = 0\n        return False\n",
        "        return False\n",
        _ANSWER_TESTS,
    ),
    Mutant(
        "records do not end the count of failures",
        _ANSWERS,
        "                state.empty_answers += 1\n        state.failures = state.unreadable = 0\n",
        "                state.empty_answers += 1\n",
        _ANSWER_TESTS,
    ),
    Mutant(
        "an IPv6 address is connected to with its brackets",
        "config.py",
        'r"(?:([A-Za-z0-9._-]+)|\\[([0-9A-Fa-f:.]+)\\])(?::([0-9]{1,9}))?"',
        'r"(?:([A-Za-z0-9._-]+)|(\\[[0-9A-Fa-f:.]+\\]))(?::([0-9]{1,9}))?"',
        "tests/unit/clients/test_kiel_addresses.py",
    ),
    Mutant(
        "the second address of a name waits for the time-out of the first",
        "clients/net/broker_stream.py",
        "None if len(attempts) == len(hosts) else _NEXT_ADDRESS_S",
        "None",
        _STREAM_TESTS,
    ),
    Mutant(
        "a stream to a slower address remains open",
        "clients/net/broker_stream.py",
        "                attempt.cancel()\n                attempt.add_done_callback(_close)\n",
        "                pass\n",
        _STREAM_TESTS,
    ),
    # Bulk requests and polls
    Mutant(
        "a partition that is behind is polled for a small share",
        _PARTITION,
        "return Demand.BEHIND if self.position < self.high_watermark and not self.idle else Demand.CAUGHT_UP",
        "return Demand.CAUGHT_UP",
        _REQUEST_TESTS,
    ),
    Mutant(
        "an empty answer below the high watermark is repeated at once",
        _PARTITION,
        "self.position < self.high_watermark and not self.idle else",
        "self.position < self.high_watermark else",
        _BULK_TESTS,
    ),
    Mutant(
        "partitions that were just assigned wait for those that are behind",
        _REQUESTS,
        "        if self._ready[Demand.UNKNOWN]:\n",
        "        if self._ready[Demand.UNKNOWN] and not self._ready[Demand.BEHIND]:\n",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a partition without a batch waits for others",
        _REQUESTS,
        "for each in behind if not each.buffered), (each for each in behind if each.buffered))",
        "for each in behind), iter(()))",
        _REQUEST_TESTS,
    ),
    Mutant(
        "abandoned bulk requests occupy their lanes",
        _REQUESTS,
        "sum(not planned.is_abandoned for planned in used)",
        "len(used)",
        _REQUEST_TESTS,
    ),
    Mutant(
        "any number of abandoned bulk requests is in flight",
        _REQUESTS,
        "(_ABANDONED_LANES if kind == _BULK else 0)",
        "(100 if kind == _BULK else 0)",
        _REQUEST_TESTS,
    ),
    Mutant(
        "an abandoned poll occupies its lane",
        _FETCHER,
        "                    self._cluster.connection(broker.node_id, lane).close()\n",
        "                    pass\n",
        _BULK_TESTS,
    ),
    Mutant(
        "a poll is closed although one of its partitions is wanted",
        _REQUESTS,
        "        return all(state.dropped for state in self.shares)\n",
        "        return any(state.dropped for state in self.shares)\n",
        _BULK_TESTS,
    ),
    # Sizes
    Mutant(
        "a fast broker is asked for no more",
        _FETCHER,
        "                broker.bite.note(sum(shares.values()), size, time.monotonic() - sent_s)\n",
        "",
        _BULK_TESTS,
    ),
    Mutant(
        "an answer that was not full makes the next one larger",
        _SIZING,
        "asked_bytes < self.bytes or received_bytes < asked_bytes - asked_bytes // 4",
        "asked_bytes < self.bytes",
        _SIZING_TESTS,
    ),
    Mutant(
        "a slow broker is asked for ever more",
        _SIZING,
        "        if took_s > SLOW_S:\n",
        "        if False:\n",
        _SIZING_TESTS,
    ),
    Mutant(
        "a bite grows without a bound",
        _SIZING,
        "self.bytes = min(self.most, self.bytes * 2)",
        "self.bytes = self.bytes * 2",
        _SIZING_TESTS,
    ),
    Mutant(
        "old sizes of messages count as much as new ones",
        _SIZING,
        "        while self.read_offsets > _MOST_OFFSETS:\n",
        "        while False:\n",
        _SIZING_TESTS,
    ),
    Mutant(
        "an answer is filled beyond its size",
        _SIZING,
        "        if asked and wanted_bytes > left:\n",
        "        if asked and left <= 0:\n",
        _SIZING_TESTS,
    ),
    # The budget
    Mutant(
        "bulk requests overfill the buffer",
        _REQUESTS,
        "            if not is_turn or left < min(asked * state.expansion, self.config.fetch_buffer_bytes // 2):\n",
        "            if False:\n",
        _REQUEST_TESTS,
    ),
    Mutant(
        "what waits for room in the buffer is never asked for",
        _FETCHER,
        "        for broker in self._turns.waiting:\n",
        "        for broker in ():\n",
        _BULK_TESTS,
    ),
    Mutant(
        "bytes in flight do not count",
        _FETCHER,
        "            self._buffer.reserve(planned.reserved_bytes)\n",
        "            self._buffer.reserve(0)\n",
        _BULK_TESTS,
    ),
    Mutant(
        "bytes stay reserved for answers that have come",
        _FETCHER,
        "        self._buffer.reserve(-planned.reserved_bytes)\n",
        "",
        _BULK_TESTS,
    ),
    Mutant(
        "bytes are counted as they came, with compression",
        _REQUESTS,
        "            reserved += int(share * state.expansion)\n",
        "            reserved += share\n",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a set that unpacks to more than expected overfills the buffer",
        _ANSWERS,
        "if not self._may_keep(state) or (self._buffer.is_full and not keeps_all):",
        "if not self._may_keep(state):",
        _BULK_TESTS,
    ),
    # Receive buffers
    Mutant(
        "the memory of an answer that is still being read is used for the next one",
        "clients/net/receive_buffers.py",
        "        return False\n",
        "        return True\n",
        "tests/unit/clients/net/test_receive_buffers.py",
    ),
    Mutant(
        "a client that has caught up keeps the memory of its large answers",
        "clients/net/receive_buffers.py",
        "        else:\n            self._buffers.clear()\n",
        "",
        "tests/unit/clients/net/test_receive_buffers.py",
    ),
    # Large wrappers
    Mutant(
        "a message that was unpacked on a thread is buffered though its partition was lost",
        _ANSWERS,
        "            if not self._may_keep(state):\n",
        "            if False:\n",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "large messages of several answers are unpacked at the same time",
        _ANSWERS,
        "                async with self._unpacking:\n",
        "                if True:\n",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "the event loop unpacks large messages",
        _ANSWERS,
        'run, keeps_all = await self._runtime.in_thread(step, "unpack"), True',
        "run, keeps_all = step(), True",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "a small message that unpacks to much is unpacked by the event loop",
        _COMPILED,
        "return _unwrap(wrapper, place, found, most)",
        "return _unwrap(wrapper, place, found, budget)",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "a message that is announced may unpack to any size",
        _COMPILED,
        "                    content = _unwrap(wrapper, place, found, budget)\n",
        "                    content = _unwrap(wrapper, place, found, 1 << 40)\n",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "a wrapper is unpacked whatever its CRC is",
        _COMPILED,
        "if value_start < 0 or not _messages.crc_matches(wrapper):",
        "if value_start < 0:",
        _DECODER_TESTS,
    ),
    Mutant(
        "a wrapper that ends before the position is unpacked",
        _COMPILED,
        "            if offset >= found.position:\n",
        "            if True:\n",
        _DECODER_TESTS,
    ),
    Mutant(
        "what a wrapper unpacks to may end before the wrapper's offset",
        _COMPILED,
        "    if stop < size or last_offset != wrapper_offset:\n",
        "    if stop < size:\n",
        _DECODER_TESTS,
    ),
    Mutant(
        "small lz4 frames share their memory",
        "wire/codecs/lz4.py",
        "return bytes(room[: cramjam.lz4.decompress_into(frame, room[:room_bytes])])",
        "return room[: cramjam.lz4.decompress_into(frame, room[:room_bytes])]",
        "tests/unit/wire/codecs/test_codecs.py",
    ),
    Mutant(
        "a wrapper with an offset that does not ascend is read",
        "wire/_check.c",
        "if (found != OTHER && message.offset > last_offset) {",
        "if (found != OTHER) {",
        _COMPILED_CHECK_TESTS,
    ),
    Mutant(
        "a wrapper has a value that does not fill it",
        "wire/_check.c",
        "bool fills = found == MESSAGE && message.value.bytes + message.value.size == bytes + message.end;",
        "bool fills = found == MESSAGE;",
        _COMPILED_CHECK_TESTS,
    ),
    Mutant(
        "a check reads behind its stop",
        "wire/_check.c",
        "Verdict verdict = check_run(data.buf, size, &at, &last, last_wanted);",
        "Verdict verdict = check_run(data.buf, data.len, &at, &last, last_wanted);",
        _COMPILED_CHECK_TESTS,
    ),
    # Runs
    Mutant(
        "a partition that is dropped while its answer is read fills the buffer",
        _ANSWERS,
        "return not (state.dropped or (state.paused",
        "return not ((state.paused",
        _BULK_TESTS,
    ),
    Mutant(
        "more than two answers of a partition are buffered",
        _PARTITION,
        "last.answer > first.answer)",
        "last.answer > first.answer + 1)",
        _FETCHER_TESTS,
    ),
    Mutant(
        "a run refers to the received bytes",
        _RUNS,
        "is_copied = data is message_set or len",
        "is_copied = len",
        _RUN_TESTS,
    ),
    Mutant(
        "a run keeps all of what a large message unpacks to",
        _RUNS,
        "is_copied = data is message_set or len(data) > _MOST_KEPT_BYTES",
        "is_copied = data is message_set",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "what a large message unpacks to is unpacked again for each run, if the buffer is full",
        _ANSWERS,
        "(self._buffer.is_full and not keeps_all)",
        "self._buffer.is_full",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "a message beyond the bound is delivered if an answer has all of it",
        _REQUESTS,
        "min(LEAST_SHARE_BYTES, self.bite.bytes)), self.config.max_message_bytes)",
        "min(LEAST_SHARE_BYTES, self.bite.bytes)), 1 << 31)",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a poll asks for more than the largest message",
        _REQUESTS,
        "        shares |= dict.fromkeys(plain, min(share, most_bytes))\n",
        "        shares |= dict.fromkeys(plain, share)\n",
        _REQUEST_TESTS,
    ),
    Mutant(
        "small bites leave no room for large ones",
        _REQUESTS,
        "room if first == broker.node_id else room._replace(is_turn=False)",
        "room",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a run is larger than its limit",
        _RUNS,
        "        if room < stop - start and collected.pieces:\n",
        "        if room < 0 and collected.pieces:\n",
        _RUN_TESTS,
    ),
    Mutant(
        "a message that is larger than a piece ends the set",
        _COMPILED,
        "        end = max(end, start + OVERHEAD_BYTES + offset_and_size_at(data, start)[1])\n",
        "        pass\n",
        _RUN_TESTS,
    ),
    # Latency
    Mutant(
        "idle partitions rest after a broker has waited",
        _REQUESTS,
        "        if SHORT_WAIT_MS <= self.wait_ms <= 1_000 * taken_s:\n",
        "        if False:\n",
        _REQUEST_TESTS,
    ),
    Mutant(
        "the next poll is planned before a waiting caller takes its records",
        _FETCHER,
        "            if not planned.is_bulk and any(state.buffered for state in again):\n",
        "            if False:\n",
        _FETCHER_TESTS,
    ),
    Mutant(
        "a caller that may not take what is there keeps the event loop",
        "clients/fetch/ready_queue.py",
        "            await asyncio.sleep(0)\n",
        "            pass\n",
        _FETCHER_TESTS,
    ),
    Mutant(
        "the end of a consumer does not wake the calls that wait",
        "clients/connected/record_reader.py",
        "            self.fetcher.ready.wake_all()\n",
        "",
        "tests/unit/clients/connected/test_connected_consumer.py",
    ),
)
