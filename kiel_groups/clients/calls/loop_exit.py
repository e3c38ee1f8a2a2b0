"""
Detect whether a loop was left by ``break`` or ``return``, or by an exception.

Python does not notify an iterator: in both cases it only drops it. But the frame of the loop drops it, and the current
instruction of that frame is the one that drops. A ``break`` or a ``return`` drops the iterator by popping it from the
stack; an exception drops it at the instruction that raised.
"""

from __future__ import annotations

import dis
import sys

__all__ = ["dropped_by_loop_exit"]

#: Instructions of CPython 3.11 to 3.14 that do nothing but drop what is on top of the stack.
_DROPS = frozenset({"POP_TOP", "POP_ITER", "END_ASYNC_FOR"})


def dropped_by_loop_exit() -> bool:
    """
    Return whether the loop over an iterator was left in order; only for a call by the iterator's ``__del__``.

    If that cannot be seen (another interpreter, an iterator that was kept elsewhere), the result is False, the safe
    answer: what was in flight does not count as finished.
    """
    try:
        frame = sys._getframe(2)
        return dis.opname[frame.f_code.co_code[frame.f_lasti]] in _DROPS
    except (AttributeError, IndexError, ValueError):
        return False
