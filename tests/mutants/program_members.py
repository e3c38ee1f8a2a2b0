"""Mutants of the members of groups of programs: their coordinator on ZooKeeper, and their gate."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_MEMBER = "coordination/rounds/round_member.py"
_COORDINATOR = "clients/generic/zookeeper_coordinator.py"
_GATE = "clients/generic/session_gate.py"
_COORDINATOR_TEST = "tests/unit/clients/generic/test_zookeeper_coordinator.py"
_GATE_TEST = "tests/unit/clients/generic/test_session_gate.py"

MUTANTS = (
    # The coordinator, and the gate
    Mutant(
        "the end of a former session is reported to the present membership",
        _COORDINATOR,
        "        if target is not None and target.coordinator == number:\n",
        "        if target is not None:\n",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a round that has begun before the member follows its generation is missed",
        _COORDINATOR,
        "            asyncio.get_running_loop().call_soon(self._round_read)\n",
        "            pass\n",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a request outlasts its session",
        _COORDINATOR,
        "either: set[asyncio.Future[Any]] = {asking, session.over}",
        "either: set[asyncio.Future[Any]] = {asking}",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a request is sent on another session than the one that it belongs to",
        _COORDINATOR,
        "if coordinator != self._number or session is None or session.ended:",
        "if session is None or session.ended:",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a member that can never join tries for ever",
        _COORDINATOR,
        "                if not is_fatal(error):\n",
        "                if True:\n",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "an assignment above the limit is published",
        _COORDINATOR,
        "if (size := len(assignment) * 4 // 3) > _LARGEST_ASSIGNMENT:",
        "if (size := len(assignment)) > _LARGEST_ASSIGNMENT:",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a deleted state is reported as a rebalance",
        _COORDINATOR,
        "if state is not None and state.generation != target.gate.token.generation:",
        "if state is None or state.generation != target.gate.token.generation:",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a member does not hear of the next round",
        _COORDINATOR,
        "            self._report(target, BeatAnswer(CoordinatorCode.REBALANCE_IN_PROGRESS))\n",
        "            pass\n",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a member does not hear of the end of its session",
        _COORDINATOR,
        "            self._report(target, BeatAnswer(CoordinatorCode.UNKNOWN_MEMBER, why))\n",
        "",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a member that was refused after its join rejoins",
        _COORDINATOR,
        "        if why := session.role.membership.refusal(token.generation):\n",
        '        if why := "":\n',
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a refused member keeps its session",
        _COORDINATOR,
        "        self._tasks.start(session.close())\n",
        "",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a member that was closed keeps its session",
        _COORDINATOR,
        "        await self._current(coordinator).leave()\n",
        "        pass\n",
        _COORDINATOR_TEST,
    ),
    Mutant(
        "a gate is open after its generation",
        _GATE,
        "not self.is_shut and self._session",
        "self._session",
        _GATE_TEST,
    ),
    Mutant(
        "the lease of a gate is not that of its session",
        _GATE,
        "return self._session.deadline_s",
        "return self._deadline_s",
        _GATE_TEST,
    ),
    Mutant(
        "a gate is open after the lease of its session",
        _GATE,
        "not self.is_shut and self._session.is_open(now_s)",
        "not self.is_shut",
        _GATE_TEST,
    ),
)
