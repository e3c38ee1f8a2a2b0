"""Mutants of the clients: start positions, metadata, leaders, fetches, drains and closes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_CLUSTER_METADATA = "clients/net/cluster_metadata.py"
_METADATA_SOURCES = "clients/net/metadata_sources.py"
_OFFSET_LOOKUP = "clients/net/offset_lookup.py"
_OFFSET_REQUESTS = "clients/net/offset_requests.py"
_SINGLE = "clients/single.py"
_FETCHER = "clients/fetch/fetcher.py"
_RECORD_DELIVERY = "clients/delivery/record_delivery.py"
_IN_FLIGHT = "clients/delivery/in_flight.py"
_CONNECTION = "clients/net/connection.py"

_CLUSTER_METADATA_TESTS = "tests/unit/clients/net/test_cluster_metadata.py"
_SINGLE_TESTS = "tests/unit/clients/test_single.py"
_FETCHER_TESTS = "tests/unit/clients/fetch/test_fetcher.py"
_RECORD_DELIVERY_TESTS = "tests/unit/clients/delivery/test_record_delivery.py"
_VALUE_DELIVERY_TESTS = "tests/unit/clients/delivery/test_value_delivery.py"
_UNCLAIMED_VALUES_TESTS = "tests/unit/clients/delivery/test_unclaimed_values.py"
_DEPOSED_LEADERS_TESTS = "tests/unit/clients/net/test_deposed_leaders.py"
_UNREACHABLE_BROKERS_TESTS = "tests/unit/clients/net/test_unreachable_brokers.py"
_DAMAGED_ANSWERS_TESTS = "tests/unit/clients/fetch/test_damaged_answers.py"

MUTANTS = (
    # Start positions
    Mutant(
        "the error of a leader counts as an answer without offsets",
        _OFFSET_LOOKUP,
        "    if listed.error != NO_ERROR:\n",
        "    if False:\n",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a time before the first segment of a log has no offset",
        _OFFSET_LOOKUP,
        "earliest = await _ask_leader(cluster, leader, too_early, EARLIEST, timeout_ms) if too_early else {}",
        "earliest: dict[TopicPartition, int | Failure] = {}",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a look-up of offsets is not repeated after a partition has lost its leader",
        _OFFSET_LOOKUP,
        "_TRIES = 8",
        "_TRIES = 1",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a single consumer reads added partitions from their end",
        _SINGLE,
        "dict.fromkeys(fresh, BEGINNING)",
        "dict.fromkeys(fresh, END)",
        _SINGLE_TESTS,
    ),
    Mutant(
        "a partition that misses the start look-up starts at its end",
        _SINGLE,
        "BEGINNING if at == END else at",
        "at",
        _SINGLE_TESTS,
    ),
    Mutant(
        "a failed look-up of a late partition's start is not repeated",
        "clients/fetch/start_lookup.py",
        "        while self._times:\n",
        "        if self._times:\n",
        _SINGLE_TESTS,
    ),
    Mutant(
        "a partition without a given start offset starts at its end",
        _SINGLE,
        "[tp for tp in partitions if tp not in start], BEGINNING)",
        "[tp for tp in partitions if tp not in start], END)",
        _SINGLE_TESTS,
    ),
    Mutant(
        "an offset fetch takes an answer with an error for an offset",
        _OFFSET_REQUESTS,
        "for tp, answer in answers.items() if answer.error == NO_ERROR}",
        "for tp, answer in answers.items()}",
        "tests/unit/clients/net/test_offset_requests.py",
    ),
    Mutant(
        "an offset fetch that was refused for good is repeated",
        _OFFSET_REQUESTS,
        "            if not _may_pass(code):\n",
        "            if False:\n",
        "tests/unit/clients/net/test_offset_requests.py",
    ),
    # Metadata
    Mutant(
        "a broker that is not among the live ones counts as a leader",
        _CLUSTER_METADATA,
        "return leader if leader is not None and self._address_of(leader) is not None else None",
        "return leader",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a broker that knows no topics is asked first again",
        _CLUSTER_METADATA,
        "        if unknown or not answer.brokers:\n",
        "        if False:\n",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "brokers that are registered in ZooKeeper are never asked for metadata",
        _METADATA_SOURCES,
        "for further in (False, True):",
        "for further in (False,):",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "metadata requests name unknown topics, and brokers create them",
        _CLUSTER_METADATA,
        "named = topics if self._names_unknown or topics <= self._topics.keys() else ()",
        "named = topics",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a topic that a restarted broker does not know yet counts as deleted",
        _CLUSTER_METADATA,
        "if attempt + 1 >= _TRIES_UNKNOWN and not self._once_known.issuperset(missing):",
        "if attempt + 1 >= _TRIES_UNKNOWN:",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "each caller of a metadata refresh sends its own request",
        _CLUSTER_METADATA,
        "            if wanted <= self._running.topics and (self._running.asks_another or not asks_another):\n",
        "            if False:\n",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "connections to brokers that are gone stay open",
        _CLUSTER_METADATA,
        "            self._pool.keep_only({*live, *self._overrides.addresses})\n",
        "",
        _CLUSTER_METADATA_TESTS,
    ),
    # Deposed leaders
    Mutant(
        "a position is reset without a check of the leader that ZooKeeper names",
        "clients/delivery/position_reset.py",
        "        await self._confirm_leaders()\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a reset that could not be stored is chosen again",
        "clients/delivery/position_reset.py",
        "                if not error.retriable:\n                    raise\n",
        "                raise\n",
        "tests/unit/clients/delivery/test_position_reset.py",
    ),
    Mutant(
        "a leader that was just confirmed is doubted after an unsettled reset",
        _FETCHER,
        'is not settled", doubt=False)',
        'is not settled")',
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "the range of a log may come from another broker than the confirmed leader",
        "clients/delivery/position_reset.py",
        "if leader is None or leader != self._cluster.leader_of(partition):",
        "if False:",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "partition leaders that an ACL hides stop the member",
        "coordination/member/partition_leaders.py",
        "            if error.retriable:\n                raise\n",
        "            raise\n",
        "tests/unit/coordination/member/test_partition_leaders.py",
    ),
    Mutant(
        "an error about a topic outside of the subscription is raised",
        _RECORD_DELIVERY,
        "        if topic in self._subscription.subscription:\n            self._refused[topic]",
        "        if True:\n            self._refused[topic]",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "a drain waits for values that no caller will receive",
        _RECORD_DELIVERY,
        "self._settle(topic, now_s, finishes=False)",
        "pass",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "a drain finishes values of a coroutine that has ended",
        _RECORD_DELIVERY,
        "self._settle(topic, now_s, finishes=False)",
        "self._settle(topic, now_s)",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "each partition that is reset reads the leaders on its own",
        "clients/delivery/position_reset.py",
        "if self._next_read is None:",
        "if True:",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a reset joins a read of leaders that began before it",
        "clients/delivery/position_reset.py",
        "        self._read, self._next_read = self._next_read, None\n        await self._member.confirm_leaders()\n",
        "        await self._member.confirm_leaders()\n        self._read, self._next_read = self._next_read, None\n",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a topic that is subscribed to again loses the reset of its partition",
        _RECORD_DELIVERY,
        "                    positions[partition] = reset.lost\n                    lost.add(partition)\n",
        "                    state.reset = None\n",
        "tests/unit/clients/delivery/test_position_reset.py",
    ),
    Mutant(
        "a topic that is subscribed to again is committed beyond the end of its log",
        _RECORD_DELIVERY,
        "state.finished, state.reset = min(state.finished, reset.end), None",
        "state.reset = None",
        "tests/unit/clients/delivery/test_delivery_and_claims.py",
    ),
    Mutant(
        "each unanswered metadata request is followed by a fetch from a silent broker",
        _FETCHER,
        "                await asyncio.sleep(self._cluster.delay_s(failures))\n                continue\n",
        "                pass\n",
        "tests/unit/clients/net/test_unreachable_brokers.py",
    ),
    Mutant(
        "a single consumer resets a position without asking another broker for the leader",
        _SINGLE,
        "        await self._cluster.refresh([topic_partition.topic], DOUBT)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "metadata is refreshed by age from the broker that answered last",
        _CLUSTER_METADATA,
        "            if reason in _ASK_ANOTHER:\n",
        "            if False:\n",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a bootstrap name counts as another broker than its own address",
        _METADATA_SOURCES,
        "return self.last is None or self.last in live",
        "return True",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a metadata refresh closes the connections to a leader that ZooKeeper names",
        _CLUSTER_METADATA,
        "keep_only({*live, *self._overrides.addresses})",
        "keep_only(live)",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "the address of a leader that ZooKeeper names is taken from brokers only",
        _CLUSTER_METADATA,
        "self._brokers.get(node_id) or self._overrides.address_of(node_id)",
        "self._brokers.get(node_id)",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a metadata refresh may rotate to a broker that is gone",
        _METADATA_SOURCES,
        "others = [address for address in self._addresses if address in live]",
        "others = list(self._addresses)",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a leader that ZooKeeper names and that refuses fetches is asked for ever",
        _FETCHER,
        "        self._cluster.drop_overrides(state.topic_partition for state in waiting)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "fetches that are queued for a deposed leader stay in its queue",
        _FETCHER,
        "            self._reroute(broker)\n",
        "            pass\n",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a leader that ZooKeeper names and that fails a look-up of offsets is asked again",
        _OFFSET_LOOKUP,
        "    cluster.drop_overrides(failures)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a dead broker that ZooKeeper names as the leader overrides the metadata",
        "coordination/member/partition_leaders.py",
        "if leader in brokers:",
        "if leader >= 0:",
        "tests/unit/coordination/member/test_partition_leaders.py",
    ),
    Mutant(
        "partition leaders are read from a server that may lag",
        "coordination/member/partition_leaders.py",
        "        await self._writer.prove()\n",
        "",
        "tests/unit/coordination/member/test_partition_leaders.py",
    ),
    # Brokers that do not answer, and unreadable answers
    Mutant(
        "an answer does not end a row of unanswered metadata requests",
        _METADATA_SOURCES,
        "self.last, self.failures, self._unanswered = address, 0, None",
        "self.last = address",
        _UNREACHABLE_BROKERS_TESTS,
    ),
    Mutant(
        "SingleConsumer.consume() returns nothing for ever while all brokers are gone",
        _SINGLE,
        "            raise unreachable\n",
        "            pass\n",
        _UNREACHABLE_BROKERS_TESTS,
    ),
    Mutant(
        "GroupedConsumer.consume() returns nothing for ever while all brokers are gone",
        "clients/delivery/connected_consumer.py",
        "                    raise unreachable\n",
        "                    pass\n",
        f"{_UNREACHABLE_BROKERS_TESTS}::test_consume_of_a_group_raises_while_no_broker_answers",
    ),
    Mutant(
        "brokers count as unreachable after twice as many refreshes as documented",
        _METADATA_SOURCES,
        "UNREACHABLE_AFTER = 8",
        "UNREACHABLE_AFTER = 16",
        f"{_UNREACHABLE_BROKERS_TESTS}::test_unanswered_refreshes_in_a_row_are_counted",
    ),
    Mutant(
        "unreadable answers count as consecutive although readable ones came in between",
        _FETCHER,
        "state.failures = state.unreadable = 0",
        "state.failures = 0",
        _DAMAGED_ANSWERS_TESTS,
    ),
    Mutant(
        "the first unreadable answer is raised",
        _FETCHER,
        "if state.unreadable < TRIES_UNREADABLE:",
        "if False:",
        _DAMAGED_ANSWERS_TESTS,
    ),
    Mutant(
        "a connection that has brought an unreadable answer is used again",
        _FETCHER,
        "                    connection.close()\n",
        "                    pass\n",
        _DAMAGED_ANSWERS_TESTS,
    ),
    Mutant(
        "an unexpected error in an answer leaves its request waiting for the timeout",
        _CONNECTION,
        "except Exception as error:  # garbage may",
        "except ProtocolError as error:  # garbage may",
        _DAMAGED_ANSWERS_TESTS,
    ),
    # Answers and assignments
    Mutant(
        "an answer to a fetch of an earlier assignment counts",
        _FETCHER,
        "            if state.dropped:\n                continue\n            fetched = ",
        "            fetched = ",
        _FETCHER_TESTS,
    ),
    Mutant(
        "a partition that an answer leaves out is never fetched again",
        _FETCHER,
        '                moved.setdefault("left out of the answer", []).append(state)\n',
        "                pass\n",
        _FETCHER_TESTS,
    ),
    # Drains
    Mutant(
        "the end of a record in flight undoes an operator's reset",
        _IN_FLIGHT,
        "and self.record.topic_partition in partitions:\n            self.state = None\n",
        "and self.record.topic_partition in partitions:\n            pass\n",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "values count as finished past others that are still being processed",
        _IN_FLIGHT,
        "elif received and (not done or tp in busy):",
        "elif received and not done:",
        _VALUE_DELIVERY_TESTS,
    ),
    Mutant(
        "the position passes over a record that was put back",
        _RECORD_DELIVERY,
        "            state.position = record.offset\n            if state is self._state:\n",
        "            if state is self._state:\n",
        _RECORD_DELIVERY_TESTS,
    ),
    # Closes
    Mutant(
        "a caller waits for ever for a batch of a closed fetcher",
        _FETCHER,
        "            task.cancel()\n        self._buffer.ready.wake_all()\n",
        "            task.cancel()\n",
        _FETCHER_TESTS,
    ),
    Mutant(
        "a broken connection does not fail the requests in flight",
        _CONNECTION,
        "                asked.answer.set_exception(copy(error))\n",
        "                pass\n",
        "tests/unit/clients/net/test_connection.py",
    ),
    Mutant(
        "brokers stay unreachable although they are back, unless something is fetched",
        _CLUSTER_METADATA,
        "                await self._sources.all_unreachable.wait()\n",
        "                await asyncio.Event().wait()\n",
        "tests/unit/clients/net/test_unreachable_brokers.py::test_unreachable_brokers_are_asked_until_one_answers",
    ),
    Mutant(
        "a claim that is not open is not reported if an older offset is stored",
        "ops/checks.py",
        "not each.opened",
        "each.committed_ms is None",
        "tests/unit/ops/test_checks.py",
    ),
    Mutant(
        "claims without a position cause no warning",
        "coordination/member/unopened_claims.py",
        "            if not failure.is_warned and",
        "            if False and",
        "tests/unit/coordination/member/test_unopened_claims.py",
    ),
    Mutant(
        "a claim that is deleted before it is open is not claimed again",
        "coordination/member/owned_partitions.py",
        "                gone = await self._owner_znodes.verify(waiting)\n",
        "                gone = frozenset()\n",
        "tests/sim/test_leaderless_partitions.py",
    ),
    Mutant(
        "an audit does not read the leaders of the owned partitions",
        "coordination/member/owned_partitions.py",
        "        await self.confirm_leaders()\n        self.recheck()\n",
        "        self.recheck()\n",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a lost partition keeps the leader that ZooKeeper named to the lost session",
        "clients/delivery/connected_consumer.py",
        "        self._cluster.drop_overrides(partitions)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
)
