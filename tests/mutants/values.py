"""Mutants of the values that ``consume()`` returns: they are made without records, in one call."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_DESERIALIZER = "clients/delivery/deserializer.py"
_VALUE_DELIVERY = "clients/delivery/value_delivery.py"
_BATCH = "clients/fetch/fetched_batch.py"
_RUNS = "wire/message_sets/message_runs.py"
_MODEL = "model.py"
_AUTO_COMMIT = "clients/connected/auto_commit.py"
_SUBSCRIPTION = "clients/methods/topic_subscription.py"

_VALUES_TESTS = "tests/unit/clients/delivery/test_values_without_records.py"
_AUTO_COMMIT_TESTS = "tests/unit/clients/connected/test_auto_commit.py"
_BATCH_LAWS = "tests/property/test_fetched_batch_laws.py"
_HOOK_TESTS = "tests/unit/clients/delivery/test_bad_record_hooks.py"
_SUBSCRIPTION_TESTS = "tests/unit/clients/methods/test_topic_subscription.py"

MUTANTS = (
    Mutant(
        "values after a StopIteration of the deserializer are lost",
        _DESERIALIZER,
        "if len(values) + len(skipped) == len(run.values):",
        "if True:",
        _VALUES_TESTS,
    ),
    Mutant(
        "the values before one on which the deserializer fails are lost",
        _DESERIALIZER,
        "values.extend(map(read, rest))",
        "values.extend([read(value) for value in rest])",
        _VALUES_TESTS,
    ),
    Mutant(
        "a failure is attributed to the record after another one that was skipped",
        _DESERIALIZER,
        "number = len(values) + len(skipped)\n",
        "number = len(values)\n",
        _VALUES_TESTS,
    ),
    Mutant(
        "a null value is delivered as one of the function bytes",
        _DESERIALIZER,
        "if read is bytes and None not in run.values:",
        "if read is bytes:",
        _VALUES_TESTS,
    ),
    Mutant(
        "an application that changes the values of a part changes the records as they were fetched",
        _DESERIALIZER,
        "return run.values.copy(), set(), None",
        "return run.values, set(), None",
        _VALUES_TESTS,
    ),
    Mutant(
        "a part that ends before a record for a hook has the records behind it",
        _DESERIALIZER,
        "            records = records[: len(values)]\n",
        "            pass\n",
        _VALUES_TESTS,
    ),
    Mutant(
        "records behind one for a hook count as delivered",
        _VALUE_DELIVERY,
        "count = len(fetched) if error is None else len(part.values)",
        "count = len(fetched)",
        _HOOK_TESTS,
    ),
    Mutant(
        "a part of a batch has the values of the whole batch",
        _BATCH,
        "        if len(self._rows) == len(self._content):\n            return self._content.values()\n",
        "        if True:\n            return self._content.values()\n",
        _BATCH_LAWS,
    ),
    Mutant(
        "the records of a compacted log have the offsets that are missing",
        _RUNS,
        "numbers = range(self.first_offset, self.last_offset + 1) if offsets is None else offsets",
        "numbers = range(self.first_offset, self.last_offset + 1)",
        _VALUES_TESTS,
    ),
    Mutant(
        "a slice of the fetched records has the keys of the first ones",
        _MODEL,
        "keys = None if self._keys is None else self._keys[index]\n",
        "keys = self._keys\n",
        _VALUES_TESTS,
    ),
    Mutant(
        "each call of consume() costs a transaction of ZooKeeper",
        _AUTO_COMMIT,
        "                    await asyncio.sleep(next_s - clock())\n",
        "",
        _AUTO_COMMIT_TESTS,
    ),
    Mutant(
        "each call of consume() checks the subscription",
        _SUBSCRIPTION,
        "        if topic in self._subscription.topics:\n",
        "        if False:\n",
        _SUBSCRIPTION_TESTS,
    ),
)
