"""
The note that a member appends to the metadata text of an offset in Kafka.

An offset in Kafka has no version, and outlives its topic. The note says under which claim the offset was stored, and to
which incarnation of the topic the offset belongs. An incarnation is the topic from one creation to the next deletion.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_KEY = "kiel-groups"

#: A text, then the note as a JSON object that ends the text.
_NOTED = re.compile(r'(?:(?P<text>.*) )?(?P<note>\{"' + _KEY + r'":\{[^{}]*\}\})', re.DOTALL)


class CommitNote(NamedTuple):
    """
    The note that a member stores with an offset.

    ``created`` is the creation zxid of the topic to whose log the offset belongs. ``claim`` is the czxid of the owner
    znode under which the offset was stored. ``at_ms`` is the time of the commit, in milliseconds since 1970.
    """

    created: int
    claim: int
    at_ms: int

    def after(self, text: str) -> str:
        """Return the metadata of an offset: the application's text, and this note at the end."""
        fields = {_KEY: {"created": self.created, "claim": self.claim, "at": self.at_ms}}
        note = json.dumps(fields, separators=(",", ":"))
        return f"{text} {note}" if text else note


class NotedText(NamedTuple):
    """
    The metadata of a stored offset, divided into the application's text and the note.

    ``note`` is None if the metadata does not end in a valid note: another program stored the offset.
    """

    text: str
    note: CommitNote | None

    @classmethod
    def parse(cls, metadata: str) -> NotedText:
        """Divide the metadata of a stored offset into the application's text and the note."""
        match = _NOTED.fullmatch(metadata)
        note = None if match is None else _note(match["note"])
        return cls(metadata, None) if match is None or note is None else cls(match["text"] or "", note)


class NotedOffset(NamedTuple):
    """An offset that was read from Kafka, and its note. ``note`` is None if another program stored the offset."""

    offset: int
    note: CommitNote | None


def _note(data: str) -> CommitNote | None:
    try:
        fields: dict[str, Any] = json.loads(data)[_KEY]
    except (ValueError, RecursionError):
        return None
    values = [fields.get(name) for name in ("created", "claim", "at")]
    numbers = [value for value in values if type(value) is int]
    return CommitNote(*numbers) if len(numbers) == len(values) else None
