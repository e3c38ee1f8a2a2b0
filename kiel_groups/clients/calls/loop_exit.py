"""
Detect whether a loop was left by ``break`` or ``return``, or by an exception.

In both cases Python drops the iterator without telling it why. But when the iterator is dropped, the frame of the loop
shows the current instruction. After ``break`` or ``return``, this instruction pops the iterator from the stack.
After an exception, it is the instruction that raised.

What this relies on
  - CPython drops the iterator with its last reference, and calls its ``__del__`` at once, from the frame of the loop:
    ``sys._getframe`` finds that frame directly below ``__del__``.
  - ``f_lasti`` is the offset in bytes of the current instruction in ``co_code``, and ``co_code`` has no specialized or
    instrumented instructions. This is so under ``sys.settrace`` and ``sys.monitoring``, too.
  - ``break`` and ``return`` drop the iterator by ``POP_TOP``, and the end of the loop drops it by ``END_ASYNC_FOR``.
    An exception in the body drops it at the instruction that raised or re-raised, which is none of these.

A new instruction for the exit of a loop (3.14 has got ``POP_ITER`` for the end of loops without ``async``) would make a
``break`` look like an exception: the record in flight would be delivered again. If one of the known instructions raised
an exception, this would look like a ``break``: a record on which the application failed would be committed. A compiler
at run time that does not maintain ``f_lasti`` could do either. Checked with CPython 3.11.7, 3.12.1 and 3.13.0, but not
with 3.14. ``tests/unit/clients/calls/test_runtime_assumptions.py`` fails if this changes.
"""

from __future__ import annotations

import dis
import sys

__all__ = ["dropped_by_loop_exit"]

#: Instructions that only remove objects from the stack. ``POP_ITER`` exists from CPython 3.14 on.
_DROPS = frozenset({"POP_TOP", "POP_ITER", "END_ASYNC_FOR"})


def dropped_by_loop_exit() -> bool:
    """
    Return whether a loop was left by ``break`` or ``return``. Only the ``__del__`` of its iterator may call this.

    If this cannot be detected (another interpreter, an iterator with other references), the result is False. This is
    safe: the record in flight does not count as finished.
    """
    try:
        frame = sys._getframe(2)
        return dis.opname[frame.f_code.co_code[frame.f_lasti]] in _DROPS
    except (AttributeError, IndexError, ValueError):
        return False
