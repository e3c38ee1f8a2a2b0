"""Faults that were in the catalogue, and that the code cannot have any more, each with the reason."""

from __future__ import annotations

FORMER: dict[str, str] = {}
