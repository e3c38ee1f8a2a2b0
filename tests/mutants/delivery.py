"""Delivery: which claims, which topics, and what becomes of values that cannot be deserialized."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_RECORD_DELIVERY = "clients/delivery/record_delivery.py"
_READY_CLAIMS = "clients/delivery/ready_claims.py"
_DESERIALIZER = "clients/delivery/deserializer.py"
_CLAIMS = "group/member/claims.py"
_UNSUBSCRIBED_TOPICS = "coordination/member/unsubscribed_topics.py"

_UNCLAIMED_VALUES_TESTS = "tests/unit/clients/delivery/test_unclaimed_values.py"
_DELIVERY_AND_CLAIMS_TESTS = "tests/unit/clients/delivery/test_delivery_and_claims.py"
_DESERIALIZER_TESTS = "tests/unit/clients/delivery/test_deserializer.py"
_CLAIMS_TESTS = "tests/unit/group/member/test_claims.py"
_UNSUBSCRIBED_TOPICS_TESTS = "tests/unit/coordination/member/test_unsubscribed_topics.py"

MUTANTS = (
    # Drains
    Mutant(
        "a drain that forgets values in flight after those that nobody got",
        "clients/delivery/in_flight.py",
        "                    span = span._replace(state=None)\n                if received is None",
        "                    continue\n                if received is None",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "values given up during a drain that are fetched again",
        _RECORD_DELIVERY,
        "        self._ready.remove(partitions)\n        self._drop(partitions)\n        return",
        "        self._drop(partitions)\n        return",
        _UNCLAIMED_VALUES_TESTS,
    ),
    # The assigned hook
    Mutant(
        "a partition that is fetched without its assigned hook",
        _READY_CLAIMS,
        "        await self._calls.assigned(partitions)\n",
        "",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "the hook of a lost claim that starts the next claim of its partition",
        _READY_CLAIMS,
        "if self._opening.get(partition) is state]",
        "if partition in self._opening]",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "a claim that is handed over during its hook and starts all the same",
        _READY_CLAIMS,
        "            self._opening.pop(partition, None)\n",
        "            pass\n",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "an operator's offset that starts a partition during its hook",
        _RECORD_DELIVERY,
        "if state is not None and partition in self._ready and partition.topic in topics:",
        "if state is not None and partition.topic in topics:",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "the rest of a batch that is delivered after an operator's offset",
        _RECORD_DELIVERY,
        "        self._drop(partitions)\n        topics = self._subscription.subscription\n",
        "        topics = self._subscription.subscription\n",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    # The subscription
    Mutant(
        "a dropped topic that flows until a plan takes it away",
        _RECORD_DELIVERY,
        "if state is not None and partition in self._ready and partition.topic in topics:",
        "if state is not None and partition in self._ready:",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "an error of a dropped topic that is raised",
        _RECORD_DELIVERY,
        "        self._refused = {topic: error for topic, error in self._refused.items() if topic in topics}\n",
        "",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "a record in flight whose topic comes back, put back and skipped",
        _RECORD_DELIVERY,
        "                self._fetch([record.topic_partition])\n",
        "                pass\n",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "a claim of a topic that is not subscribed to",
        _CLAIMS,
        "            if claims.may_claim(partition):\n",
        "            if True:\n",
        _CLAIMS_TESTS,
    ),
    Mutant(
        "a wait for the owner of a topic that was dropped",
        _CLAIMS,
        "lambda p: Phase.WAITING if claims.may_claim(p) else None",
        "lambda _: Phase.WAITING",
        _CLAIMS_TESTS,
    ),
    Mutant(
        "a dropped topic whose owners are still waited for",
        _CLAIMS,
        "            return _reconcile(after, dict.fromkeys(dropped))\n",
        "            return _reconcile(after, {})\n",
        _CLAIMS_TESTS,
    ),
    Mutant(
        "a slice from before the registration that is reported",
        _UNSUBSCRIBED_TOPICS,
        "if own is None or node.mzxid < own.czxid:",
        "if own is None:",
        _UNSUBSCRIBED_TOPICS_TESTS,
    ),
    Mutant(
        "a slice that is reported each time it is read",
        _UNSUBSCRIBED_TOPICS,
        "            self._reported = (node.mzxid, level)\n",
        "",
        _UNSUBSCRIBED_TOPICS_TESTS,
    ),
    Mutant(
        "slices of other topics that keep coming and are no error",
        _UNSUBSCRIBED_TOPICS,
        "logging.ERROR if now_s - self._since_s >= PASSING_S else logging.WARNING",
        "logging.WARNING",
        _UNSUBSCRIBED_TOPICS_TESTS,
    ),
    # Deserializers
    Mutant(
        "a line for every value that cannot be deserialized",
        "clients/calls/log_limit.py",
        "return self._flushed(window, now_s) if now_s >= window.until_s else None",
        "return self._flushed(window, now_s)",
        _DESERIALIZER_TESTS,
    ),
    Mutant(
        "failures that are never logged because no other one follows",
        _DESERIALIZER,
        "        elif self._timer is None:\n            self._start_timer()\n",
        "",
        _DESERIALIZER_TESTS,
    ),
    Mutant(
        "failures whose count is lost at the close",
        _DESERIALIZER,
        "        for partition, repeats in self._limit.rest(self._clock()):\n",
        "        for partition, repeats in ():\n",
        _DESERIALIZER_TESTS,
    ),
    Mutant(
        "a consumer that ends without the counts of its failures",
        _RECORD_DELIVERY,
        "        self._deserializing.close()\n",
        "",
        _DESERIALIZER_TESTS,
    ),
    Mutant(
        "a hook that is cancelled although one of its partitions is still owned",
        "clients/delivery/listener_calls.py",
        "if running.lost == running.partitions:",
        "if running.lost:",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    Mutant(
        "values that a drain gave up and that a caller still gets",
        "clients/calls/consume_future.py",
        "return Batch() if self._taker.redelivered and values else values",
        "return values",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "a drain that waits for values which were declared finished",
        "clients/delivery/in_flight.py",
        "delivered.done or (finishes and delivered.taker.ended)",
        "finishes and (delivered.done or delivered.taker.ended)",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "a reset that waits for the batch after its own",
        _RECORD_DELIVERY,
        "        if self._drains:\n            self._progress.set()\n        while not self._ended",
        "        while not self._ended",
        "tests/unit/clients/delivery/test_record_delivery.py",
    ),
    Mutant(
        "a start that is not found within the call",
        "clients/single.py",
        "found = offsets.found or await list_offsets(self._cluster, partitions, at)",
        "found = offsets.found",
        "tests/unit/clients/test_single.py",
    ),
)
