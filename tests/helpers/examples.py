"""How many examples the property tests try."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return ``count``, and in CI a fourth of it: where the profile in conftest.py has fewer than 100 examples."""
    return count * settings().max_examples // 100
