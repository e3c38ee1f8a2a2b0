"""The lease, the gate that it keeps, heartbeats, and the watchdog."""

from __future__ import annotations

from tests.mutants.mutant import ON_SERVERS, Mutant

__all__ = ["MUTANTS"]

_FENCED = "coordination/session/fenced_writes.py"
_HANDING_OUT = "clients/delivery/record_delivery.py"
_HEARTBEAT = "coordination/session/heartbeat.py"
_GATE = "coordination/session/delivery_gate.py"
_SESSION = "coordination/session/zk_session.py"
_LEASE = "group/member/lease.py"
_WATCHDOG = "coordination/session/watchdog.py"
_LIFE = "coordination/member/group_session.py"

MUTANTS = (
    # The lease
    Mutant(
        "a lease as long as the session",
        _LEASE,
        "return last_proof_s + session_timeout_ms / 1000 * (1 - reserve)",
        "return last_proof_s + session_timeout_ms / 1000 * 1.3",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a lease that counts from the answer",
        _HEARTBEAT,
        "            self._gate.renew(sent_s)\n",
        "            self._gate.renew(boot_time_s())\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a lease by a clock that stops while the machine is suspended",
        "coordination/zookeeper/runtime.py",
        "time.CLOCK_BOOTTIME",
        "time.CLOCK_MONOTONIC",
        "tests/unit/coordination/zookeeper/test_runtime.py",
    ),
    Mutant(
        "a lease that answered reads renew",
        _SESSION,
        "                    found[number] = answer\n",
        "                    found[number] = answer\n                    self.gate.renew(runtime.boot_time_s())\n",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a record that is handed out with the gate shut",
        _HANDING_OUT,
        "if now_s >= self._pause_at_s or not self._member.gate.is_open(now_s):",
        "if now_s >= self._pause_at_s:",
        "tests/unit/clients/delivery/test_record_delivery.py",
    ),
    Mutant(
        "values that are handed out with the gate shut",
        _HANDING_OUT,
        "if self._ended or not self._member.gate.is_open(boot_time_s()):",
        "if self._ended:",
        "tests/unit/clients/delivery/test_value_delivery.py",
    ),
    Mutant(
        "a lease that is never over",
        _GATE,
        "        if now_s < self.deadline_s:\n            return",
        "        if True:\n            return",
    ),
    Mutant(
        "a heartbeat that checks nothing of its own",
        _HEARTBEAT,
        "transaction.check(self._proof, -1)",
        'transaction.check("/", -1)',
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a heartbeat that goes on over a connection that its session has left",
        _HEARTBEAT,
        "            self._connection.leave(used, MOVED)\n",
        "            pass\n",
        "tests/sim/test_reconnecting.py",
    ),
    Mutant(
        "a heartbeat that is renewed by a refusal",
        _HEARTBEAT,
        "        elif any(isinstance(result, NoNodeError) for result in answer.value):\n"
        '            self._gate.shut("member znode gone")\n'
        "            if not self._stopped:\n"
        '                self._on_dead("the member znode is gone")\n'
        "        elif not any(isinstance(result, Exception) for result in answer.value):\n",
        "        if answer.value:\n",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a gate that opens again with kazoo's next session",
        _GATE,
        "return not self.suspended and self.shut_reason is None",
        "return not self.suspended",
    ),
    Mutant(
        "a socket that nobody shuts",
        _HEARTBEAT,
        "        if sent_s is not None and now_s - sent_s >= limit_s:",
        "        if sent_s is not None and now_s - sent_s >= 1000 * limit_s:",
        "tests/failures/test_ensembles.py::test_one_server_freezes_and_another_one_is_killed",
    ),
    # The lease's end, and the paths that ask for it
    Mutant(
        "a lease that begins again after its end",
        _GATE,
        '            self.shut("lease over")\n',
        "            pass\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a lease that is renewed after somebody saw its end",
        _GATE,
        "        if self.timeout_ms and self.shut_reason is None:\n",
        "        if self.timeout_ms:\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a lease that outlasts a shorter timeout",
        _GATE,
        "self.deadline_s = min(self.deadline_s, lease_deadline(boot_time_s(), self.timeout_ms))",
        "pass",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a lease that is longer than the group was told",
        _GATE,
        "self.timeout_ms = min(session_timeout_ms, self._first_ms)",
        "self.timeout_ms = session_timeout_ms",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a write of an owner that asks no gate",
        _FENCED,
        "        await self._session.trusted()\n",
        "",
        "tests/unit/coordination/session/test_gated_writes.py",
    ),
    Mutant(
        "an old answer that stands for a new beat",
        _HEARTBEAT,
        "        if self._sent_s == sent_s:\n",
        "        if True:\n",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    # The watchdog
    Mutant(
        "a watchdog that counts what it slept through",
        _WATCHDOG,
        "min(now_s - self._last_s, self._pause_s), now_s",
        "now_s - self._last_s, now_s",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "a watchdog that waits for a blocked loop",
        _LIFE,
        "        self.session.abandon(reason)\n",
        "        self._loop.call_soon_threadsafe(self.session.end, reason)\n",
        f"{ON_SERVERS}_watchdog.py::test_an_event_loop_is_blocked_for_good",
    ),
    Mutant(
        "a member that joins anew while its application hangs",
        "coordination/member/group_member.py",
        "if self._member_session is not None and self._member_session.stalled:",
        "if self._member_session is None:",
        f"{ON_SERVERS}_watchdog.py::test_an_application_hangs_with_a_record_in_flight",
    ),
    # What proves the session
    Mutant(
        "an answered write that does not renew the lease",
        _SESSION,
        "            self.gate.renew(sent_s)\n",
        "            pass\n",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a refused write that renews the lease",
        _SESSION,
        "        answer = answer_of(results)\n",
        "        answer = answer_of(results)\n        self.gate.renew(sent_s)\n",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a write that renews the lease from its answer",
        _SESSION,
        "            self.gate.renew(sent_s)\n",
        "            self.gate.renew(runtime.boot_time_s())\n",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a gate that is open while the connection is broken",
        _GATE,
        "return not self.suspended and self.shut_reason is None",
        "return self.shut_reason is None",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "heartbeats as seldom as they are asked for",
        _LEASE,
        "return min(asked_ms / 1000, timeout_s * LARGEST_HEARTBEAT_SHARE)",
        "return asked_ms / 1000",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a heartbeat that waits its turn when the connection is back",
        _LIFE,
        "        session.on_connected = self._heartbeat.beat_now\n",
        "",
        "tests/sim/test_reconnecting.py",
    ),
    Mutant(
        "a watchdog that tells nobody to hurry",
        _WATCHDOG,
        "        self._hurry(stall)\n",
        "",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "a watchdog that waits for the application's hook",
        _WATCHDOG,
        'ticker(partial(self._notify, stall), "hurry").start()',
        "self._notify(stall)",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "a watchdog that an exit ends",
        _WATCHDOG,
        "        except BaseException:\n",
        "        except Exception:\n",
        "tests/unit/coordination/session/test_watchdog.py",
    ),
    Mutant(
        "heartbeats too seldom that nobody refuses",
        _LEASE,
        "if asked_ms is not None and asked_ms > most_ms:",
        "if False:",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "a session whose gate stays open when its connection breaks",
        _SESSION,
        "        self.gate.suspended = state != KazooState.CONNECTED\n",
        "        self.gate.suspended = False\n",
        "tests/sim/test_reconnecting.py",
    ),
)
