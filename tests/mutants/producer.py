"""Mutants of the producer and its close, of interrupts, connections, and Spark's readers and writers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_INTERRUPTS = "clients/calls/interrupts.py"
_PRODUCER = "clients/producer.py"
_LEFT_LOOP = "clients/calls/left_loop.py"
_SENDER = "clients/produce/sender.py"
_ANSWER_STREAM = "clients/net/answer_stream.py"
_CONNECTION = "clients/net/connection.py"
_RANGE_READER = "spark/tasks/range_reader.py"

_INTERRUPTS_TESTS = "tests/unit/clients/calls/test_interrupts.py"
_INTERRUPTED_PRODUCER_TESTS = "tests/unit/clients/test_interrupted_producer.py"
_PRODUCER_CLOSE_TESTS = "tests/unit/clients/test_producer_close.py"
_SENDER_TESTS = "tests/unit/clients/produce/test_sender.py"
_ANSWER_STREAM_TESTS = "tests/unit/clients/net/test_answer_stream.py"
_CONNECTION_TESTS = "tests/unit/clients/net/test_connection.py"
_RANGE_READING_TESTS = "tests/spark/test_range_reading.py"

MUTANTS = (
    # Interrupts
    Mutant(
        "a Ctrl-C interrupts a callback of the event loop",
        _INTERRUPTS,
        "if self.pending is not None or (loop is None and not self.protected):",
        "if True:",
        _INTERRUPTS_TESTS,
    ),
    Mutant(
        "a Ctrl-C is lost if the event loop stops at the same moment",
        _INTERRUPTS,
        "_thread.start_new_thread(self.watch, (self.pending,))",
        "pass",
        _INTERRUPTS_TESTS,
    ),
    Mutant(
        "a Ctrl-C during an uninterrupted block is lost",
        _INTERRUPTS,
        "        if _interrupts.pending is not None:\n            _interrupts.throw()\n",
        "        pass\n",
        _INTERRUPTS_TESTS,
    ),
    Mutant(
        "a Ctrl-C does not end a close outside of the event loop",
        _LEFT_LOOP,
        "if again or interrupts.raised() > raised:",
        "if again:",
        _INTERRUPTS_TESTS,
    ),
    Mutant(
        "a stop that was left in the event loop ends a close that runs the loop again",
        _LEFT_LOOP,
        "    while not waiting.done():\n",
        "    for _ in range(1):\n",
        _INTERRUPTS_TESTS,
    ),
    # Unknown outcomes, and the duration of a close
    Mutant(
        "a refusal by a leader that may have appended the records counts as failed",
        _SENDER,
        "(error.number in _NOT_LEADER and not waits_for_replicas)",
        "error.number in _NOT_LEADER",
        _SENDER_TESTS,
    ),
    Mutant(
        "a refused batch keeps an unknown outcome",
        _SENDER,
        "            batch.unresolved_tries -= 1\n",
        "            pass\n",
        _SENDER_TESTS,
    ),
    Mutant(
        "a batch that was damaged on its way loses its records without a key",
        _SENDER,
        "        elif queue.needs_keys:\n",
        "        elif True:\n",
        _SENDER_TESTS,
    ),
    Mutant(
        "a batch that was not answered counts as failed instead of unknown",
        _SENDER,
        "            batch.unresolved_tries += 1\n",
        "            pass\n",
        _PRODUCER_CLOSE_TESTS,
    ),
    Mutant(
        "a close gives up while brokers still store records",
        _SENDER,
        "        self.stored_at_s = asyncio.get_running_loop().time()\n",
        "",
        _PRODUCER_CLOSE_TESTS,
    ),
    Mutant(
        "a close waits ten times as long as documented for a frozen broker",
        _PRODUCER,
        "self._config.ack_timeout_ms) / 1000",
        "self._config.ack_timeout_ms) / 100",
        _PRODUCER_CLOSE_TESTS,
    ),
    Mutant(
        "a close after a Ctrl-C waits for a frozen broker as long as any other close",
        _PRODUCER,
        "if running_loop() is None and timeout_ms is None:",
        "if False:",
        _INTERRUPTED_PRODUCER_TESTS,
    ),
    Mutant(
        "a cancelled block waits for a frozen broker as long as any other close",
        _PRODUCER,
        "await self.close(_CANCELLED_FLUSH_MS if cancelled else None)",
        "await self.close(None)",
        _INTERRUPTED_PRODUCER_TESTS,
    ),
    Mutant(
        "records without an answer are reported as not sent when the event loop is closed",
        _PRODUCER,
        "        unknown = self._sender.unknown\n        if unsent",
        "        unknown = 0\n        if unsent",
        _INTERRUPTED_PRODUCER_TESTS,
    ),
    # Answers
    Mutant(
        "an answer to no request fails the other requests with an error that is not retriable",
        _CONNECTION,
        'self._fail(self._broken(f"closed after an answer that makes no sense: {error}"))',
        'self._fail(ProtocolError(f"{self.address}: {error}"))',
        _CONNECTION_TESTS,
    ),
    Mutant(
        "answers are matched to requests by their order",
        _CONNECTION,
        "self._in_flight.pop(self._arriving_id, None)",
        "self._in_flight.pop(next(iter(self._in_flight)), None)",
        _CONNECTION_TESTS,
    ),
    Mutant(
        "the first bytes of a header that is divided are lost",
        _ANSWER_STREAM,
        "        self._head = bytes(received)\n",
        "",
        _ANSWER_STREAM_TESTS,
    ),
    Mutant(
        "of several answers that arrive together only the first is taken",
        _ANSWER_STREAM,
        "            self._finish()\n        self._head",
        "            self._finish()\n            return\n        self._head",
        _ANSWER_STREAM_TESTS,
    ),
    Mutant(
        "a request that a reset connection has not taken counts as sent",
        _ANSWER_STREAM,
        "            self._written.clear()\n\n    async def",
        "            pass\n\n    async def",
        _ANSWER_STREAM_TESTS,
    ),
    Mutant(
        "a half-closed connection lives until all is sent",
        _ANSWER_STREAM,
        "        self.close()\n        return False",
        "        return False",
        _ANSWER_STREAM_TESTS,
    ),
    Mutant(
        "an error that is not expected blocks a partition of the producer",
        _SENDER,
        "        except Exception as error:\n            # A bug, or garbage",
        "        except KielGroupsError as error:\n            # A bug, or garbage",
        "tests/unit/clients/produce/test_sender.py",
    ),
    Mutant(
        "a request without an answer returns before it has left the process",
        _ANSWER_STREAM,
        "        await self._written.wait()\n",
        "        await asyncio.sleep(0)\n",
        _ANSWER_STREAM_TESTS,
    ),
    Mutant(
        "a request without an answer waits for ever once its connection is lost",
        _ANSWER_STREAM,
        "        self._ended.set()\n        self._written.set()\n",
        "        self._ended.set()\n",
        _ANSWER_STREAM_TESTS,
    ),
    # Spark
    Mutant(
        "a single empty answer of a broker counts as a loss of records",
        _RANGE_READER,
        "if self.empty_answers < _MAX_EMPTY_ANSWERS:",
        "if self.empty_answers < 1:",
        _RANGE_READING_TESTS,
    ),
    Mutant(
        "empty answers count as consecutive although records came in between",
        _RANGE_READER,
        "self.needed_bytes = self.empty_answers = 0",
        "self.needed_bytes = 0",
        _RANGE_READING_TESTS,
    ),
    Mutant(
        "a file of an archive gets its name before its contents are synced",
        "spark/jobs/folders.py",
        "    _synced(source)\n    source.replace(target)\n",
        "    source.replace(target)\n",
        "tests/unit/spark/jobs/test_archive_folders.py",
    ),
    Mutant(
        "failed records of an unknown topic are not counted",
        "clients/producer.py",
        '        self.metrics.count("produce_failures", len(records))\n        for record',
        "        for record",
        _PRODUCER_CLOSE_TESTS,
    ),
)
