"""Write the file map and the picture of the legal moves, ``docs/layers.txt`` and ``docs/moves.txt``."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.file_map import file_map
from tests.architecture.moves import moves_picture

DOCS = Path(__file__).parents[2] / "docs"

if __name__ == "__main__":
    (DOCS / "layers.txt").write_text(file_map(), encoding="utf-8")
    (DOCS / "moves.txt").write_text(moves_picture(), encoding="utf-8")
