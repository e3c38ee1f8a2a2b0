"""Mutants of groups of programs: the rules of rounds, their members and their leaders."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RULES = "group/rounds/round_rules.py"
_CONTENTS = "group/znodes/round_contents.py"
_MEMBER = "coordination/rounds/round_member.py"
_PLANNER = "coordination/rounds/round_planner.py"
_EXCHANGE = "coordination/rounds/round_exchange.py"
_COORDINATOR = "clients/generic/zookeeper_coordinator.py"
_GATE = "clients/generic/session_gate.py"

_RULES_TEST = "tests/unit/group/rounds/test_round_rules.py"
_CONTENTS_TEST = "tests/unit/group/znodes/test_round_contents.py"
_MEMBER_TEST = "tests/unit/coordination/rounds/test_round_member.py"
_PLANNER_TEST = "tests/unit/coordination/rounds/test_round_planner.py"
_EXCHANGE_TEST = "tests/unit/coordination/rounds/test_round_exchange.py"
_GROUPS_TEST = "tests/sim/test_program_groups.py"

MUTANTS = (
    # The rules
    Mutant(
        "an interrupted round is left as it is",
        _RULES,
        "    if state.state != DONE:\n",
        "    if False:\n",
        _RULES_TEST,
    ),
    Mutant(
        "a member that waits for a later generation causes no round",
        _RULES,
        "if member.joined > state.generation]",
        "if False]",
        _RULES_TEST,
    ),
    Mutant(
        "a member that is gone causes no round",
        _RULES,
        "if each not in live]",
        "if False]",
        _RULES_TEST,
    ),
    Mutant(
        "a leader without a state reuses a generation that members may have completed",
        _RULES,
        "    return max(following, joined + 1)\n",
        "    return max(following, joined)\n",
        _RULES_TEST,
    ),
    Mutant(
        "a leader reuses a generation that it has read",
        _RULES,
        "*self.assignments.values(), self.known)",
        "*self.assignments.values(), 0)",
        _RULES_TEST,
    ),
    Mutant(
        "a generation is not above the stored assignments",
        _RULES,
        "*self.assignments.values(), self.known)",
        "self.known)",
        _RULES_TEST,
    ),
    Mutant(
        "a leader that was deposed begins a round",
        _RULES,
        "return Opening(state, (Check(candidate), put), inputs.state_version + 1)",
        "return Opening(state, (put,), inputs.state_version + 1)",
        _RULES_TEST,
    ),
    Mutant(
        "a leader overwrites a state that it has not read",
        _RULES,
        "put = Put(layout.group_state, state.encode(), inputs.state_version)",
        "put = Put(layout.group_state, state.encode())",
        _RULES_TEST,
    ),
    Mutant(
        "a member that has joined another generation counts as joined",
        _RULES,
        "if member.joined != generation]",
        "if member.joined > generation]",
        _RULES_TEST,
    ),
    Mutant(
        "a latecomer gets an assignment",
        _RULES,
        "        if member.joined != generation:\n            continue\n",
        "",
        _RULES_TEST,
    ),
    Mutant(
        "the leader may be refused",
        _RULES,
        "sorted(members, key=lambda each: each.member_id != leader)",
        "members",
        _RULES_TEST,
    ),
    Mutant(
        "a protocol is chosen that not all members know",
        _RULES,
        "        common = shared\n",
        "        common = common | shared\n",
        _RULES_TEST,
    ),
    Mutant(
        "members vote for protocols that others do not know",
        _RULES,
        "Counter(next(each.name for each in m.offer.protocols if each.name in common) for m in accepted)",
        "Counter(next(each.name for each in m.offer.protocols) for m in accepted)",
        _RULES_TEST,
    ),
    Mutant(
        "the protocol is the leader's choice, whatever the others prefer",
        _RULES,
        "key=lambda name: (votes[name], -preferred.index(name))",
        "key=lambda name: -preferred.index(name)",
        _RULES_TEST,
    ),
    Mutant(
        "a publication does not prove the leader",
        _RULES,
        "((proof, *(batches[0] if batches else ()), closing),)",
        "((*(batches[0] if batches else ()), closing),)",
        _RULES_TEST,
    ),
    Mutant(
        "a batch of assignments does not prove the round",
        _RULES,
        "guard = (proof, Check(layout.group_state, begun.version))",
        "guard = (proof, Check(layout.group_state))",
        _RULES_TEST,
    ),
    Mutant(
        "a publication overwrites another round",
        _RULES,
        "Put(layout.group_state, done.encode(), begun.version)",
        "Put(layout.group_state, done.encode())",
        _RULES_TEST,
    ),
    Mutant(
        "a member without an assignment of its program gets no znode",
        _RULES,
        "    for member_id in choice.members:\n",
        "    for member_id in assignments:\n",
        _RULES_TEST,
    ),
    Mutant(
        "assignments of former members stay",
        _RULES,
        "for each in stored if each not in choice.members]",
        "for each in stored if False]",
        _RULES_TEST,
    ),
    # The contents
    Mutant(
        "a program reads znodes of consumers",
        _CONTENTS,
        "    check_version(fields, _VERSION, path)\n",
        "",
        _CONTENTS_TEST,
    ),
    Mutant(
        "a negative generation is accepted",
        _CONTENTS,
        "    if generation < 0:\n",
        "    if False:\n",
        _CONTENTS_TEST,
    ),
    Mutant(
        "characters that are not base64 are skipped",
        _CONTENTS,
        "validate=True",
        "validate=False",
        _CONTENTS_TEST,
    ),
    # The member
    Mutant(
        "a member waits for the round after the one that it has joined by its registration",
        _MEMBER,
        "            found = await self._begun(self._joined)\n",
        "            found = await self._begun(self._next_generation)\n",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member that was left out waits for the round that is over",
        _MEMBER,
        "                if state.state == DONE:\n                    return None\n",
        "",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member waits for a round that is superseded",
        _MEMBER,
        "            elif state is not None and state.generation > joined:\n                return None\n",
        "",
        _MEMBER_TEST,
    ),
    Mutant(
        "a leader joins before its round is gathered",
        _MEMBER,
        "                if state.leader != self._member_id and (",
        "                if (",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member takes its assignment over before the round is done",
        _MEMBER,
        "            if state is not None and state.state == DONE:\n                return await",
        "            if state is not None:\n                return await",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member waits for the assignment of a round that is superseded",
        _MEMBER,
        "state.generation != generation:\n                return None\n",
        "state.generation != generation:\n                pass\n",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member takes over an assignment of another generation, or of another member",
        _MEMBER,
        "return found.assignment if (found.generation, found.member_id) == (generation, self._member_id) else None",
        "return found.assignment",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member takes an existing znode for its own registration",
        _MEMBER,
        "            elif unanswered and answer.failure is Failure.NODE_EXISTS:",
        "            elif answer.failure is Failure.NODE_EXISTS:",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member whose znode was deleted writes it for ever",
        _MEMBER,
        '                self._session.end("the member znode is gone")\n',
        "",
        _MEMBER_TEST,
    ),
    Mutant(
        "an offer above the limit is written",
        _MEMBER,
        "> LARGEST_BYTES:",
        "> 2 * LARGEST_BYTES:",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member that waits joins with its former metadata",
        _MEMBER,
        "        self._joined, self._written = joined, info\n",
        "        self._joined, self._written = joined, self._written or info\n",
        _MEMBER_TEST,
    ),
    Mutant(
        "a garbled member znode stays so",
        _MEMBER,
        "        if node is not None and node.data != self._written:\n",
        "        if False:\n",
        _MEMBER_TEST,
    ),
    Mutant(
        "a member forgets which generation it has read",
        _MEMBER,
        "        self.exchange.newest = max(self.exchange.newest, state.generation)\n",
        "",
        _MEMBER_TEST,
    ),
    # The exchange
    Mutant(
        "assignments of another round end the leader's wait",
        _EXCHANGE,
        "        if generation == self._generation and self._assignments is not None",
        "        if self._assignments is not None",
        _EXCHANGE_TEST,
    ),
    Mutant(
        "a member joins as the leader of a round that is given up",
        _EXCHANGE,
        "            self._choice = self._assignments = None\n",
        "            self._assignments = None\n",
        _EXCHANGE_TEST,
    ),
    # The planner
    Mutant(
        "a round does not wait for its members",
        _PLANNER,
        "            if not late or loop.time() >= by_s:\n                return members, late\n",
        "            return members, late\n",
        _PLANNER_TEST,
    ),
    Mutant(
        "a round waits for latecomers for ever",
        _PLANNER,
        "            if not late or loop.time() >= by_s:\n",
        "            if not late:\n",
        _PLANNER_TEST,
    ),
    Mutant(
        "a leader whose program hangs keeps its session",
        _PLANNER,
        '            self._session.end(f"{why}, so it cannot lead")\n',
        "",
        _PLANNER_TEST,
    ),
    Mutant(
        "a group waits for ever for assignments",
        _PLANNER,
        "            async with asyncio.timeout(self._timeout_s):\n",
        "            async with asyncio.timeout(None):\n",
        _PLANNER_TEST,
    ),
    Mutant(
        "the leader does not wait for its own unreadable znode",
        _PLANNER,
        "                late.append(self._member_id)\n",
        "                pass\n",
        _PLANNER_TEST,
    ),
    Mutant(
        "a leader waits for members that cannot read its round",
        _PLANNER,
        "            if node is None or node.version != begun.version:\n                return\n",
        "",
        _PLANNER_TEST,
    ),
    Mutant(
        "a leader that resigns finishes its round",
        _PLANNER,
        "        if self._planning is not None:\n            self._planning.cancel()\n",
        "        pass\n",
        _PLANNER_TEST,
    ),
    Mutant(
        "a leader that has missed a watch waits for the rebalance timeout",
        _PLANNER,
        "        self._values.forget()\n        self._changed.set()\n",
        "        self._values.forget()\n",
        _PLANNER_TEST,
    ),
    Mutant(
        "a leader does not use what its member has read",
        _PLANNER,
        "            known=self._exchange.newest,\n",
        "",
        _PLANNER_TEST,
    ),
    # The admission
    Mutant(
        "a member that is refused leaves folders in a group of others",
        "coordination/member/group_session.py",
        "        await self._kind.admit(self.session, self._layout, self._config)\n",
        "        await self.session.ensure(self._layout.parents)\n"
        "        await self._kind.admit(self.session, self._layout, self._config)\n",
        _GROUPS_TEST,
    ),
    Mutant(
        "a program takes the name of a group of another client",
        "coordination/member/admission.py",
        "    if node is None and found is None and await _has_consumers(session, layout):\n",
        "    if False:\n",
        _GROUPS_TEST,
    ),
    Mutant(
        "a program of another type is admitted",
        "coordination/member/admission.py",
        "    if found != protocol_type:\n",
        "    if False:\n",
        _GROUPS_TEST,
    ),
)
