"""Mutants of delivery: drains, the assigned hook, the subscription, deserializers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OWNED_RECORDS = "clients/delivery/owned_records.py"
_CURRENT_BATCH = "clients/delivery/current_batch.py"
_RECORD_LOOP = "clients/delivery/record_loop.py"
_STEPS = "clients/delivery/_steps.c"
_RECORD_DELIVERY = "clients/delivery/record_delivery.py"
_CONNECTED_CONSUMER = "clients/connected/connected_consumer.py"
_RECORD_READER = "clients/connected/record_reader.py"
_READY_CLAIMS = "clients/delivery/ready_claims.py"
_DESERIALIZER = "clients/delivery/deserializer.py"
_CLAIMS = "group/member/claims.py"
_UNSUBSCRIBED_TOPICS = "coordination/member/unsubscribed_topics.py"

_RECORD_DELIVERY_TESTS = "tests/unit/clients/delivery/test_record_delivery.py"
_RECORD_LOOP_TESTS = "tests/unit/clients/delivery/test_record_loop.py"
_RECORD_STEPS_TESTS = "tests/unit/clients/delivery/test_record_steps.py"
_CONNECTED_CONSUMER_TESTS = "tests/unit/clients/connected/test_connected_consumer.py"
_UNCLAIMED_VALUES_TESTS = "tests/unit/clients/delivery/test_unclaimed_values.py"
_POSITIONS_TESTS = "tests/unit/clients/methods/test_assigned_partitions.py"
_DELIVERY_AND_CLAIMS_TESTS = "tests/unit/clients/delivery/test_delivery_and_claims.py"
_DESERIALIZER_TESTS = "tests/unit/clients/delivery/test_deserializer.py"
_CLAIMS_TESTS = "tests/unit/group/member/test_claims.py"
_UNSUBSCRIBED_TOPICS_TESTS = "tests/unit/coordination/member/test_unsubscribed_topics.py"

MUTANTS = (
    Mutant(
        "a connection that is closed while it opens keeps its task until the connect timeout",
        "clients/net/connection.py",
        "            self._opening.cancel()\n",
        "            pass\n",
        "tests/unit/clients/net/test_connection.py",
    ),
    # Drains
    Mutant(
        "a drain does not wait for values in flight behind values that no caller received",
        "clients/delivery/values_in_flight.py",
        "                    span = span._replace(state=None)\n                if receipt is",
        "                    continue\n                if receipt is",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "values that a drain gave up are fetched again by the member that drains",
        "clients/delivery/delivery_handler.py",
        "        self._owned.ready.remove(partitions)\n        self._owned.drop(partitions)\n        return",
        "        self._owned.drop(partitions)\n        return",
        _UNCLAIMED_VALUES_TESTS,
    ),
    # Positions
    Mutant(
        "position() counts records that no caller has received",
        "clients/delivery/values_in_flight.py",
        "for each in self._delivered if not each.call.received)",
        "for each in self._delivered if False)",
        _POSITIONS_TESTS,
    ),
    Mutant(
        "position() names records from before a seek",
        "clients/delivery/values_in_flight.py",
        "if span is not None and span.state is state), default=None)",
        "if span is not None), default=None)",
        _POSITIONS_TESTS,
    ),
    # The assigned hook
    Mutant(
        "a partition is delivered without a call of on_partitions_assigned",
        _READY_CLAIMS,
        "        await self._calls.assigned(partitions)\n",
        "",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "the end of a lost claim's assigned hook starts the next claim of the partition",
        _READY_CLAIMS,
        "if self._opening.get(partition) is state]",
        "if partition in self._opening]",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "a claim that is revoked during its assigned hook is delivered after it",
        _READY_CLAIMS,
        "            self._opening.pop(partition, None)\n",
        "            pass\n",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "an operator's offset starts the delivery of a partition during its assigned hook",
        _OWNED_RECORDS,
        "if state is not None and partition in self.ready and self._subscription.covers(partition):",
        "if state is not None and self._subscription.covers(partition):",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "the rest of a batch is delivered after an operator has set another offset",
        _OWNED_RECORDS,
        "        self.drop(partitions)\n        positions, lost",
        "        positions, lost",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    # The subscription
    Mutant(
        "a topic that left the subscription is delivered until a plan revokes it",
        _OWNED_RECORDS,
        "if state is not None and partition in self.ready and self._subscription.covers(partition):",
        "if state is not None and partition in self.ready:",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "an error that was found before its topic left the subscription is raised afterwards",
        _OWNED_RECORDS,
        "        self._refused = {\n"
        "            topic: error for topic, error in self._refused.items() if self._subscription.covers_topic(topic)\n"
        "        }\n",
        "",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "a record that is put back after its topic was subscribed to again is skipped",
        _RECORD_DELIVERY,
        "            self.owned.fetch([dropped])\n",
        "            pass\n",
        _DELIVERY_AND_CLAIMS_TESTS,
    ),
    Mutant(
        "a member claims a partition of a topic that it does not subscribe to",
        _CLAIMS,
        "            if claims.may_claim(partition):\n",
        "            if True:\n",
        _CLAIMS_TESTS,
    ),
    Mutant(
        "a member awaits a contended partition of a topic that left its subscription",
        _CLAIMS,
        "lambda p: Phase.WAITING if claims.may_claim(p) else None",
        "lambda _: Phase.WAITING",
        _CLAIMS_TESTS,
    ),
    Mutant(
        "a member keeps awaiting partitions of a topic that leaves its subscription",
        _CLAIMS,
        "            return _reconcile(after, dict.fromkeys(dropped))\n",
        "            return _reconcile(after, {})\n",
        _CLAIMS_TESTS,
    ),
    Mutant(
        "a member reports an assignment that is older than its registration",
        _UNSUBSCRIBED_TOPICS,
        "if own is None or node.mzxid < own.czxid:",
        "if own is None:",
        _UNSUBSCRIBED_TOPICS_TESTS,
    ),
    Mutant(
        "a member reports the same assignment each time that it is read",
        _UNSUBSCRIBED_TOPICS,
        "            self._reported = (node.mzxid, level)\n",
        "",
        _UNSUBSCRIBED_TOPICS_TESTS,
    ),
    Mutant(
        "assignments that keep naming unsubscribed topics are never logged as an error",
        _UNSUBSCRIBED_TOPICS,
        "logging.ERROR if now_s - self._since_s >= REPLANNED_S else logging.WARNING",
        "logging.WARNING",
        _UNSUBSCRIBED_TOPICS_TESTS,
    ),
    # Deserializers
    Mutant(
        "each value that cannot be deserialized is logged",
        "clients/calls/log_limit.py",
        "return self._flushed(window, now_s) if now_s >= window.until_s else None",
        "return self._flushed(window, now_s)",
        _DESERIALIZER_TESTS,
    ),
    Mutant(
        "deserializer failures that were held back are not logged until another value fails",
        _DESERIALIZER,
        "        elif self._timer is None:\n            self._start_timer()\n",
        "",
        _DESERIALIZER_TESTS,
    ),
    Mutant(
        "the close of a deserializer does not log the failures that it held back",
        _DESERIALIZER,
        "        for partition, repeats in self._limit.rest(self._clock()):\n",
        "        for partition, repeats in ():\n",
        _DESERIALIZER_TESTS,
    ),
    Mutant(
        "the end of a consumer does not close its deserializer",
        _OWNED_RECORDS,
        "        self.deserializer.close()\n",
        "",
        _DESERIALIZER_TESTS,
    ),
    Mutant(
        "a hook is cancelled although one of its partitions is still owned",
        "clients/delivery/listener_calls.py",
        "return self.lost == self.partitions",
        "return bool(self.lost)",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    Mutant(
        "a caller receives values that a drain has given up",
        "clients/calls/consume_future.py",
        "return self._late() if self._call.redelivered and values else values",
        "return values",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "records of a cancelled call come after those behind them",
        "clients/delivery/values_in_flight.py",
        "self.call.superseded or self.call.is_dropped or now_s",
        "self.call.superseded or now_s",
        "tests/unit/clients/methods/test_assigned_partitions.py",
    ),
    Mutant(
        "a cancelled caller takes the values from another one",
        "clients/calls/consume_future.py",
        "self._call.received = self._received_before\n",
        "self._call.received = False\n",
        "tests/unit/clients/calls/test_consume_calls.py",
    ),
    Mutant(
        "a drain waits for values that were declared finished",
        "clients/delivery/values_in_flight.py",
        "delivered.done or (finishes and delivered.call.ended)",
        "finishes and (delivered.done or delivered.call.ended)",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "a waiting reset does not notice that the batch of its partition is used up",
        _RECORD_DELIVERY,
        "        if self._progress.waiting:\n            self._progress.notify()\n        self.owned.raise",
        "        self.owned.raise",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "a waiting reset is not woken if the request for the next record raises an error",
        _RECORD_DELIVERY,
        "        if self._progress.waiting:\n            self._progress.notify()\n        self.owned.raise_refused()\n",
        "        self.owned.raise_refused()\n        if self._progress.waiting:\n            self._progress.notify()\n",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "records that were delivered before their log was truncated count as cut off",
        _CURRENT_BATCH,
        "return len(raw) - len(self._raw)",
        "return len(raw) - len(left)",
        "tests/unit/clients/delivery/test_position_reset.py",
    ),
    # Loops over a cursor
    Mutant(
        "a loop starves the event loop for as long as its batch lasts",
        "clients/delivery/record_steps.py",
        "if now_s < self._pause_at_s and self._is_open(now_s):",
        "if self._is_open(now_s):",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "a compiled loop starves the event loop for as long as its batch lasts",
        _STEPS,
        "else if (now_s < steps->pause_at_s) {",
        "else {",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "a compiled step that is over can be awaited again",
        _STEPS,
        "if (awaitable && Py_REFCNT((PyObject *)awaitable) == 1) {",
        "if (awaitable) {",
        _RECORD_STEPS_TESTS,
    ),
    Mutant(
        "a compiled step that waits keeps its loop from being collected",
        _STEPS,
        "    Py_VISIT(awaitable->asking);\n",
        "",
        _RECORD_STEPS_TESTS,
    ),
    Mutant(
        "two tasks await a compiled step at once",
        _STEPS,
        "    if (((Awaitable *)self)->asking) {",
        "    if (false) {",
        _RECORD_STEPS_TESTS,
    ),
    Mutant(
        "a program that forgets to await a compiled step is not warned",
        _STEPS,
        "        warn_of_no_await();\n",
        "        ;\n",
        _RECORD_STEPS_TESTS,
    ),
    Mutant(
        "a loop that has ended takes records of the next one",
        _RECORD_LOOP,
        "            self._left, self._cursor = True, NO_RECORDS\n",
        "            self._left = True\n",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "a revocation drops the rest of a batch that a loop still takes",
        _CURRENT_BATCH,
        "        rest = list(view.cursor)\n",
        "        rest = view.records[view.delivered :]\n",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "the record in flight counts as finished",
        _CURRENT_BATCH,
        "finished = delivered - 1 if delivered > view.done else delivered\n",
        "finished = delivered\n",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "a record that a commit has counted does not count once it is put back",
        _CURRENT_BATCH,
        "            max(self._counted, self._end(view.records, finished, self._counted)),\n",
        "            self._end(view.records, finished, self._counted),\n",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "a record in flight of a lost partition is finished by the next request",
        _CURRENT_BATCH,
        "if self._partition in partitions and self._counts:",
        "if False:",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "records that were skipped at the end of a batch are never finished",
        _CURRENT_BATCH,
        "        if delivered == len(records):\n            return len(self._raw)\n",
        "        if delivered == len(records):\n            return delivered\n",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "records that were skipped before the rest of a paused batch are skipped again",
        _CURRENT_BATCH,
        "        return bisect_left(self._raw, records[delivered].offset, key=_offset_of)\n",
        "        return bisect_left(self._raw, records[delivered - 1].offset, key=_offset_of) + 1\n",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "a slow deserializer runs ahead of the loop for a whole portion",
        _DESERIALIZER,
        "            if ends_s is not None and not number % _TIMED and self._clock() >= ends_s:\n",
        "            if False:\n",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "a seek within the deserializer does not drop its portion",
        _OWNED_RECORDS,
        "            if not self.is_current(batch.fetched):\n",
        "            if self._ended:\n",
        _RECORD_LOOP_TESTS,
    ),
    Mutant(
        "an exit in the deserializer loses the batch that is being read",
        _OWNED_RECORDS,
        "            if self.is_current(fetched):\n                self._fetcher.put_back(fetched, 0)\n",
        "",
        "tests/unit/clients/delivery/test_exits_and_seeks_in_deserializers.py",
    ),
    Mutant(
        "an exit in the deserializer loses what the call took before",
        "clients/delivery/value_delivery.py",
        "for partition, span in taken.spans.items():",
        "for partition, span in ():",
        "tests/unit/clients/delivery/test_exits_and_seeks_in_deserializers.py",
    ),
    Mutant(
        "what a call took before its deserializer sought is counted",
        "clients/delivery/value_delivery.py",
        "if not self._owned.is_current(fetched):\n                taken.spans",
        "if False:\n                taken.spans",
        "tests/unit/clients/delivery/test_exits_and_seeks_in_deserializers.py",
    ),
    # The connected consumer
    Mutant(
        "a loop does not finish its record when the consumer has ended",
        _RECORD_DELIVERY,
        "        batch.finish()\n",
        "        if not self.owned._ended:\n            batch.finish()\n",
        _CONNECTED_CONSUMER_TESTS,
    ),
    Mutant(
        "the close of a consumer waits for values in flight without a limit",
        _CONNECTED_CONSUMER,
        "            self.reader.values.drop(None)\n",
        "",
        _CONNECTED_CONSUMER_TESTS,
    ),
    Mutant(
        "a subscription that cannot be registered replaces the previous one",
        _CONNECTED_CONSUMER,
        "        self.member.check_subscription(topics)\n        changed = change()\n",
        "        changed = change()\n        self.member.check_subscription(topics)\n",
        _CONNECTED_CONSUMER_TESTS,
    ),
    Mutant(
        "a failed start leaves the fetcher running",
        _CONNECTED_CONSUMER,
        "            finally:\n                self.reader.close()\n            raise\n",
        "            finally:\n                pass\n            raise\n",
        _CONNECTED_CONSUMER_TESTS,
    ),
    Mutant(
        "a waiting call does not have unclaimed values delivered again",
        _RECORD_READER,
        "            if not self.values.redeliver_unclaimed(topic):\n",
        "            if topic or not topic:\n",
        _CONNECTED_CONSUMER_TESTS,
    ),
    Mutant(
        "a waiting call checks only once whether values are unclaimed",
        _RECORD_READER,
        "            return UNCLAIMED_S if remaining_s is None else min(remaining_s, UNCLAIMED_S)\n",
        "            return remaining_s\n",
        _CONNECTED_CONSUMER_TESTS,
    ),
    Mutant(
        "a caller that repeats a failing call of consume() starves the event loop",
        _RECORD_READER,
        "            await asyncio.sleep(0)\n",
        "",
        _CONNECTED_CONSUMER_TESTS,
    ),
    Mutant(
        "SingleConsumer.consume() does not repeat a start look-up that found no offset",
        "clients/methods/single_topics.py",
        "found = offsets.found or await list_offsets(cluster, partitions, at)",
        "found = offsets.found",
        "tests/unit/clients/test_single.py",
    ),
)
