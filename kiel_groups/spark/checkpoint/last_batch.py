"""
Read from a query's checkpoint whether its last batch is done: Spark does not notify a source of that.

Spark writes ``offsets/<number>`` when it has planned a batch, and ``commits/<number>`` once the sink has stored it.
Both are in the checkpoint folder, which the user names in an option of the query's writer.
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
    Return the folder of a checkpoint location, which must be a path or a ``file:`` URI of this machine.

    Raises:
        ConfigError: The location has no path, or is on another file system, which this source cannot read.
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
    Return whether the last batch that the checkpoint records as done ended exactly at ``end``.

    Return False if the checkpoint cannot be read: the next run repeats a missing commit, but the commit of an
    unfinished batch would lose its records.
    """
    try:
        done = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()]
        if not done:
            return False
        lines = (checkpoint / "offsets" / str(max(done))).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("not committing the last batch, as the checkpoint does not show whether it is done: %s", error)
        return False
    # The file begins with lines of Spark's own. Then it has one line for each source of the query.
    wanted = end.to_json()
    return any(_parsed(line) == wanted for line in lines)


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
