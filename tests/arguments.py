"""Types of command-line arguments that several programs of the tests share."""

from __future__ import annotations

import argparse

__all__ = ["positive"]


def positive(text: str) -> int:
    """An integer of at least 1, as a ``type`` for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} given; expected at least 1")
    return number
