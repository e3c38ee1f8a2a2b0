"""Parse ``--format``, with the tokens of kcat's option ``-f``, into a function that formats records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kiel_groups.cli.records.record_lines import RecordLine
from kiel_groups.errors import ConfigError
from kiel_groups.model import Record

__all__ = ["TOKENS", "parse_format"]

_Part: TypeAlias = Callable[[Record], bytes]


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


#: What each token prints. Records of Kafka 0.8 have neither a timestamp nor headers, so ``%T`` is kcat's -1 for a
#: missing timestamp, and ``%h`` is empty. A null key or value is empty, with the length -1.
TOKENS: Mapping[str, _Part] = {
    "%s": lambda record: record.value or b"",
    "%S": lambda record: b"%d" % _length(record.value),
    "%R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
    "%k": lambda record: record.key or b"",
    "%K": lambda record: b"%d" % _length(record.key),
    "%t": lambda record: record.topic.encode(),
    "%p": lambda record: b"%d" % record.partition,
    "%o": lambda record: b"%d" % record.offset,
    "%T": lambda record: b"-1",
    "%h": lambda record: b"",
    "%%": lambda record: b"%",
}

_ESCAPES = {r"\n": b"\n", r"\r": b"\r", r"\t": b"\t", "\\\\": b"\\"}

_PIECES = re.compile(r"(?P<token>%.?)|(?P<escape>\\(?:x[0-9A-Fa-f]{2}|.?))|[^%\\]+", re.DOTALL)


def parse_format(template: str) -> RecordLine:
    r"""
    Return a function that formats records by a template. It adds no newline of its own.

    Args:
        template: Text with tokens, a key of ``TOKENS`` each, and the escapes ``\n``, ``\r``, ``\t``, ``\\`` and
            ``\xNN``, a byte by its two hexadecimal digits.

    Raises:
        ConfigError: The template is empty, or has an unknown token or escape.
    """
    if not template:
        raise ConfigError(r"--format: nothing given; expected a text such as '%t:%p %o %k %s\n'")
    parts = [_part(template, piece) for piece in _PIECES.finditer(template)]
    return lambda record: b"".join([part(record) for part in parts])


def _part(template: str, piece: re.Match[str]) -> _Part:
    text = piece[0]
    if piece["token"] is not None:
        if text in TOKENS:
            return TOKENS[text]
        raise _unknown(template, piece, f"a token ({', '.join(TOKENS)})")
    if piece["escape"] is None:
        data = text.encode()
    elif text in _ESCAPES:
        data = _ESCAPES[text]
    elif len(text) == len(r"\xNN"):
        data = bytes.fromhex(text[2:])
    else:
        raise _unknown(template, piece, r"an escape (\n, \r, \t, \\, \xNN)")
    return lambda record: data


def _unknown(template: str, piece: re.Match[str], expected: str) -> ConfigError:
    return ConfigError(f"--format: {piece[0]!r} at character {piece.start() + 1} of {template!r}; expected {expected}")
