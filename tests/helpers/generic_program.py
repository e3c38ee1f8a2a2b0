"""
A program with a generic member, in this process or in one of its own: it deals the numbers from 0 to 11.

As a process, it prints a line of JSON for each assignment: the member id, the generation, and the numbers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kiel_groups import GenericMember, GroupProtocol, JoinedGroup
from kiel_groups.members.brokers.gate import GenerationGate

__all__ = ["NUMBERS", "NumberProgram"]

NUMBERS = frozenset(range(12))


class NumberProgram:
    """
    A program and its member; ``held`` are its numbers, None between two assignments.

    Args:
        group: The group.
        settings: Arguments of the member.
        protocols: The names of the protocols that the program knows.
        prints: Whether each assignment is printed.
    """

    protocol_type = "numbers"

    def __init__(
        self, group: str, settings: Mapping[str, Any], protocols: Sequence[str] = ("p",), *, prints: bool = False
    ) -> None:
        self.held: frozenset[int] | None = None
        self.calls: list[str] = []
        self.joins = 0
        self._protocols = protocols
        self._prints = prints
        self.member = GenericMember(self, group, **settings)

    async def protocols(self) -> Sequence[GroupProtocol]:
        self.joins += 1
        return [GroupProtocol(name, b"%d" % self.joins) for name in self._protocols]

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        members = sorted(joined.members)
        return {
            member: json.dumps([n for n in sorted(NUMBERS) if n % len(members) == place]).encode()
            for place, member in enumerate(members)
        }

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        assert self.held is None
        self.calls.append("complete")
        self.held = frozenset(json.loads(assignment))
        if self._prints:
            line = {"member": gate.token.member_id, "generation": gate.token.generation, "numbers": sorted(self.held)}
            sys.stdout.write(f"{json.dumps(line)}\n")

    async def prepare(self, gate: GenerationGate) -> None:
        self.calls.append("prepare")
        self.held = None

    def lost(self, gate: GenerationGate) -> None:
        self.calls.append("lost")
        self.held = None


async def _main(group: str, settings: Mapping[str, Any]) -> None:
    program = NumberProgram(group, settings, prints=True)
    await program.member.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], json.loads(sys.argv[2])))
