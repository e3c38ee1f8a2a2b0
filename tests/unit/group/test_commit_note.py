"""The note that follows the text of an offset in Kafka."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.group.commit_note import CommitNote, NotedText

NOTE = CommitNote(created=4294967374, claim=4294967391, at_ms=1764100512000)
ENCODED = '{"kiel-groups":{"created":4294967374,"claim":4294967391,"at":1764100512000}}'


def test_a_note_follows_the_text() -> None:
    """Without a text, the note is the whole text that is stored."""
    assert NOTE.after("by the test") == f"by the test {ENCODED}"
    assert NOTE.after("") == ENCODED


@given(st.text())
def test_any_text_is_read_back(text: str) -> None:
    """The text may have blanks, line breaks or another note in it."""
    assert NotedText.parse(NOTE.after(text)) == (text, NOTE)


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "by an operator",
        "{}",
        ENCODED + " ",
        ENCODED.replace("kiel-groups", "kiel"),
        ENCODED.replace("1764100512000", "true"),
        ENCODED.replace("4294967374", '"4294967374"'),
        ENCODED.replace(',"at":1764100512000', ""),
        '{"kiel-groups":{not JSON}}',
        '{"kiel-groups":{"created":' + "[" * 5_000 + "}}",
        ENCODED.replace("4294967374", "9" * 5_000),
    ],
)
def test_the_text_of_another_program_has_no_note(metadata: str) -> None:
    """Such a text is returned as it is."""
    assert NotedText.parse(metadata) == (metadata, None)
