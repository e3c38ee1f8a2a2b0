"""A producer says of each record whether it is stored, not stored, or unknown."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        "a refusal by a leader that may have appended the records counts as failed",
        "clients/produce/sender.py",
        "(error.number in _NOT_LEADER and not waits_for_replicas)",
        "error.number in _NOT_LEADER",
        "tests/unit/clients/produce/test_sender.py",
    ),
    Mutant(
        "a refused batch keeps an unknown outcome",
        "clients/produce/sender.py",
        "            batch.unresolved_tries -= 1\n",
        "            pass\n",
        "tests/unit/clients/produce/test_sender.py",
    ),
    Mutant(
        "a batch that was not answered counts as failed instead of unknown",
        "clients/produce/sender.py",
        "            batch.unresolved_tries += 1\n",
        "            pass\n",
        "tests/unit/clients/test_producer_close.py",
    ),
    Mutant(
        "records without an answer are reported as not sent when the event loop is closed",
        "clients/producer.py",
        "        unknown = self._sender.unknown\n        if unsent",
        "        unknown = 0\n        if unsent",
        "tests/unit/clients/test_interrupted_producer.py",
    ),
    Mutant(
        "answers are matched to requests by their order",
        "clients/net/connection.py",
        "self._in_flight.pop(self._arriving_id, None)",
        "self._in_flight.pop(next(iter(self._in_flight)), None)",
        "tests/unit/clients/net/test_connection.py",
    ),
    Mutant(
        "a request that a reset connection has not taken counts as sent",
        "clients/net/connection.py",
        "            self._written.clear()\n\n    async def",
        "            pass\n\n    async def",
        "tests/unit/clients/net/test_answer_stream.py",
    ),
    Mutant(
        "an error that is not expected blocks a partition of the producer",
        "clients/produce/sender.py",
        "        except Exception as error:\n            # A bug, or garbage",
        "        except KielGroupsError as error:\n            # A bug, or garbage",
        "tests/unit/clients/produce/test_sender.py",
    ),
    Mutant(
        "metadata requests name unknown topics, and brokers create them",
        "clients/net/cluster_metadata.py",
        "is_listed = self.listing.is_reliable and topics <= self._topics.keys()",
        "is_listed = self.listing.is_reliable",
        "tests/unit/clients/net/test_cluster_metadata.py",
    ),
    Mutant(
        "a connection that has brought an unreadable answer is used again",
        "clients/fetch/fetcher.py",
        "                    connection.close()\n",
        "                    pass\n",
        "tests/unit/clients/fetch/test_damaged_answers.py",
    ),
    Mutant(
        "a batch that was damaged on its way loses its records without a key",
        "clients/produce/sender.py",
        "        elif queue.needs_keys:\n",
        "        elif True:\n",
        "tests/unit/clients/produce/test_sender.py",
    ),
    Mutant(
        "a joint outcome is done before its last record",
        "clients/produce/outcomes.py",
        "        if self._unsettled:\n            return\n",
        "",
        "tests/unit/clients/test_produce_many.py",
    ),
    Mutant(
        "two sets of a partition are in flight",
        "clients/produce/sender.py",
        "        queue.busy = True\n        self._stalls.sent",
        "        self._stalls.sent",
        "tests/unit/clients/produce/test_sender.py",
    ),
    Mutant(
        "a request that waits behind another one is sent twice",
        "clients/produce/sender.py",
        "broker.in_flight * self._config.ack_timeout_ms",
        "self._config.ack_timeout_ms",
        "tests/unit/clients/produce/test_sender.py",
    ),
    Mutant(
        "batches without a leader fail in ever deeper calls",
        "clients/produce/sender.py",
        "loop.call_soon(self._failed, queue, ",
        "self._failed(queue, ",
        "tests/unit/clients/produce/test_sender.py",
    ),
    Mutant(
        "an exit in a callback loses the outcomes of the rest of the batch",
        "clients/produce/sender.py",
        "        batch.stored(queue.topic_partition, base_offset)\n        queue.pop_settled()\n",
        "        queue.pop_settled()\n        batch.stored(queue.topic_partition, base_offset)\n",
        "tests/unit/sync/test_blocking_producer.py",
    ),
    Mutant(
        "an exit loses the outcomes of records that wait for the partitions of their topic",
        "clients/produce/placement.py",
        "                self._refuse(topic, _outcomes(calls[number:]), ClosedError",
        "                self._refuse(topic, [], ClosedError",
        "tests/unit/sync/test_blocking_producer.py",
    ),
    Mutant(
        "a record that is handed over to a closed producer never gets an outcome",
        "sync/blocking_producer.py",
        '                    outcome.set_exception(ClosedError("the producer was closed"))\n',
        "                    pass\n",
        "tests/unit/sync/test_blocking_producer.py",
    ),
    Mutant(
        "a thread that begins to wait while a record's place is set waits for ever",
        "sync/blocking_producer.py",
        "        self._result = result\n        self._state = FINISHED\n        if self._is_watched:\n",
        "        watched = self._is_watched\n        self._result = result\n        self._state = FINISHED\n"
        "        if watched:\n",
        "tests/unit/sync/test_blocking_producer.py",
    ),
    Mutant(
        "records that were taken when the event loop ends never get an outcome",
        "sync/blocking_producer.py",
        "chain(self._client._without_outcome(reason), (",
        "chain((), (",
        "tests/unit/sync/test_blocking_producer.py",
    ),
    Mutant(
        "an interrupted close leaves records without an outcome",
        "sync/blocking_client.py",
        "                    self._client.close()\n                    self._abandon()\n",
        "                    self._client.close()\n",
        "tests/unit/sync/test_blocking_producer.py",
    ),
    Mutant(
        "a fork hands over records that no loop takes",
        "sync/blocking_producer.py",
        "os.register_at_fork(after_in_child=_begin_fork)",
        "",
        "tests/unit/sync/test_blocking_producer.py",
    ),
    Mutant(
        "records overtake those that wait for the partitions of their topic",
        "clients/produce/placement.py",
        "            self._queues.pop(topic, None)\n",
        "",
        "tests/unit/clients/produce/test_batches.py",
    ),
    Mutant(
        "futures of failed records are never collected",
        "clients/produce/batches.py",
        "        track(self.outcomes)\n",
        "",
        "tests/unit/clients/produce/test_batches.py",
    ),
)
