"""
Breakages of the core, each of which something must notice.

A mutant replaces one piece of source, exactly as it stands.
"""

from __future__ import annotations

from tests.mutants import clients, delivery, leader, lease, member, offsets, producer, resets, session
from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = (
    *lease.MUTANTS,
    *session.MUTANTS,
    *member.MUTANTS,
    *offsets.MUTANTS,
    *resets.MUTANTS,
    *leader.MUTANTS,
    *clients.MUTANTS,
    *producer.MUTANTS,
    *delivery.MUTANTS,
)
