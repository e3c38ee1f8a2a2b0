"""Where to start in a topic; brokers know the same numbers."""

from __future__ import annotations

from typing import Final

__all__ = ["BEGINNING", "END"]

#: The oldest record that the log still has.
BEGINNING: Final = -2

#: What is written from now on.
END: Final = -1
