"""Mutants of the clients: start positions, fetches, drains and closes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_CLUSTER_METADATA = "clients/net/cluster_metadata.py"
_OFFSET_LOOKUP = "clients/net/offset_lookup.py"
_OFFSET_REQUESTS = "clients/net/offset_requests.py"
_SINGLE = "clients/methods/single_topics.py"
_FETCHER = "clients/fetch/fetcher.py"
_VALUES_IN_FLIGHT = "clients/delivery/values_in_flight.py"
_CONNECTION = "clients/net/connection.py"
_SETTING_NAMES = "clients/calls/setting_names.py"

_CLUSTER_METADATA_TESTS = "tests/unit/clients/net/test_cluster_metadata.py"
_SINGLE_TESTS = "tests/unit/clients/test_single.py"
_FETCHER_TESTS = "tests/unit/clients/fetch/test_fetcher.py"
_RECORD_DELIVERY_TESTS = "tests/unit/clients/delivery/test_record_delivery.py"
_VALUE_DELIVERY_TESTS = "tests/unit/clients/delivery/test_value_delivery.py"
_DEPOSED_LEADERS_TESTS = "tests/unit/clients/net/test_deposed_leaders.py"
_SETTING_NAMES_TESTS = "tests/unit/clients/calls/test_setting_names.py"

MUTANTS = (
    # Arguments
    Mutant(
        "a setting under its name in kafka-python is not answered with the name here",
        _SETTING_NAMES,
        "    if _RENAMED.get(name) in known:\n",
        "    if False:\n",
        _SETTING_NAMES_TESTS,
    ),
    Mutant(
        "a client without a group names an argument that it does not have",
        _SETTING_NAMES,
        "    if _RENAMED.get(name) in known:\n",
        "    if name in _RENAMED:\n",
        _SETTING_NAMES_TESTS,
    ),
    # Start positions
    Mutant(
        "the error of a leader counts as an answer without offsets",
        _OFFSET_LOOKUP,
        "if listed is None or listed.error != NO_ERROR:",
        "if listed is None:",
        _CLUSTER_METADATA_TESTS,
    ),
    Mutant(
        "a time before the first segment of a log has no offset",
        _OFFSET_LOOKUP,
        "    return _known(results) | earliest\n",
        "    return _known(results)\n",
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
        "[each for each in partitions if each not in given], BEGINNING)",
        "[each for each in partitions if each not in given], END)",
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
        "group/member/partition_offsets.py",
        "            self._position, self._finished = self._delivery.offsets()\n            self._delivery = None\n",
        "            self._position, self._finished = self._delivery.offsets()\n",
        _RECORD_DELIVERY_TESTS,
    ),
    Mutant(
        "values count as finished past others that are still being processed",
        _VALUES_IN_FLIGHT,
        "elif receipt is Receipt.RECEIVED and (not done or tp in busy):",
        "elif receipt is Receipt.RECEIVED and not done:",
        _VALUE_DELIVERY_TESTS,
    ),
    Mutant(
        "the position passes over a record that was put back",
        "clients/delivery/current_batch.py",
        "            before = view.delivered - 1\n",
        "            before = view.delivered\n",
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
        "clients/delivery/delivery_handler.py",
        "        self._cluster.drop_overrides(partitions)\n",
        "",
        _DEPOSED_LEADERS_TESTS,
    ),
    Mutant(
        "the end of a log that replaces a time is behind a message that has arrived meanwhile",
        _OFFSET_LOOKUP,
        "for tp, result in (await ask(late)).items():",
        "for tp, result in dict.fromkeys(late).items():",
        "tests/unit/clients/net/test_offset_lookup.py",
    ),
    Mutant(
        "the smaller lag counts while ZooKeeper and Kafka have different offsets",
        "ops/group_view.py",
        "committed=min(stores.values())",
        "committed=max(stores.values())",
        "tests/unit/ops/test_offset_stores.py",
    ),
)
