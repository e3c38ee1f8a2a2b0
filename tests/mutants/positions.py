"""Mutants of subscriptions, positions, pauses, and the calls that return records of partitions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_BUFFER = "clients/fetch/fetch_buffer.py"
_STATES = "clients/fetch/fetch_states.py"
_PARTITION = "clients/fetch/partition_fetch.py"
_QUEUE = "clients/fetch/ready_queue.py"
_OWNED = "clients/delivery/owned_records.py"
_VALUES = "clients/delivery/value_delivery.py"
_TRACKER = "group/member/offset_tracker.py"
_OFFSETS = "group/member/partition_offsets.py"
_CLAIMS = "coordination/member/owned_partitions.py"
_STYLE = "clients/calls/delivery_style.py"
_LISTENER = "clients/delivery/listener_calls.py"

_PAUSES = "tests/unit/clients/fetch/test_fetch_pauses.py"
_DELIVERY = "tests/unit/clients/delivery/test_pauses_and_seeks.py"
_SEEK_TESTS = "tests/unit/group/member/test_seeks.py"
_SIM = "tests/sim/test_seeks.py"

MUTANTS = (
    # Offsets
    Mutant(
        "an offset may be beyond what the protocol can carry",
        "group/member/subscription_arguments.py",
        "not 0 <= offset <= _MOST_OFFSET",
        "offset < 0",
        "tests/unit/group/member/test_subscribed_partitions.py",
    ),
    Mutant(
        "one partition is taken for a list of partitions",
        "clients/calls/offset_arguments.py",
        " or isinstance(given, (str, bytes)) or is_partition(given)",
        " or isinstance(given, (str, bytes))",
        "tests/unit/clients/calls/test_offset_arguments.py",
    ),
    # Pauses
    Mutant(
        "a paused partition is fetched",
        _BUFFER,
        "not (state.paused or state.full)",
        "not state.full",
        _PAUSES,
    ),
    Mutant(
        "the batches of a paused partition are delivered",
        _BUFFER,
        "            self.ready.remove(state)\n            state.paused = True\n",
        "            state.paused = True\n",
        _PAUSES,
    ),
    Mutant(
        "a late answer of a paused partition is delivered",
        _BUFFER,
        "len(state.buffered) == 1 and not state.paused",
        "len(state.buffered) == 1",
        _PAUSES,
    ),
    Mutant(
        "the batches of a paused partition are not delivered after the pause",
        _BUFFER,
        "            state.paused = False\n            if state.buffered:\n",
        "            state.paused = False\n            if False:\n",
        _PAUSES,
    ),
    Mutant(
        "paused partitions may fill the buffer",
        _STATES,
        "if state.buffered and not has_room:",
        "if False:",
        _PAUSES,
    ),
    Mutant(
        "a late answer that the buffer cannot keep is skipped",
        "clients/fetch/fetch_answers.py",
        "            # The records are fetched again after the pause.\n",
        "            state.position += 1\n",
        _PAUSES,
    ),
    Mutant(
        "a seek ends a pause",
        _OWNED,
        "self._fetcher.assign, positions, lost, paused",
        "self._fetcher.assign, positions, lost",
        _DELIVERY,
    ),
    Mutant(
        "a pause drops the rest of a loop's batch",
        _OWNED,
        "            if rest is not None:\n",
        "            if False:\n",
        _DELIVERY,
    ),
    Mutant(
        "a pause does not reach the rest of a loop's batch",
        _OWNED,
        "[self.batch.take_rest(partition) for partition in partitions]",
        "[self.batch.take_rest(partition) for partition in ()]",
        _DELIVERY,
    ),
    # Parts of batches
    Mutant(
        "the rest of a batch is delivered from its beginning again",
        _PARTITION,
        "            start, end = self.taken, len(head)\n",
        "            start, end = 0, len(head)\n",
        _PAUSES,
    ),
    Mutant(
        "a caller that waits for some partitions misses those that are buffered already",
        _QUEUE,
        "        return any(selection.has",
        "        return False and any(selection.has",
        _PAUSES,
    ),
    Mutant(
        "a call that excludes partitions has others miss their batches",
        _QUEUE,
        "(selection.topic is not None or not self._queue)",
        "True",
        _PAUSES,
    ),
    # Seeks
    Mutant(
        "a seek counts the records in flight",
        _OWNED,
        "        self.in_flight.stop_counting([partition])\n",
        "",
        _DELIVERY,
    ),
    Mutant(
        "a seek leaves the finished offset",
        _TRACKER,
        "        offsets.start = offsets.position = offsets.finished = offset\n",
        "        offsets.start = offsets.position = offset\n",
        _SIM,
    ),
    Mutant(
        "a seek back to the committed offset leaves an unknown commit",
        _OFFSETS,
        " or any(offset != finished for offset in self.sent)",
        "",
        _SEEK_TESTS,
    ),
    Mutant(
        "a look-up for a seek overrides a later seek",
        _TRACKER,
        "offsets.floor, offsets.seek_mark = min(offsets.floor, offset), object()",
        "offsets.floor = min(offsets.floor, offset)",
        _SEEK_TESTS,
    ),
    Mutant(
        "a draining partition is not assigned any more",
        _CLAIMS,
        "self._claims.in_phase(claims.Phase.OWNED, claims.Phase.DRAINING), self._subscription.topics",
        "self._claims.in_phase(claims.Phase.OWNED), self._subscription.topics",
        _SIM,
    ),
    # Calls that return records
    Mutant(
        "records that no caller received delay a release for ever",
        _VALUES,
        "self._topics.keys() & {*topics, None}",
        "self._topics.keys() & topics",
        _DELIVERY,
    ),
    Mutant(
        "records count as finished when they are returned",
        _VALUES,
        "        self._topics.setdefault(topic, ValuesInFlight()).add(spans, call, self._owned.boot_time_s())\n",
        "        for span in spans.values():\n            span.state.finished = span.end  # type: ignore[union-attr]\n",
        _DELIVERY,
    ),
    Mutant(
        "a consumer is used in two styles",
        _STYLE,
        "if self._style is not style:",
        "if False:",
        "tests/unit/clients/calls/test_delivery_style.py",
    ),
    Mutant(
        "the listener of a subscription is not called",
        _LISTENER,
        "return self._default if override is None else override",
        "return self._default",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
)
