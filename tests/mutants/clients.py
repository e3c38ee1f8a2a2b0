"""The clients: where reading starts, what is known of the cluster, what a drain waits for, how a close ends."""

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
        "a leader's error that counts as an answer without offsets",
        _OFFSET_LOOKUP,
        "    if listed.error != NO_ERROR:\n",
        "    if False:\n",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a time before the first segment that has no offset",
        _OFFSET_LOOKUP,
        "earliest = await _ask_leader(cluster, leader, too_early, EARLIEST, timeout_ms) if too_early else {}",
        "earliest: dict[TopicPartition, int | Failure] = {}",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "one try for the offsets of a partition that loses its leader",
        _OFFSET_LOOKUP,
        "_TRIES = 8",
        "_TRIES = 1",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "new partitions that a single consumer reads from their end",
        _SINGLE,
        "dict.fromkeys(fresh, BEGINNING)",
        "dict.fromkeys(fresh, END)",
        _SINGLE_TESTS,
    ),
    Mutant(
        "a late partition that starts at the end",
        _SINGLE,
        "BEGINNING if at == END else at",
        "at",
        _SINGLE_TESTS,
    ),
    Mutant(
        "a late partition that is asked for once",
        "clients/fetch/start_lookup.py",
        "        while self._times:\n",
        "        if self._times:\n",
        _SINGLE_TESTS,
    ),
    Mutant(
        "partitions without a chosen offset that start at the end",
        _SINGLE,
        "[tp for tp in partitions if tp not in start], BEGINNING)",
        "[tp for tp in partitions if tp not in start], END)",
        _SINGLE_TESTS,
    ),
    Mutant(
        "an offset fetch that takes an error for an offset",
        _OFFSET_REQUESTS,
        "for tp, answer in answers.items() if answer.error == NO_ERROR}",
        "for tp, answer in answers.items()}",
        "tests/unit/clients/net/test_offset_requests.py",
    ),
    Mutant(
        "a refused offset fetch that is retried",
        _OFFSET_REQUESTS,
        "            if not _may_pass(code):\n",
        "            if False:\n",
        "tests/unit/clients/net/test_offset_requests.py",
    ),
    # Metadata
    Mutant(
        "a leader that is not among the live brokers",
        _CLUSTER_METADATA,
        "return leader if leader is not None and self._address_of(leader) is not None else None",
        "return leader",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a broker that knows no topics and is asked first again",
        _CLUSTER_METADATA,
        "        if unknown or not answer.brokers:\n",
        "        if False:\n",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "brokers registered in ZooKeeper that are never asked",
        _METADATA_SOURCES,
        "for further in (False, True):",
        "for further in (False,):",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "metadata requests that name unknown topics and create them",
        _CLUSTER_METADATA,
        "named = topics if self._names_unknown or topics <= self._topics.keys() else ()",
        "named = topics",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a topic that a restarted broker does not know yet and that counts as deleted",
        _CLUSTER_METADATA,
        "if attempt + 1 >= _TRIES_UNKNOWN and not self._once_known.issuperset(missing):",
        "if attempt + 1 >= _TRIES_UNKNOWN:",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a refresh for each caller",
        _CLUSTER_METADATA,
        "            if wanted <= self._running.topics and (self._running.asks_another or not asks_another):\n",
        "            if False:\n",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "connections to brokers that are gone which stay open",
        _CLUSTER_METADATA,
        "            self._pool.keep_only({*live, *self._overrides.addresses})\n",
        "",
        _CLUSTER_METADATA_TESTS,
    ),
    # Deposed leaders
    Mutant(
        "a reset on the word of a leader that ZooKeeper does not name",
        "clients/delivery/position_reset.py",
        "        await self._confirm_leaders()\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a reset that is chosen anew after a store that failed",
        "clients/delivery/position_reset.py",
        "                if not error.retriable:\n                    raise\n",
        "                raise\n",
        "tests/unit/clients/delivery/test_position_reset.py",
    ),
    Mutant(
        "a leader that was just confirmed and is doubted again",
        _FETCHER,
        'is not settled", doubt=False)',
        'is not settled")',
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "the range of a log from another broker than the confirmed leader",
        "clients/delivery/position_reset.py",
        "if leader is None or leader != self._cluster.leader_of(partition):",
        "if False:",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "leaders that an ACL hides and that stop the member",
        "coordination/member/partition_leaders.py",
        "            if error.retriable:\n                raise\n",
        "            raise\n",
        "tests/unit/coordination/member/test_partition_leaders.py",
    ),
    Mutant(
        "an error about a topic that left the subscription",
        _RECORD_DELIVERY,
        "        if topic in self._subscription.subscription:\n            self._refused[topic]",
        "        if True:\n            self._refused[topic]",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "a drain that waits for values that nobody gets",
        _RECORD_DELIVERY,
        "self._settle(topic, now_s, finishes=False)",
        "pass",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "a drain that finishes what a coroutine that has ended got",
        _RECORD_DELIVERY,
        "self._settle(topic, now_s, finishes=False)",
        "self._settle(topic, now_s)",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "a look at leaders for each partition that is reset",
        "clients/delivery/position_reset.py",
        "if self._next_read is None:",
        "if True:",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a reset that joins a look at leaders which began before it",
        "clients/delivery/position_reset.py",
        "        self._read, self._next_read = self._next_read, None\n        await self._member.confirm_leaders()\n",
        "        await self._member.confirm_leaders()\n        self._read, self._next_read = self._next_read, None\n",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a topic that comes back and forgets the reset of its partition",
        _RECORD_DELIVERY,
        "                    positions[partition] = reset.lost\n                    lost.add(partition)\n",
        "                    state.reset = None\n",
        "tests/unit/clients/delivery/test_position_reset.py",
    ),
    Mutant(
        "a topic that comes back and commits beyond the end of its log",
        _RECORD_DELIVERY,
        "state.finished, state.reset = min(state.finished, reset.end), None",
        "state.reset = None",
        "tests/unit/clients/delivery/test_delivery_and_claims.py",
    ),
    Mutant(
        "a fetch from a silent broker for each metadata request that is not answered",
        _FETCHER,
        "                await asyncio.sleep(self._cluster.delay_s(failures))\n                continue\n",
        "                pass\n",
        "tests/unit/clients/net/test_unreachable_brokers.py",
    ),
    Mutant(
        "a reset of a single consumer that no other broker confirms",
        _SINGLE,
        "        await self._cluster.refresh([topic_partition.topic], DOUBT)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "metadata by age from the broker that answered last",
        _CLUSTER_METADATA,
        "            if reason in _ASK_ANOTHER:\n",
        "            if False:\n",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a bootstrap name that counts as another broker than its own address",
        _METADATA_SOURCES,
        "return self.last is None or self.last in live",
        "return True",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a believed leader whose connections a refresh closes",
        _CLUSTER_METADATA,
        "keep_only({*live, *self._overrides.addresses})",
        "keep_only(live)",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a believed leader that only brokers may locate",
        _CLUSTER_METADATA,
        "self._brokers.get(node_id) or self._overrides.address_of(node_id)",
        "self._brokers.get(node_id)",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a rotation to brokers that are gone",
        _METADATA_SOURCES,
        "others = [address for address in self._addresses if address in live]",
        "others = list(self._addresses)",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a believed leader that refuses and is asked for ever",
        _FETCHER,
        "        self._cluster.drop_overrides(state.topic_partition for state in waiting)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "fetches queued at a deposed leader that stay there",
        _FETCHER,
        "            self._reroute(broker)\n",
        "            pass\n",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a believed leader that fails a look-up of offsets and is asked again",
        _OFFSET_LOOKUP,
        "    cluster.drop_overrides(failures)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "a dead broker that ZooKeeper names as the leader and that is believed",
        "coordination/member/partition_leaders.py",
        "if leader in brokers:",
        "if leader >= 0:",
        "tests/unit/coordination/member/test_partition_leaders.py",
    ),
    Mutant(
        "leaders that are read from a server which lags",
        "coordination/member/partition_leaders.py",
        "        await self._writer.prove()\n",
        "",
        "tests/unit/coordination/member/test_partition_leaders.py",
    ),
    # Brokers that do not answer, and answers that cannot be read
    Mutant(
        "failed refreshes in a row that an answer does not end",
        _METADATA_SOURCES,
        "self.last, self.failures, self._unanswered = address, 0, None",
        "self.last = address",
        _UNREACHABLE_BROKERS_TESTS,
    ),
    Mutant(
        "a single consumer that returns nothing for ever while all brokers are gone",
        _SINGLE,
        "            raise unreachable\n",
        "            pass\n",
        _UNREACHABLE_BROKERS_TESTS,
    ),
    Mutant(
        "a member of a group that returns nothing for ever while all brokers are gone",
        "clients/delivery/connected_consumer.py",
        "                    raise unreachable\n",
        "                    pass\n",
        f"{_UNREACHABLE_BROKERS_TESTS}::test_consume_of_a_group_raises_while_no_broker_answers",
    ),
    Mutant(
        "twice as many refreshes without an answer as the documentation says",
        _METADATA_SOURCES,
        "UNREACHABLE_AFTER = 8",
        "UNREACHABLE_AFTER = 16",
        f"{_UNREACHABLE_BROKERS_TESTS}::test_unanswered_refreshes_in_a_row_are_counted",
    ),
    Mutant(
        "unreadable answers that count together although others came between",
        _FETCHER,
        "state.failures = state.unreadable = 0",
        "state.failures = 0",
        _DAMAGED_ANSWERS_TESTS,
    ),
    Mutant(
        "a damaged answer that is raised at once",
        _FETCHER,
        "if state.unreadable < TRIES_UNREADABLE:",
        "if False:",
        _DAMAGED_ANSWERS_TESTS,
    ),
    Mutant(
        "a damaged answer whose connection is used again",
        _FETCHER,
        "                    connection.close()\n",
        "                    pass\n",
        _DAMAGED_ANSWERS_TESTS,
    ),
    Mutant(
        "an unexpected error in an answer that only its time-out ends",
        _CONNECTION,
        "except Exception as error:  # garbage may",
        "except ProtocolError as error:  # garbage may",
        _DAMAGED_ANSWERS_TESTS,
    ),
    # Answers and assignments
    Mutant(
        "an answer to a fetch of an earlier assignment that counts",
        _FETCHER,
        "            if state.dropped:\n                continue\n            fetched = ",
        "            fetched = ",
        _FETCHER_TESTS,
    ),
    Mutant(
        "a partition that an answer leaves out and that is never fetched again",
        _FETCHER,
        '                moved.setdefault("left out of the answer", []).append(state)\n',
        "                pass\n",
        _FETCHER_TESTS,
    ),
    # Drains
    Mutant(
        "a record in flight whose end undoes an operator's reset",
        _IN_FLIGHT,
        "and self.record.topic_partition in partitions:\n            self.state = None\n",
        "and self.record.topic_partition in partitions:\n            pass\n",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "values that count as finished past others that are still being processed",
        _IN_FLIGHT,
        "elif received and (not done or tp in busy):",
        "elif received and not done:",
        _VALUE_DELIVERY_TESTS,
    ),
    Mutant(
        "a record that was put back and is passed over by the position",
        _RECORD_DELIVERY,
        "            state.position = record.offset\n            if state is self._state:\n",
        "            if state is self._state:\n",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "a hook that keeps running for partitions that are lost",
        "clients/delivery/listener_calls.py",
        "            running.task.cancel()\n",
        "            pass\n",
        "tests/unit/clients/delivery/test_listener_calls.py",
    ),
    # Closes
    Mutant(
        "a caller that waits for ever for a batch of a closed fetcher",
        _FETCHER,
        "            task.cancel()\n        self._buffer.ready.wake_all()\n",
        "            task.cancel()\n",
        _FETCHER_TESTS,
    ),
    Mutant(
        "a broken connection that does not fail the requests in flight",
        _CONNECTION,
        "                asked.answer.set_exception(copy(error))\n",
        "                pass\n",
        "tests/unit/clients/net/test_connection.py",
    ),
    Mutant(
        "brokers that stay unreachable although they are back, where nothing is fetched",
        _CLUSTER_METADATA,
        "                await self._sources.all_unreachable.wait()\n",
        "                await asyncio.Event().wait()\n",
        "tests/unit/clients/net/test_unreachable_brokers.py::test_unreachable_brokers_are_asked_until_one_answers",
    ),
    Mutant(
        "a claim that is not open and no finding where an old offset stands",
        "ops/checks.py",
        "not each.opened",
        "each.committed_ms is None",
        "tests/unit/ops/test_checks.py",
    ),
    Mutant(
        "claims without a position of which no warning comes",
        "coordination/member/unopened_claims.py",
        "            if not failure.is_warned and",
        "            if False and",
        "tests/unit/coordination/member/test_unopened_claims.py",
    ),
    Mutant(
        "a claim that is deleted before it is open and not made again",
        "coordination/member/owned_partitions.py",
        "                gone = await self._owner_znodes.verify(waiting)\n",
        "                gone = frozenset()\n",
        "tests/sim/test_leaderless_partitions.py",
    ),
    Mutant(
        "leaders that only a reset looks at",
        "coordination/member/owned_partitions.py",
        "        await self.confirm_leaders()\n        self.recheck()\n",
        "        self.recheck()\n",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "a leader that ZooKeeper named to a session which is over",
        "clients/delivery/connected_consumer.py",
        "        self._cluster.drop_overrides(partitions)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
)
