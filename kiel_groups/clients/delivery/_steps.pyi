"""Declare the types of ``_steps.c``: see ``record_loop.py``, which has the same in Python."""

from kiel_groups.clients.delivery.record_loop import PythonBlockingSteps, PythonLoopSteps

class LoopSteps(PythonLoopSteps):
    """Steps of a loop that is awaited. A step has the interface of a coroutine, but is not of that type."""

class BlockingSteps(PythonBlockingSteps):
    """Steps of a loop that blocks."""
