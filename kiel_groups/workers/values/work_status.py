"""Describe what a connector or a task does, as its owner reports it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["WorkState", "WorkStatus"]


class WorkState(StrEnum):
    """The states of a connector or a task, with the names of Kafka Connect."""

    #: No worker runs it: it was given back, or it has no owner yet.
    UNASSIGNED = "UNASSIGNED"
    #: Its owner runs it.
    RUNNING = "RUNNING"
    #: Its owner has it, and does not run it, because users have paused its connector.
    PAUSED = "PAUSED"
    #: It has raised an error, or cannot be started. Its owner keeps it.
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class WorkStatus:
    """
    The status of a connector or a task.

    Args:
        state: What it does.
        worker: ``host:port`` of the owner's REST interface.
        trace: The trace of the error; "" unless the state is FAILED.
        generation: The generation of the group in which the owner got it.
        problem: Why it makes no progress although it has not failed, in one line; "" if it does.
    """

    state: WorkState
    worker: str
    trace: str = ""
    generation: int = 0
    problem: str = ""
