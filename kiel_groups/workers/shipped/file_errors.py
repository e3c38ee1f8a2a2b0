"""Have errors of open files name them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["named_errors"]


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the path to each ``OSError`` of the block that names no file: a call with a descriptor does not know it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise
