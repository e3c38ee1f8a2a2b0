"""Mutants of one ZooKeeper session: fenced writes, its end, its close, and the answers to its requests."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_FENCED_WRITES = "coordination/session/fenced_writes.py"
_ZK_SESSION = "coordination/session/zk_session.py"
_PENDING_REQUESTS = "coordination/zookeeper/pending_requests.py"
_TRANSACTION_RESULTS = "coordination/zookeeper/transaction_results.py"
_SESSION_CLOSE = "coordination/session/session_close.py"
_GROUP_SESSION = "coordination/member/group_session.py"
_KAZOO_CLIENT = "coordination/zookeeper/kazoo_client.py"

_GROUP_SESSION_TESTS = "tests/sim/test_group_session.py"

MUTANTS = (
    # Fences
    Mutant(
        "a fenced write checks the root instead of the member znode",
        _FENCED_WRITES,
        "self._session.transact([self._proof, *(",
        'self._session.transact([Check("/"), *(',
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "the fenced writer does not prove the session after an unknown outcome",
        _FENCED_WRITES,
        "                await self.prove()\n                outcome.unknown.update(batch)",
        "                outcome.unknown.update(batch)",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a proof of the session returns although ZooKeeper did not confirm it",
        _FENCED_WRITES,
        "            answer = await self._session.transact([self._proof])\n            if isinstance(answer, Done):",
        "            answer = await self._session.transact([self._proof])\n            if True:",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "the fenced writer limits a transaction by operations but not by bytes",
        _FENCED_WRITES,
        "if batch and (count > most or size > MOST_BYTES):",
        "if batch and count > most:",
        "tests/sim/test_fences.py",
    ),
    # The session
    Mutant(
        "a transaction keeps a connection on which the server reports that the session moved",
        _ZK_SESSION,
        "            self.connection.leave(used, MOVED)\n",
        "            pass\n",
        "tests/sim/test_reconnection.py",
    ),
    Mutant(
        "a late answer of an earlier connection drops the current one",
        _KAZOO_CLIENT,
        "used is self._dropped or used is not self.current or",
        "",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "the end of a session does not fail its requests in flight",
        _PENDING_REQUESTS,
        '                sent.set_exception(SessionLostError(f"the ZooKeeper session is over: {reason}"))',
        "                pass",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a member ignores that the server has expired or closed its session",
        _ZK_SESSION,
        '            self.end("expired or closed by the server")',
        "            pass",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "the previous subscription still counts as registered after an unknown outcome",
        "coordination/member/subscription_registration.py",
        "                self._registered = None\n",
        "",
        "tests/sim/test_seed_regressions.py",
    ),
    Mutant(
        "the cancellation of a join is lost if the session opens at the same moment",
        _ZK_SESSION,
        "        await self._connected.wait()\n",
        "        await asyncio.wait_for(self._connected.wait(), self._config.connect_timeout_ms / 1000)\n",
        "tests/sim/test_group_leave.py",
    ),
    Mutant(
        "a join waits for ever for a server that opened the session and then does not answer",
        _GROUP_SESSION,
        "            async with asyncio.timeout_at(by_s):\n",
        "            if True:\n",
        "tests/sim/test_join_timeouts.py",
    ),
    Mutant(
        "the end of a session during the first join fails the start instead of being retried",
        "coordination/member/session_supervisor.py",
        "            except SessionLostError as error:\n",
        "            except KeyError as error:\n",
        "tests/sim/test_join_timeouts.py",
    ),
    # The session of a process in its group
    Mutant(
        "a session that fails delivers and commits until its ZooKeeper session is closed",
        _GROUP_SESSION,
        '        self.session.gate.shut("membership over")\n',
        "",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "the watchdog of a session that is over reports stalls",
        _GROUP_SESSION,
        "        self.watchdog.stop()\n",
        "",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "a stall does not delay the next join",
        _GROUP_SESSION,
        "        self.stalled = True\n",
        "",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "the release of a session that is over continues",
        _GROUP_SESSION,
        "                releasing.cancel()\n",
        "                pass\n",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "a join that has timed out leaves its tasks running",
        _GROUP_SESSION,
        "            await self._tasks.cancel()\n",
        "",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "the error of a join that times out names an earlier step",
        _GROUP_SESSION,
        '        self._step = "the registration"\n',
        "",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "a session leads before it has joined",
        _GROUP_SESSION,
        "return self._active and self._admitted.leads",
        "return self._admitted.leads",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "each session logs the granted timeout",
        _GROUP_SESSION,
        "if self._first and granted_ms != asked_ms:",
        "if granted_ms != asked_ms:",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "a heartbeat interval that is too long for a later session fails the join",
        _GROUP_SESSION,
        "self._check_heartbeat(strictly=self._first)",
        "self._check_heartbeat(strictly=True)",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "a heartbeat interval that is too long after a reconnection is an error",
        _GROUP_SESSION,
        "self._check_heartbeat(strictly=False)",
        "self._check_heartbeat(strictly=True)",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "the heartbeat interval is not checked after a reconnection",
        _GROUP_SESSION,
        "            self._check_heartbeat(strictly=False)\n",
        "",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "a role does not read its watched znodes again after a reconnection",
        _GROUP_SESSION,
        "        self.role.recheck()\n",
        "",
        _GROUP_SESSION_TESTS,
    ),
    Mutant(
        "the regular check does not restore deleted znodes",
        _GROUP_SESSION,
        "        await self.role.restore()\n",
        "        pass\n",
        _GROUP_SESSION_TESTS,
    ),
    # The start and the close of a session
    Mutant(
        "a client starts although the close of its session has begun",
        _SESSION_CLOSE,
        "            if not self._is_closing:\n",
        "            if True:\n",
        "tests/unit/coordination/session/test_session_close.py",
    ),
    Mutant(
        "a client is stopped before the end of its start",
        _SESSION_CLOSE,
        "                with self._start_lock:\n                    begin_stop(client)",
        "                if True:\n                    begin_stop(client)",
        "tests/unit/coordination/session/test_session_close.py",
    ),
    Mutant(
        "a join that is cancelled twice leaves its session open",
        _ZK_SESSION,
        "        self._begin_closing()\n        return asyncio.ensure_future(self._wait_closed())\n\n"
        "    async def _wait_closed(self) -> None:\n",
        "        return asyncio.ensure_future(self._wait_closed())\n\n    async def _wait_closed(self) -> None:\n"
        "        self._begin_closing()\n",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "a session whose client has no connection is not resumed to be closed",
        _SESSION_CLOSE,
        "            self._resume(self._session)\n",
        "            self._ended()\n            return None\n",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "the client that closes a session opens another one if that session is over",
        _SESSION_CLOSE,
        "                self._client._stopped.set()\n",
        "                pass\n",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "the close of a session keeps a connection whose server does not answer",
        _SESSION_CLOSE,
        "            self._drop_connection()\n",
        "            pass\n",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "a session counts as closed once its client has ended without a connection",
        _SESSION_CLOSE,
        "state == KazooState.LOST and self._connected",
        "state == KazooState.LOST",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "the close of a session is retried for ever after the session has expired",
        _SESSION_CLOSE,
        "self._give_up_s = self._runtime.boot_time_s() + self._timeout_ms / 1000",
        'self._give_up_s = float("inf")',
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "the close of a session is given up before the granted session timeout is over",
        _SESSION_CLOSE,
        "        self._timeout_ms = max(self._timeout_ms, timeout_ms)\n",
        "",
        "tests/sim/test_abandoned_sessions.py",
    ),
    # Answers
    Mutant(
        "a read whose answer is lost reports an absent znode",
        _ZK_SESSION,
        "                    waiting.append(number)\n",
        "",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a transaction whose answer is lost counts as done",
        _ZK_SESSION,
        "            return Unknown()\n        if isinstance(results, Exception)",
        "            return Done((None,) * len(listed), (None,) * len(listed))\n"
        "        if isinstance(results, Exception)",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a refusal is attributed to the first operation of the transaction",
        _TRANSACTION_RESULTS,
        "return Refused(index, ",
        "return Refused(0, ",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a refusal is attributed to the item before the refused one",
        _FENCED_WRITES,
        "if refused.index < position + len(operations):",
        "if refused.index <= position + len(operations):",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "the number of reads in flight ahead of a heartbeat is not limited",
        _ZK_SESSION,
        "asked, waiting = waiting[:MOST_READS], waiting[MOST_READS:]",
        "asked, waiting = waiting, []",
        "tests/sim/test_read_limits.py",
    ),
    # Errors that stop a member for good
    Mutant(
        "an error that the next session would not have stops the member for good",
        "coordination/member/group_session.py",
        "return isinstance(error, (ConfigError, CoordinationError)) and not error.retriable",
        "return isinstance(error, (ConfigError, CoordinationError))",
    ),
    Mutant(
        "a member takes its own registration, whose answer was lost, for another member's",
        "coordination/member/subscription_registration.py",
        "                elif unanswered and answer.failure is Failure.NODE_EXISTS:\n",
        "                elif False:\n",
        "tests/sim/test_registration.py",
    ),
    Mutant(
        "a member stops for good if the group's folders are deleted during its join",
        "coordination/member/subscription_registration.py",
        "                elif answer.failure is Failure.NO_NODE:\n",
        "                elif False:\n",
        "tests/sim/test_registration.py",
    ),
)
