"""No part waits for ever for something that does not come."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        "the heartbeat keeps a connection on which the server reports that the session moved",
        "zookeeper/heartbeat.py",
        "            self._connection.leave(used, MOVED)\n",
        "            pass\n",
        "tests/sim/test_reconnection.py",
    ),
    Mutant(
        "the heartbeat keeps a connection on which it is not answered",
        "zookeeper/heartbeat.py",
        "        if sent_s is not None and now_s - sent_s >= limit_s:",
        "        if sent_s is not None and now_s - sent_s >= 1000 * limit_s:",
        "tests/failures/test_ensembles.py::test_one_server_freezes_and_another_one_is_killed",
    ),
    Mutant(
        "the fenced writer polls a shut gate for ever instead of raising SessionLostError",
        "zookeeper/fenced_writes.py",
        "        await self._session.wait_trusted()\n",
        "",
        "tests/unit/zookeeper/test_gated_writes.py",
    ),
    Mutant(
        "the end of a session does not fail its requests in flight",
        "zookeeper/pending_requests.py",
        '                sent.set_exception(SessionLostError(f"the ZooKeeper session is over: {reason}"))',
        "                pass",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a join waits for ever for a server that opened the session and then does not answer",
        "members/zookeeper/group_session.py",
        "            async with asyncio.timeout_at(by_s):\n",
        "            if True:\n",
        "tests/sim/test_join_timeouts.py",
    ),
    Mutant(
        "each call has as many reads in flight as a session may have",
        "zookeeper/session.py",
        "                    await self._read_slots.acquire()\n",
        "",
        "tests/sim/test_read_limits.py",
    ),
    Mutant(
        "a hint during a read of the assignment is forgotten",
        "members/zookeeper/owned_partitions.py",
        "            self._due.clear()\n            read = await self._read_assignment()\n",
        "            read = await self._read_assignment()\n            self._due.clear()\n",
        "tests/sim/test_stale_reads.py",
    ),
    Mutant(
        "an unexpected error ends the automatic commits",
        "clients/connected_consumer.py",
        "            except Exception as error:\n                self._failed(error)",
        "            except KielGroupsError as error:\n                self._failed(error)",
        "tests/unit/clients/test_auto_commit.py",
    ),
    Mutant(
        "a member does not audit unless it gets a hint",
        "members/zookeeper/owned_partitions.py",
        "asyncio.timeout_at(audit_due_s)",
        "asyncio.timeout_at(None)",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "an owner does not notice that its topic was created again",
        "members/offsets/topic_incarnations.py",
        "        if before is not None and seen != before:\n",
        "        if False:\n",
        "tests/sim/test_member_assignments.py",
    ),
    Mutant(
        "consume() returns nothing for ever while all brokers are gone",
        "clients/delivery/record_reader.py",
        "                raise self.cluster.unreachable\n",
        "                pass\n",
        "tests/unit/clients/net/test_unreachable_brokers.py::test_consume_of_a_group_raises_while_no_broker_answers",
    ),
    Mutant(
        "the end of a consumer does not wake the calls that wait",
        "clients/delivery/record_reader.py",
        "            self.fetcher.ready.wake_all()\n",
        "",
        "tests/unit/clients/test_connected_consumer.py",
    ),
    Mutant(
        "a member whose assignment cannot be read stops",
        "members/brokers/member.py",
        "            await self._rejoin_later(gate, joined, error)\n            return\n",
        "            raise\n",
        "tests/unit/members/brokers/test_joins_and_assignments.py",
    ),
    Mutant(
        "a member that closes during its first join holds its group up",
        "group/member_state.py",
        "return self.coordinator if self.member_id and self.phase",
        "return self.coordinator if self.is_member and self.phase",
        "tests/unit/group/test_member_state.py",
    ),
)
