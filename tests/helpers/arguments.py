"""Types of command-line arguments, shared by several programs of the tests."""

from __future__ import annotations

import argparse
import math

__all__ = ["positive", "positive_number"]


def positive(text: str) -> int:
    """Parse an integer of at least 1, as a ``type`` for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} given; expected a whole number of at least 1")
    return number


def positive_number(text: str) -> float:
    """Parse a finite number of more than 0, as a ``type`` for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} given; expected a number of more than 0")
    return number
