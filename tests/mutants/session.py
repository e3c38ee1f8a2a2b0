"""One session: its end, and the fences around what is written on it."""

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

MUTANTS = (
    # Fences
    Mutant(
        "writes that do not prove the member",
        _FENCED_WRITES,
        "self._session.transact([self._proof, *(",
        'self._session.transact([Check("/"), *(',
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "an unknown outcome that is read at once",
        _FENCED_WRITES,
        "                await self.prove()\n                outcome.unknown.update(batch)",
        "                outcome.unknown.update(batch)",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a proof that is not waited for",
        _FENCED_WRITES,
        "            answer = await self._session.transact([self._proof])\n            if isinstance(answer, Done):",
        "            answer = await self._session.transact([self._proof])\n            if True:",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a transaction that is too large for a server",
        _FENCED_WRITES,
        "if batch and (count > most or size > MOST_BYTES):",
        "if batch and count > most:",
        "tests/sim/test_fences.py",
    ),
    # The session
    Mutant(
        "a writer that stays on a connection that its session has left",
        _ZK_SESSION,
        "            self.connection.leave(used, MOVED)\n",
        "            pass\n",
        "tests/sim/test_reconnection.py",
    ),
    Mutant(
        "a connection that is left for what was asked on the one before",
        _KAZOO_CLIENT,
        "used is self._dropped or used is not self.current or",
        "",
        "tests/unit/coordination/session/test_lease_renewal.py",
    ),
    Mutant(
        "what was asked before the end is answered after it",
        _PENDING_REQUESTS,
        '                sent.set_exception(SessionLostError(f"the ZooKeeper session is over: {reason}"))',
        "                pass",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a member that stays alive without its session",
        _ZK_SESSION,
        '            self._end("expired or closed by the server")',
        "            pass",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a subscription of an unknown fate that counts as told",
        "coordination/member/subscription_registration.py",
        "                self._registered = None\n",
        "",
        "tests/sim/test_seed_regressions.py",
    ),
    Mutant(
        "a word to leave that is lost where a session opens at that moment",
        _ZK_SESSION,
        "        await self._connected.wait()\n",
        "        await asyncio.wait_for(self._connected.wait(), self._config.connect_timeout_ms / 1000)\n",
        "tests/sim/test_group_leave.py",
    ),
    Mutant(
        "a join that waits for ever for a server that opened the session and went silent",
        _GROUP_SESSION,
        "            async with asyncio.timeout_at(by_s):\n",
        "            if True:\n",
        "tests/sim/test_join_timeouts.py",
    ),
    Mutant(
        "a session that ends while a member joins and that ends the join",
        "coordination/member/session_supervisor.py",
        "            except SessionLostError as error:\n",
        "            except KeyError as error:\n",
        "tests/sim/test_join_timeouts.py",
    ),
    # Its close
    Mutant(
        "a session that nobody closes because its client had no connection",
        _SESSION_CLOSE,
        "            self._resume(self._session)\n",
        "            self._ended()\n            return None\n",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "a session that is opened where the one to be closed is over",
        _SESSION_CLOSE,
        "                self._client._stopped.set()\n",
        "                pass\n",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "a close that waits for one server",
        _SESSION_CLOSE,
        "            self._drop_connection()\n",
        "            pass\n",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "a session that counts as closed as soon as its client has ended",
        _SESSION_CLOSE,
        "state == KazooState.LOST and self._connected",
        "state == KazooState.LOST",
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "a thread that tries for ever to close a session which the servers have ended",
        _SESSION_CLOSE,
        "self._give_up_s = runtime.boot_time_s() + self._timeout_ms / 1000",
        'self._give_up_s = float("inf")',
        "tests/sim/test_abandoned_sessions.py",
    ),
    Mutant(
        "a session that is given up while the servers keep it for longer than was asked",
        _SESSION_CLOSE,
        "        self._timeout_ms = max(self._timeout_ms, timeout_ms)\n",
        "",
        "tests/sim/test_abandoned_sessions.py",
    ),
    # Answers
    Mutant(
        "a lost read that counts as an absent znode",
        _ZK_SESSION,
        "                    waiting.append(number)\n",
        "",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a transaction whose answer is lost and that counts as done",
        _ZK_SESSION,
        "            return Unknown()\n        if isinstance(results, Exception)",
        "            return Done((None,) * len(listed), (None,) * len(listed))\n"
        "        if isinstance(results, Exception)",
        "tests/sim/test_fences.py",
    ),
    Mutant(
        "a refusal that is laid to the first operation",
        _TRANSACTION_RESULTS,
        "return Refused(index, ",
        "return Refused(0, ",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "a refused item whose neighbour is taken out",
        _FENCED_WRITES,
        "if refused.index < position + len(operations):",
        "if refused.index <= position + len(operations):",
        "tests/sim/test_lost_answers.py",
    ),
    Mutant(
        "more reads at once than a heartbeat can wait behind",
        _ZK_SESSION,
        "asked, waiting = waiting[:MOST_READS], waiting[MOST_READS:]",
        "asked, waiting = waiting, []",
        "tests/sim/test_read_limits.py",
    ),
    # What stops a member for good
    Mutant(
        "an error that the next session would mend and that stops a member",
        "coordination/member/group_session.py",
        "return isinstance(error, (ConfigError, CoordinationError)) and not error.retriable",
        "return isinstance(error, (ConfigError, CoordinationError))",
    ),
    Mutant(
        "a registration of one's own that is taken for somebody else's",
        "coordination/member/subscription_registration.py",
        "                elif unanswered and answer.failure is Failure.NODE_EXISTS:\n",
        "                elif False:\n",
        "tests/sim/test_registration.py",
    ),
    Mutant(
        "folders that are deleted while a member joins and that end it for good",
        "coordination/member/subscription_registration.py",
        "                elif answer.failure is Failure.NO_NODE:\n",
        "                elif False:\n",
        "tests/sim/test_registration.py",
    ),
)
