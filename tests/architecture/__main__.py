"""Write the pictures of the layers and of the legal moves, ``docs/layers.txt`` and ``docs/moves.txt``."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.moves import moves_picture
from tests.architecture.picture import picture

DOCS = Path(__file__).parents[2] / "docs"

if __name__ == "__main__":
    (DOCS / "layers.txt").write_text(picture(), encoding="utf-8")
    (DOCS / "moves.txt").write_text(moves_picture(), encoding="utf-8")
