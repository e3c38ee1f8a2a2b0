"""Read files in TOML that users write, with errors that say what is wrong, and where."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kiel_groups.errors import ConfigError


def read_toml(path: Path, place: str) -> dict[str, Any]:
    """
    Return the content of a file. ``place`` names the file in errors.

    Raises:
        ConfigError: The file cannot be read, or is not TOML. The text has at most one character of the file.
    """
    # Most commands are started without such a file.
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{place} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place} is not TOML: {error}") from error


def check_keys(table: Iterable[str], known: Iterable[str], place: str) -> None:
    """
    Check the keys of a table. ``place`` names the table in errors.

    Raises:
        ConfigError: A key does not exist. The text names the most similar one that does, or all of them.
    """
    listed = list(known)
    for key in table:
        if key not in listed:
            near = get_close_matches(key.replace("_", "-"), listed, 1)
            expected = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(listed)}"
            raise ConfigError(f"{place}: there is no {key!r:.100}; {expected}")
