"""Mutants of the clients' dealings with brokers: metadata, deposed leaders, and brokers that do not answer."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OFFSET_TRACKER = "group/member/offset_tracker.py"
_VALUE_DELIVERY = "clients/delivery/value_delivery.py"
_OWNED_RECORDS = "clients/delivery/owned_records.py"
_CLUSTER_METADATA = "clients/net/cluster_metadata.py"
_METADATA_SOURCES = "clients/net/metadata_sources.py"
_OFFSET_LOOKUP = "clients/net/offset_lookup.py"
_FAILED_FETCHES = "clients/fetch/failed_fetches.py"
_FETCHER = "clients/fetch/fetcher.py"
_CONNECTION = "clients/net/connection.py"

_CLUSTER_METADATA_TESTS = "tests/unit/clients/net/test_cluster_metadata.py"
_RECORD_DELIVERY_TESTS = "tests/unit/clients/delivery/test_record_delivery.py"
_UNCLAIMED_VALUES_TESTS = "tests/unit/clients/delivery/test_unclaimed_values.py"
_DEPOSED_LEADERS_TESTS = "tests/unit/clients/net/test_deposed_leaders.py"
_UNREACHABLE_BROKERS_TESTS = "tests/unit/clients/net/test_unreachable_brokers.py"
_DAMAGED_ANSWERS_TESTS = "tests/unit/clients/fetch/test_damaged_answers.py"

MUTANTS = (
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
        "        if unknown or not answer.response.brokers:\n",
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
        "is_listed = self.listing.is_reliable and topics <= self._topics.keys()",
        "is_listed = self.listing.is_reliable",
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
        "if not error.retriable and not isinstance(error, CommitFailedError):",
        "if True:",
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
        "if leader is None or leader != self._brokers.leader_of(partition):",
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
        _OWNED_RECORDS,
        "        if self._subscription.covers_topic(topic):\n            self._refused[topic]",
        "        if True:\n            self._refused[topic]",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "a drain waits for values that no caller will receive",
        _VALUE_DELIVERY,
        "self._settle(topic, now_s, finishes=False)",
        "pass",
        _UNCLAIMED_VALUES_TESTS,
    ),
    Mutant(
        "a drain finishes values of a coroutine that has ended",
        _VALUE_DELIVERY,
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
        _OWNED_RECORDS,
        "                    positions[partition] = reset.lost\n                    lost.add(partition)\n",
        "                    state.reset = None\n",
        "tests/unit/clients/delivery/test_position_reset.py",
    ),
    Mutant(
        "a topic that is subscribed to again is committed beyond the end of its log",
        _OFFSET_TRACKER,
        "                offsets.finished = reset.end\n",
        "                pass\n",
        "tests/unit/clients/delivery/test_delivery_and_claims.py",
    ),
    Mutant(
        "each unanswered metadata request is followed by a fetch from a silent broker",
        _FAILED_FETCHES,
        "                await asyncio.sleep(self._backoff.delay_s(failures))\n                continue\n",
        "                pass\n",
        "tests/unit/clients/net/test_unreachable_brokers.py",
    ),
    Mutant(
        "a single consumer resets a position without asking another broker for the leader",
        "clients/connected/assigned_consumer.py",
        "await self._cluster.refresh({each.topic for each in self._subscription.assigned_partitions()}, DOUBT)",
        "pass",
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
        _FAILED_FETCHES,
        "        self._cluster.drop_overrides(state.topic_partition for state in waiting)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "fetches that are queued for a deposed leader stay in its queue",
        _FETCHER,
        "        moved = [state for state in broker.ready if",
        "        moved = [state for state in () if",
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
        "consume() returns nothing for ever while all brokers are gone",
        "clients/connected/record_reader.py",
        "                raise self.cluster.unreachable\n",
        "                pass\n",
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
        "clients/fetch/fetch_answers.py",
        "                state.empty_answers += 1\n        state.failures = state.unreadable = 0",
        "                state.empty_answers += 1\n        state.failures = 0",
        _DAMAGED_ANSWERS_TESTS,
    ),
    Mutant(
        "the first unreadable answer is raised",
        _FAILED_FETCHES,
        "if state.unreadable < TRIES_UNREADABLE:",
        "if False:",
        _DAMAGED_ANSWERS_TESTS,
    ),
    Mutant(
        "a connection that has brought an unreadable answer is used again",
        _FETCHER,
        "                    answer.connection.close()\n",
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
)
