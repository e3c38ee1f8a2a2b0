"""Mutants of the members of groups of programs: their coordinator on ZooKeeper, and their gate."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_MEMBER = "coordination/rounds/round_member.py"
_COORDINATOR = "clients/generic/zookeeper_coordinator.py"
_GATE = "clients/generic/session_gate.py"
_COORDINATOR_TEST = "tests/unit/clients/generic/test_zookeeper_coordinator.py"
_HOOKS = "clients/generic/checked_hooks.py"
_SIZES = "clients/generic/stored_sizes.py"
_SLOW = "coordination/session/slow_step.py"
_PLANNER = "coordination/rounds/round_planner.py"
_HOOKS_TEST = "tests/unit/clients/generic/test_checked_hooks.py"
_SIZES_TEST = "tests/unit/clients/generic/test_stored_sizes.py"
_SLOW_TEST = "tests/unit/coordination/session/test_slow_step.py"
_PLANNER_TEST = "tests/unit/coordination/rounds/test_round_planner.py"
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
        "        session.close()\n",
        "        pass\n",
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
    # The hooks of programs
    Mutant(
        "an assignment above the limit is published",
        _SIZES,
        "return (len(data) + 2) // 3 * 4",
        "return len(data)",
        _SIZES_TEST,
    ),
    Mutant(
        "assignments whose sum no broker stores are sent",
        _SIZES,
        "+ sum(map(len, assignments.values()))",
        "+ max(map(len, assignments.values()), default=0)",
        _SIZES_TEST,
    ),
    Mutant(
        "an assignment that is text is taken for bytes",
        _HOOKS,
        '            raise self._illegal(name, f"{_shown(data)} as {role}", "bytes; encode text and objects")\n',
        '            return b""\n',
        _HOOKS_TEST,
    ),
    Mutant(
        "a name that has no UTF-8 form is offered",
        _HOOKS,
        '        return "a text that UTF-8 can encode, without lone surrogates"\n',
        '        return ""\n',
        _HOOKS_TEST,
    ),
    Mutant(
        "a name that brokers cannot carry is offered on ZooKeeper",
        _HOOKS,
        '    return "" if size <= LONGEST_STRING else',
        '    return "" if True else',
        _HOOKS_TEST,
    ),
    Mutant(
        "a member joins without any protocol",
        _HOOKS,
        "        if not found:\n",
        "        if False:\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "of two protocols of one name, one is dropped",
        _HOOKS,
        "            if name in found:\n",
        "            if False:\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "an offer of any size is sent",
        _HOOKS,
        "        if what := self._sizes.excess_of_offer(protocols):\n",
        '        if what := "":\n',
        _HOOKS_TEST,
    ),
    Mutant(
        "assignments for unknown members are dropped silently",
        _HOOKS,
        "        if unknown and unknown != self._unknown:\n",
        "        if False:\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a hook that hangs is not warned of",
        _HOOKS,
        "            if name not in _WAITING:\n",
        "            if True:\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "an error of a program does not name its hook",
        _HOOKS,
        "        except Exception as error:\n            raise self._raised(name, error) from error\n",
        "        except Exception:\n            raise\n",
        _HOOKS_TEST,
    ),
    Mutant(
        "a slow step is warned of after its end",
        _SLOW,
        "            self._timer.cancel()\n",
        "            pass\n",
        _SLOW_TEST,
    ),
    Mutant(
        "a slow step is warned of only once",
        _SLOW,
        "        self._warn_at(age_s + min(age_s, LONGEST_SILENCE_S))\n",
        "",
        _SLOW_TEST,
    ),
    Mutant(
        "a round that waits does not name its latecomers",
        _PLANNER,
        "            self._late = late = latecomers(members, generation)\n",
        "            late = latecomers(members, generation)\n",
        _PLANNER_TEST,
    ),
)
