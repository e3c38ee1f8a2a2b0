"""
Take the next record of a batch, with one question to the gate: the step that a loop makes for each record.

Where a compiler was found, the loops use the same two classes in C (``_steps.c``), which take half the time. Whatever a
step cannot do at once, it leaves to the method ``ask`` of the loop: the end of a batch, a pause, a gate that is shut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kiel_groups.model import Record

__all__ = ["COMPILED", "BlockingSteps", "LoopSteps", "PythonBlockingSteps", "PythonLoopSteps"]


class PythonLoopSteps:
    """
    Steps of a loop that is awaited: ``async for``, or ``anext``.

    The loop sets the cursor and the functions, all of them before the first step.
    """

    __slots__ = ("_boot_time_s", "_cursor", "_is_open", "_pause_at_s")

    #: The records of a batch that are left. They are taken back by using up this cursor, an iterator of a list.
    _cursor: Iterator[Record]
    _boot_time_s: Callable[[], float]
    #: Whether the gate of these records is open at a boot time.
    _is_open: Callable[[float], bool]
    #: When the event loop is to run its other tasks.
    _pause_at_s: float

    async def __anext__(self) -> Record:
        now_s = self._boot_time_s()
        if now_s < self._pause_at_s and self._is_open(now_s):
            for record in self._cursor:
                return record
        return await self.ask()

    async def ask(self) -> Record:
        """Finish the record in flight, and wait for the next one. In C, the coroutine of this method is awaited."""
        raise NotImplementedError


class PythonBlockingSteps:
    """Steps of a loop that blocks its thread. The loop sets the cursor and the functions before the first step."""

    _cursor: Iterator[Record]
    _boot_time_s: Callable[[], float]
    _is_open: Callable[[float], bool]

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        record: Record | None = None
        asking: object = None
        try:
            if self._is_open(self._boot_time_s()):
                for record in self._cursor:
                    return record
            asking = object()
            return self.ask(asking)
        except StopIteration:
            raise
        except BaseException as error:
            self.interrupted(type(error), asking, has_taken=record is not None)
            raise

    def ask(self, asking: object) -> Record:
        """
        Finish the record in flight, and wait for the next one. ``asking`` identifies the call.

        Raises:
            StopIteration: There are no more records.
        """
        raise NotImplementedError

    def interrupted(self, error: type[BaseException], asking: object, *, has_taken: bool = False) -> None:
        """
        Handle an exception within a step, such as a Ctrl-C.

        Args:
            error: The type of the exception.
            asking: The call of ``ask`` that raised it; None if there was none.
            has_taken: Whether a record had left the cursor. In C, nothing can be raised after that.
        """
        raise NotImplementedError


if TYPE_CHECKING:
    COMPILED: bool
    LoopSteps = PythonLoopSteps
    BlockingSteps = PythonBlockingSteps
else:
    try:
        from kiel_groups.clients.delivery._steps import BlockingSteps, LoopSteps
    except ImportError:
        COMPILED, LoopSteps, BlockingSteps = False, PythonLoopSteps, PythonBlockingSteps
    else:
        COMPILED = True
