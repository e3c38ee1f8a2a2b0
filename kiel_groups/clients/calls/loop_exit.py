"""
Detect whether a loop was left by ``break`` or ``return``, or by an exception.

In both cases Python drops the iterator without telling it why. But when the iterator is dropped, the frame of the loop
shows the current instruction. After ``break`` or ``return``, this instruction pops the iterator from the stack.
After an exception, it is the instruction that raised.
"""

from __future__ import annotations

import dis
import sys

__all__ = ["dropped_by_loop_exit"]

#: Instructions of CPython 3.11 to 3.14 that only remove objects from the stack.
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
