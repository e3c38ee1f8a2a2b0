"""Print the picture of the layers: ``python -m tests.architecture > docs/layers.txt``."""

from __future__ import annotations

import sys

from tests.architecture.picture import picture

if __name__ == "__main__":
    sys.stdout.write(picture())
