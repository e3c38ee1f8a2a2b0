"""
Whether the last batch of a query was done when the query ended: Spark does not say, but its checkpoint does.

Spark writes ``offsets/<number>`` when a batch is planned, and ``commits/<number>`` once its sink has it, both in the
folder that the query's writer was given.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from urllib.parse import urlsplit

from kiel_groups.errors import ConfigError
from kiel_groups.spark.checkpoint.query_offsets import Positions

__all__ = ["is_done", "local_folder"]

log = logging.getLogger(__name__)


def local_folder(name: str, text: str) -> Path:
    """
    The folder that a checkpoint's location names, a path or a ``file:`` URI.

    Raises:
        ConfigError: It is on another kind of file system, into which this source cannot look.
    """
    location = urlsplit(text.strip())
    if location.scheme not in ("", "file") or location.netloc or not location.path:
        raise ConfigError(
            f"{name}: {text!r} given to the reader, which looks into folders of the driver's machine only; expected a"
            " path or none at all: only the writer has to have it, and the last batch is committed by the next run"
        )
    return Path(location.path)


def is_done(checkpoint: Path, end: Positions) -> bool:
    """
    Whether the last batch that is done ended exactly there, by the checkpoint.

    What cannot be read says no: a commit that is missing is made up for, and one too many would be a loss.
    """
    try:
        done = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()]
        if not done:
            return False
        lines = (checkpoint / "offsets" / str(max(done))).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("whether the last batch was done cannot be seen, so it is not committed: %s", error)
        return False
    # One line for each source of the query, after some of Spark's own.
    wanted = end.to_json()
    return any(_parsed(line) == wanted for line in lines)


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
