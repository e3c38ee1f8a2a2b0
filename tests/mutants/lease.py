"""Mutants of the lease, the gate, heartbeats and the watchdog."""

from __future__ import annotations

from tests.mutants.mutant import ON_SERVERS, Mutant

__all__ = ["MUTANTS"]

_FENCED_WRITES = "coordination/session/fenced_writes.py"
_RECORD_DELIVERY = "clients/delivery/record_delivery.py"
_HEARTBEAT = "coordination/session/heartbeat.py"
_DELIVERY_GATE = "coordination/session/delivery_gate.py"
_ZK_SESSION = "coordination/session/zk_session.py"
_LEASE = "group/member/lease.py"
_WATCHDOG = "coordination/session/watchdog.py"
_GROUP_SESSION = "coordination/member/group_session.py"

MUTANTS = (
    # The lease
    Mutant(
        "the lease lasts longer than the session timeout",
        _LEASE,
        "return last_proof_s + session_timeout_ms / 1000 * (1 - reserve)",
        "return last_proof_s + session_timeout_ms / 1000 * 1.3",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a heartbeat renews the lease from the moment of its answer",
        _HEARTBEAT,
        "            self._gate.renew(sent_s)\n",
        "            self._gate.renew(self._runtime.boot_time_s())\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "the lease counts by a clock that stops while the computer is suspended",
        "coordination/zookeeper/runtime.py",
        "time.CLOCK_BOOTTIME",
        "time.CLOCK_MONOTONIC",
        "tests/unit/coordination/zookeeper/test_runtime.py",
    ),
    Mutant(
        "an answered read renews the lease",
        _ZK_SESSION,
        "                    found[number] = answer\n",
        "                    found[number] = answer\n"
        "                    self.gate.renew(self._runtime.boot_time_s())\n",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a loop receives a record while the gate is shut",
        _RECORD_DELIVERY,
        "if now_s >= self.pause_at_s or not self.owned.gate.is_open(now_s):",
        "if now_s >= self.pause_at_s:",
        "tests/unit/clients/delivery/test_record_delivery.py",
    ),
    Mutant(
        "a loop takes a record of its batch while the gate is shut",
        "clients/delivery/record_steps.py",
        "if now_s < self._pause_at_s and self._is_open(now_s):",
        "if now_s < self._pause_at_s:",
        "tests/unit/clients/delivery/test_record_loop.py",
    ),
    Mutant(
        "a compiled loop takes a record of its batch while the gate is shut",
        "clients/delivery/_steps.c",
        "if (may_take(steps) <= 0 ",
        "if (may_take(steps) < 0 ",
        "tests/unit/clients/delivery/test_record_loop.py",
    ),
    Mutant(
        "a loop takes the records of a session by the gate of the next one",
        "clients/delivery/record_loop.py",
        "self._pause_at_s, self._is_open = self.delivery.pause_at_s, self.delivery.owned.gate.is_open\n",
        "self._pause_at_s = self.delivery.pause_at_s\n",
        "tests/unit/clients/delivery/test_record_loop.py",
    ),
    Mutant(
        "a blocking loop takes a record of its batch while the gate is shut",
        "clients/delivery/record_steps.py",
        "if self._is_open(self._boot_time_s()):",
        "if True:",
        "tests/unit/sync/test_blocking_records.py",
    ),
    Mutant(
        "consume() returns values while the gate is shut",
        "clients/delivery/owned_records.py",
        "return not self._ended and self.gate.is_open(self.boot_time_s())",
        "return not self._ended",
        "tests/unit/clients/delivery/test_value_delivery.py",
    ),
    Mutant(
        "the gate stays open after the end of the lease",
        _DELIVERY_GATE,
        "        if now_s < self.deadline_s:\n            return",
        "        if True:\n            return",
    ),
    Mutant(
        "a heartbeat checks the root instead of the member znode",
        _HEARTBEAT,
        "transaction.check(self._proof, -1)",
        'transaction.check("/", -1)',
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "the heartbeat keeps a connection on which the server reports that the session moved",
        _HEARTBEAT,
        "            self._connection.leave(used, MOVED)\n",
        "            pass\n",
        "tests/sim/test_reconnection.py",
    ),
    Mutant(
        "a refused heartbeat renews the lease",
        _HEARTBEAT,
        "        elif any(isinstance(result, NoNodeError) for result in answer.value):\n"
        '            self._gate.shut("member znode gone")\n'
        "            if not self._stopped:\n"
        '                self._session.abandon("the member znode is gone")\n'
        "        elif not any(isinstance(result, Exception) for result in answer.value):\n",
        "        if answer.value:\n",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a heartbeat does not end the session whose member znode is gone",
        _HEARTBEAT,
        "        elif any(isinstance(result, NoNodeError) for result in answer.value):\n",
        "        elif False:\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a gate that was shut opens again when kazoo opens another session",
        _DELIVERY_GATE,
        "return not self.suspended and self.shut_reason is None",
        "return not self.suspended",
    ),
    Mutant(
        "the heartbeat keeps a connection on which it is not answered",
        _HEARTBEAT,
        "        if sent_s is not None and now_s - sent_s >= limit_s:",
        "        if sent_s is not None and now_s - sent_s >= 1000 * limit_s:",
        "tests/failures/test_ensembles.py::test_one_server_freezes_and_another_one_is_killed",
    ),
    # The end of the lease, and the callers that check it
    Mutant(
        "the end of the lease does not shut the gate",
        _DELIVERY_GATE,
        '            self.shut("lease over")\n',
        "            pass\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "the lease of a shut gate is renewed",
        _DELIVERY_GATE,
        "        if self.timeout_ms and self.shut_reason is None:\n",
        "        if self.timeout_ms:\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a shorter session timeout does not shorten the running lease",
        _DELIVERY_GATE,
        "self.deadline_s = min(self.deadline_s, lease_deadline(now_s, self.timeout_ms))",
        "pass",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a later, longer session timeout makes the lease longer than the published timeout allows",
        _DELIVERY_GATE,
        "self.timeout_ms = min(session_timeout_ms, self._first_ms)",
        "self.timeout_ms = session_timeout_ms",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "the fenced writer polls a shut gate for ever instead of raising SessionLostError",
        _FENCED_WRITES,
        "        await self._session.wait_trusted()\n",
        "",
        "tests/unit/coordination/session/test_gated_writes.py",
    ),
    Mutant(
        "the late answer to an earlier heartbeat counts as the answer to the newest one",
        _HEARTBEAT,
        "        if self._sent_s == sent_s:\n",
        "        if True:\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    # The watchdog
    Mutant(
        "the watchdog counts time in which the process did not run",
        _WATCHDOG,
        "min(now_s - self._last_s, self._pause_s), now_s",
        "now_s - self._last_s, now_s",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "the watchdog needs the blocked event loop to end the session",
        _GROUP_SESSION,
        "        self.session.abandon(reason)\n",
        "        self.session._call_loop(self.session.end, reason)\n",
        f"{ON_SERVERS}_watchdog.py::test_an_event_loop_is_blocked_for_good",
    ),
    Mutant(
        "a member joins again while its application still hangs",
        "coordination/member/group_member.py",
        "if self._member_session is not None and self._member_session.stalled:",
        "if self._member_session is None:",
        f"{ON_SERVERS}_watchdog.py::test_an_application_hangs_with_a_record_in_flight",
    ),
    # Proofs of the session
    Mutant(
        "an answered transaction does not renew the lease",
        _ZK_SESSION,
        "            self.gate.renew(sent_s)\n",
        "            pass\n",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a refused transaction renews the lease",
        _ZK_SESSION,
        "        answer = answer_of(results)\n",
        "        answer = answer_of(results)\n        self.gate.renew(sent_s)\n",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a transaction renews the lease from the moment of its answer",
        _ZK_SESSION,
        "            self.gate.renew(sent_s)\n",
        "            self.gate.renew(self._runtime.boot_time_s())\n",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "the gate is open while the connection is suspended",
        _DELIVERY_GATE,
        "return not self.suspended and self.shut_reason is None",
        "return self.shut_reason is None",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "the heartbeat interval may exceed a third of the session timeout",
        _LEASE,
        "return min(asked_ms / 1000, timeout_s * LARGEST_HEARTBEAT_SHARE)",
        "return asked_ms / 1000",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "the heartbeat waits for its interval after the connection is back",
        _HEARTBEAT,
        "        self._session.add_connect_listener(self.beat_now)\n",
        "",
        "tests/sim/test_reconnection.py",
    ),
    Mutant(
        "the watchdog does not notify the application of a stall",
        _WATCHDOG,
        "        self._hurry(stall)\n",
        "",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "the watchdog calls the application's stall hook on its own thread",
        _WATCHDOG,
        'ticker(partial(self._notify, stall), "hurry").start()',
        "self._notify(stall)",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "a SystemExit of the application ends the thread of the watchdog",
        _WATCHDOG,
        "        except BaseException:\n",
        "        except Exception:\n",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "heartbeats keep the session of a closed event loop",
        _HEARTBEAT,
        "        if self._session.is_orphaned:\n",
        "        if False:\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "the watchdog of a closed event loop logs an error at each check",
        _WATCHDOG,
        "        if self._stopped or self._loop.is_closed():\n",
        "        if self._stopped:\n",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "a heartbeat interval that is too long is accepted",
        _LEASE,
        "if asked_ms is not None and asked_ms > most_ms:",
        "if False:",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a broken connection does not suspend the gate",
        _ZK_SESSION,
        "        self.gate.suspended = state != KazooState.CONNECTED\n",
        "        self.gate.suspended = False\n",
        "tests/sim/test_reconnection.py",
    ),
)
