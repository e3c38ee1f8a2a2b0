"""Format lists and counts for log lines, errors and reports."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from shlex import join

#: A quoted command, and what stands for its blanks while a sentence is divided into lines.
_QUOTED, _JOINT = re.compile(r"(?:(?:→|->) )?'kiel-groups [^']+'"), "\ue000"


def own_command(*words: str) -> str:
    """
    Return a command of ``kiel-groups`` in quotes, for an error or a remedy. The words are escaped for a shell.

    The command line later adds the options with the cluster's addresses; see ``cli.app.pasteable``.
    """
    return f"'kiel-groups {join(words)}'"


def some(things: Iterable[object], most: int = 4) -> str:
    """Return a text that lists at most ``most`` things, and counts the rest: ``a, b and 3 more``."""
    listed = [str(thing) for thing in things]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def counted(things: Iterable[object] | int, one: str, many: str = "") -> str:
    """Return a count with its noun, such as ``2 partitions``. ``many`` is the plural, by default ``one`` plus s."""
    count = things if isinstance(things, int) else sum(1 for _ in things)
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def wrapped(sentence: str, width: int, *, divides_words: bool = False) -> list[str]:
    """
    Divide a sentence into lines with the indent of the sentence.

    Args:
        sentence: The sentence. A command that it quotes stays on one line.
        width: The most characters of a line.
        divides_words: Whether a word that is longer than a line is divided. If False, such a word makes a line longer
            than ``width``.
    """
    indent = " " * (len(sentence) - len(sentence.lstrip()))
    whole = _QUOTED.sub(lambda found: found[0].replace(" ", _JOINT), sentence)
    lines = textwrap.wrap(
        whole, width, subsequent_indent=indent, break_long_words=divides_words, break_on_hyphens=False
    )
    return [line.replace(_JOINT, " ") for line in lines] or [""]
