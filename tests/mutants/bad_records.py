"""Mutants of bad records: what is raised, skipped, finished and passed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_BAD_RECORDS = "clients/delivery/bad_records.py"
_OWNED_RECORDS = "clients/delivery/owned_records.py"
_IN_FLIGHT = "clients/delivery/in_flight.py"
_OWNED_RECORDS = "clients/delivery/owned_records.py"
_VALUE_DELIVERY = "clients/delivery/value_delivery.py"
_PARTITION_FETCH = "clients/fetch/partition_fetch.py"

_RAISED_TESTS = "tests/unit/clients/delivery/test_bad_records.py"
_HOOK_TESTS = "tests/unit/clients/delivery/test_bad_record_hooks.py"
_PUT_BACK_TESTS = "tests/unit/clients/fetch/test_put_back.py"
_POISON_TESTS = "tests/sim/test_poison.py"

MUTANTS = (
    Mutant(
        "a call that skips everything counts as received, with what it returns later",
        _VALUE_DELIVERY,
        "            call = ConsumeCall()\n            call.received = call.superseded = True\n",
        "            call.received = True\n",
        "tests/unit/clients/delivery/test_value_delivery.py",
    ),
    Mutant(
        "a commit counts the record that the loop of another task processes",
        "clients/methods/record_access.py",
        "if loop is not None and loop.caller is current_caller():",
        "if loop is not None:",
        "tests/unit/clients/methods/test_consumer_commits.py",
    ),
    Mutant(
        "a call of a task supersedes that of the task that has started it",
        "clients/calls/callers.py",
        "for each, known in _LATEST.get().items() if not known.call.is_of_another_task()}",
        "for each, known in _LATEST.get().items()}",
        "tests/unit/clients/calls/test_consume_calls.py",
    ),
    Mutant(
        "a hook cannot commit while the consumer is being closed",
        "clients/methods/membership.py",
        "if self._connected is None or self._closing is None or self._closing.done():",
        "if True:",
        "tests/unit/clients/methods/test_consumer_commits.py",
    ),
    # Errors
    Mutant(
        "a loop drops the record whose error it raises",
        _OWNED_RECORDS,
        "            self._fetcher.put_back(fetched, count)\n",
        "            self._fetcher.put_back(fetched, count + 1)\n",
        _RAISED_TESTS,
    ),
    Mutant(
        "a call raises although it has records, which are lost to the caller",
        _OWNED_RECORDS,
        "        if error is not None and may_handle:\n",
        "        if error is not None:\n",
        _RAISED_TESTS,
    ),
    Mutant(
        "an error of the fetcher is lost to a call that has records",
        _VALUE_DELIVERY,
        "self._owned.poll(selection, errors=not taken.spans)",
        "self._owned.poll(selection, errors=True)",
        "tests/unit/clients/delivery/test_value_delivery.py",
    ),
    Mutant(
        "a hook that ends in the cancellation of something else is called again without a pause",
        _BAD_RECORDS,
        "if cancels_this_task(hook_error):",
        "if isinstance(hook_error, asyncio.CancelledError):",
        "tests/unit/clients/delivery/test_bad_record_hooks.py",
    ),
    Mutant(
        "the pauses between two errors of a record do not grow",
        _BAD_RECORDS,
        "times = before.times + 1 if before is not None and is_again else 1",
        "times = 1",
        _RAISED_TESTS,
    ),
    Mutant(
        "an error is logged each time that it is raised",
        _BAD_RECORDS,
        "            if not is_again:\n                log.error(",
        "            if True:\n                log.error(",
        _RAISED_TESTS,
    ),
    Mutant(
        "a pause after an error outlives the claim",
        _OWNED_RECORDS,
        "        self.bad.end(partitions)\n",
        "",
        _RAISED_TESTS,
    ),
    Mutant(
        "a resume ends the pause after an error",
        _OWNED_RECORDS,
        "resumed = [partition for partition in partitions if partition not in self.bad]",
        "resumed = list(partitions)",
        _RAISED_TESTS,
    ),
    Mutant(
        "a loop whose error the application keeps blocks the next one",
        "clients/delivery/record_loop.py",
        "        self.end_loop(finished=True)\n        self._take",
        "        self._take",
        _RAISED_TESTS,
    ),
    # Hooks
    Mutant(
        "a record is finished although its hook has raised",
        _BAD_RECORDS,
        "            self._keep_failure(error, hook_error)\n",
        "            self._keep_failure(error, hook_error)\n            in_flight.finish()\n",
        _POISON_TESTS,
    ),
    Mutant(
        "a release does not wait for a hook",
        _IN_FLIGHT,
        "*self.topics.values(), *self.bad.values()]",
        "*self.topics.values()]",
        _POISON_TESTS,
    ),
    Mutant(
        "a hook starts while records before its own are in flight",
        _BAD_RECORDS,
        "lambda: not is_fetched() or not in_flight.in_flight_of([partition])",
        "lambda: True",
        _HOOK_TESTS,
    ),
    Mutant(
        "a hook starts while the gate is shut",
        _OWNED_RECORDS,
        "return is_current and self.may_deliver() and not",
        "return is_current and not",
        _HOOK_TESTS,
    ),
    Mutant(
        "a hook starts although the application has paused the partition",
        _OWNED_RECORDS,
        " and self.may_deliver() and not self._subscription.is_paused(partition)",
        " and self.may_deliver()",
        _HOOK_TESTS,
    ),
    Mutant(
        "two hooks run for one partition",
        _BAD_RECORDS,
        "        if partition not in self._hooks:\n            running",
        "        if True:\n            running",
        _HOOK_TESTS,
    ),
    Mutant(
        "a hook counts after a seek",
        _IN_FLIGHT,
        "        if self._error.topic_partition in partitions:\n            self._state = None\n",
        "        pass\n",
        _HOOK_TESTS,
    ),
    Mutant(
        "the error of a hook is not raised",
        _BAD_RECORDS,
        "        self._failed[error.topic_partition] = kept\n",
        "",
        _HOOK_TESTS,
    ),
    Mutant(
        "the watchdog does not see a hook",
        _IN_FLIGHT,
        "for partition, bad in list(self.bad.items())]",
        "for partition, bad in ()]",
        _HOOK_TESTS,
    ),
    # Damage
    Mutant(
        "a damaged offset is passed wherever it is",
        _PARTITION_FETCH,
        "if not self.position <= damage.offset < (self.high_watermark or 0):",
        "if damage.offset < 0:",
        _PUT_BACK_TESTS,
    ),
    Mutant(
        "a message inside a damaged wrapper is passed alone",
        "wire/message_sets/corrupt_messages.py",
        "    return DamagedMessage(str(error), offset=offset_and_size_at(wrapper, 0)[0], message=bytes(wrapper))\n",
        "    return error\n",
        "tests/unit/wire/message_sets/test_decoder.py",
    ),
    Mutant(
        "a part of a batch that is put back comes twice",
        _PARTITION_FETCH,
        "        if self.taken:\n            self.taken -= len(batch) - taken\n            return False\n",
        "",
        _PUT_BACK_TESTS,
    ),
    Mutant(
        "a batch that is put back waits behind other partitions",
        "clients/fetch/fetch_buffer.py",
        "            self.ready.remove(state)\n            self.ready.add_first(state)\n",
        "            self.ready.remove(state)\n            self.ready.add(state)\n",
        _PUT_BACK_TESTS,
    ),
)
