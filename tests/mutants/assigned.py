"""Mutants of assigned partitions: where they start, what a change keeps, and that nothing is committed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_ASSIGNED_CONSUMER = "clients/connected/assigned_consumer.py"
_SUBSCRIPTION = "group/member/subscription.py"
_ASSIGNED_CONSUMER_TESTS = "tests/unit/clients/connected/test_assigned_consumer.py"

MUTANTS = (
    Mutant(
        "another assignment starts the partitions anew that stay",
        _ASSIGNED_CONSUMER,
        "gone = (ready | self._subscription.offsets.open_partitions()) - assigned\n",
        "gone, ready = ready, frozenset()\n",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "records are delivered before the assigned hook of a listener without a group has returned",
        _ASSIGNED_CONSUMER,
        'spawn(self.reader.owned.ready.assigned(opened), "on_partitions_assigned")',
        'spawn(self._calls.assigned(opened), "x"), self.reader.owned.ready.add(opened)',
        "tests/unit/clients/test_single_listener.py",
    ),
    Mutant(
        "without a group, the revoked hook runs after the positions are gone",
        "clients/methods/single_topics.py",
        "                await connected.revoke()\n                self._leave_all(connected)\n",
        "                self._leave_all(connected)\n                await connected.revoke()\n",
        "tests/unit/clients/test_single_listener.py",
    ),
    Mutant(
        "an unsubscribe that is not awaited takes effect later",
        "clients/methods/single_topics.py",
        "self._unsubscribing.locked() or connected.must_revoke",
        "True",
        "tests/unit/clients/test_single_listener.py",
    ),
    Mutant(
        "a later call with a limit does not shorten the close of a consumer without a group",
        "clients/single.py",
        "            self._limit.shorten(timeout_s)\n",
        "            pass\n",
        "tests/unit/clients/test_single_listener.py",
    ),
    Mutant(
        "topics are added while the revoked hook of an unsubscribe runs",
        "clients/methods/single_topics.py",
        "        async with self._unsubscribing:\n            pass",
        "        if True:\n            pass",
        "tests/unit/clients/test_single_listener.py",
    ),
    Mutant(
        "partitions that left the assignment are still read",
        _ASSIGNED_CONSUMER,
        "        owned.drop(gone)\n",
        "",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "the start that was looked up replaces the offset that the application has sought",
        _SUBSCRIPTION,
        "if each in self._assigned and not self.offsets.is_open(each)]",
        "if each in self._assigned]",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "the start that was looked up voids a seek that waits",
        _SUBSCRIPTION,
        "            self.offsets.set_seek_mark(partition, mark)\n        return opened",
        "        return opened",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "an assigned partition starts by the policy although the group has an offset",
        _ASSIGNED_CONSUMER,
        "                self.open(await self._stored(missing), StartOrigin.STORED)\n",
        "                await self._stored(missing)\n",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "a failed look-up of stored offsets is not repeated",
        _ASSIGNED_CONSUMER,
        "            if self._unopened():\n                await asyncio.sleep(backoff.next_s())\n",
        "            return\n",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "the application is not notified that no start can be chosen",
        _ASSIGNED_CONSUMER,
        "                self.reader.owned.refuse(topic, error)\n",
        "                pass\n",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "the error about a start is raised although the application has sought",
        "clients/delivery/owned_records.py",
        "        self._refused.pop(partition.topic, None)\n",
        "",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "the start of a partition is looked up after it has left the assignment",
        "clients/fetch/start_lookup.py",
        "            self._times.pop(partition, None)\n",
        "            pass\n",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "the end of a consumer does not end the wait for a position",
        "clients/connected/record_reader.py",
        "            self.owned.progress.notify()\n",
        "",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "a consumer commits partitions that it has not claimed",
        "clients/methods/membership.py",
        "if self._subscription.is_manual() or isinstance(self._connected, AssignedConsumer):",
        "if isinstance(self._connected, AssignedConsumer):",
        _ASSIGNED_CONSUMER_TESTS,
    ),
    Mutant(
        "a subscribe() that ends after unsubscribe() subscribes nevertheless",
        "clients/methods/single_topics.py",
        "if self._round is this_round:",
        "if self._round is not None:",
        _ASSIGNED_CONSUMER_TESTS,
    ),
)
