"""
Was a loop left by ``break`` or ``return``, or by an exception?

Python does not tell an iterator: in both cases it is only dropped. But it is dropped by the frame whose loop it was,
and that frame stands at the instruction which drops it. A ``break`` or a ``return`` drops the iterator by popping it;
an exception drops it from wherever it was raised.
"""

from __future__ import annotations

import dis
import sys

__all__ = ["dropped_by_loop_exit"]

#: Instructions of CPython 3.11 to 3.14 that do nothing but drop what is on top of the stack.
_DROPS = frozenset({"POP_TOP", "POP_ITER", "END_ASYNC_FOR"})


def dropped_by_loop_exit() -> bool:
    """
    To be called by the ``__del__`` of an iterator: whether its loop was left in order.

    Where that cannot be seen (another interpreter, an iterator that was kept elsewhere) the answer is False, the
    careful one: what was in hand does not count as finished.
    """
    try:
        frame = sys._getframe(2)
        return dis.opname[frame.f_code.co_code[frame.f_lasti]] in _DROPS
    except (AttributeError, IndexError, ValueError):
        return False
