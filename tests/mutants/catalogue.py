"""
The catalogue of mutants, by subject.

A mutant replaces one piece of the source, which it quotes exactly. ``former.py`` lists faults that were in the
catalogue, and that the code cannot have any more.
"""

from __future__ import annotations

from tests.mutants import (
    assigned,
    bad_records,
    blocking,
    brokers,
    chosen_commits,
    clients,
    columns,
    commits,
    converted_logs,
    coordinated,
    delivery,
    fetches,
    full_buffers,
    kafka_offsets,
    kept_work,
    leader,
    lease,
    member,
    offsets,
    positions,
    producer,
    program_members,
    resets,
    rounds,
    secret_values,
    session,
    subscription,
    tracker,
    values,
    worker_execution,
    worker_runtime,
    worker_stores,
    workers,
)
from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = (
    *lease.MUTANTS,
    *session.MUTANTS,
    *member.MUTANTS,
    *offsets.MUTANTS,
    *commits.MUTANTS,
    *kafka_offsets.MUTANTS,
    *chosen_commits.MUTANTS,
    *resets.MUTANTS,
    *tracker.MUTANTS,
    *subscription.MUTANTS,
    *positions.MUTANTS,
    *assigned.MUTANTS,
    *leader.MUTANTS,
    *brokers.MUTANTS,
    *clients.MUTANTS,
    *fetches.MUTANTS,
    *full_buffers.MUTANTS,
    *converted_logs.MUTANTS,
    *columns.MUTANTS,
    *producer.MUTANTS,
    *delivery.MUTANTS,
    *values.MUTANTS,
    *bad_records.MUTANTS,
    *blocking.MUTANTS,
    *coordinated.MUTANTS,
    *workers.MUTANTS,
    *worker_stores.MUTANTS,
    *worker_runtime.MUTANTS,
    *worker_execution.MUTANTS,
    *kept_work.MUTANTS,
    *secret_values.MUTANTS,
    *rounds.MUTANTS,
    *program_members.MUTANTS,
)
