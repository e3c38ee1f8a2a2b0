"""
Recognise settings that may be secrets, and hide secrets within texts, such as the password in a URL.

Texts come from users, plugins and the systems that plugins use, and no other thread runs while a regular expression
runs. So the time of all functions here is proportional to the length of a text, and that length is limited.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Collection, Iterator
from typing import NamedTuple
from urllib.parse import quote, quote_plus

#: What users and logs see instead of a secret, as in Kafka Connect.
HIDDEN = "[hidden]"

#: The most characters of a text that is searched for secrets, some 30 ms. A longer one is a secret as a whole.
LONGEST_TEXT = 1 << 16

#: The most characters of an error that are shown. A status znode has 8 KiB for the whole trace.
_LONGEST_ERROR = 2_000

#: Shorter lines of a secret that has several, such as a private key, may be anything.
_SHORTEST_LINE = 8

#: Shorter texts, and these, are too common in other texts to be hidden there.
_SHORTEST_SECRET = 4
_COMMON = frozenset({"true", "false", "none", "null"})

#: Parts of names that secrets usually have.
_TELLTALES = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "credential",
    "jaas",
    "apikey",
    "accesskey",
    "privatekey",
    "keytab",
    "signature",
    "cookie",
)

#: Words of names that secrets usually have. As parts of longer words, such as "author", they say nothing.
_WORDS = frozenset({"auth", "header", "headers", "key", "keys", "pass", "pwd", "sas"})

#: Settings with these names are about the keys of records, such as ``key.converter`` of Kafka Connect.
_ABOUT_RECORDS = "key."

# Each pattern takes time in proportion to the text: what it repeats is bounded, or a match consumes it. Where a
# password may end at several places, the pattern takes the last one.

#: The names that texts give to secrets, such as "Pwd" in ODBC, and "AccountKey", "SharedAccessSignature" and "sig" in
#: Azure.
_SECRET_NAME = (
    r"(?:(?:password|passwd|passphrase|secret|token|credential|authorization|cookie|accesssignature)\w{0,20}"
    r"|(?:access|account|api|auth|private|shared)[ _-]?key"
    r"|pwd|(?<![a-z])(?:pass|pw|sig))"
)

#: Around the name of a secret. Values do not begin in the next line.
_BLANKS = r"[ \t]{0,9}"

#: A secret that a text gives a name, as in ``password='x'``.
_NAMED_SECRET = re.compile(rf"{_SECRET_NAME}[\"']?\s*[=:]", re.IGNORECASE)

#: A parameter of a URL, or of a path that an error message shows. It ends at a blank: the message may continue there.
_NAMED_PARAMETER = re.compile(rf"([?&][\w.%-]{{0,40}}?{_SECRET_NAME}=)[^\s&]+", re.IGNORECASE)

#: Where the next property begins, or the line ends with a separator.
_NEXT_PROPERTY = rf";{_BLANKS}(?:[\w.%-][\w .%-]{{0,60}}=|$)"

#: What precedes the value of a property, as in ``Pwd=x;``, or of an item of a dict or of JSON. An unquoted "name: x" is
#: no property: errors about a setting begin with its name.
_NAMED_VALUE = re.compile(
    rf"{_SECRET_NAME}(?:{_BLANKS}=|\\?[\"']{_BLANKS}[=:])(?!{_BLANKS}\[hidden\]){_BLANKS}(?!{_NEXT_PROPERTY})(?=[^\n])",
    re.IGNORECASE | re.MULTILINE,
)

#: A value in quotes, or in braces as in ODBC, by its first character.
_ENCLOSED = {
    **{
        each: re.compile(rf"{each}(?:\\.|[^\\\n])*?{each}(?={_BLANKS}(?:[,;:)}}\]]|$))", re.MULTILINE) for each in "\"'"
    },
    "{": re.compile(rf"\{{[^\n]*?\}}(?={_BLANKS}(?:;|$))", re.MULTILINE),
}

#: A value up to the next property, or the end of the line.
_UNENCLOSED = re.compile(rf"(?:(?!{_NEXT_PROPERTY})[^\n])+", re.MULTILINE)

#: From the end of a URL's scheme to the next URL or the end of the line: a password that is not encoded may have
#: blanks.
_AFTER_SCHEME = re.compile(r"(?<=://)(?:(?![\s,;|\"'<(\[]\w[\w+.:-]*://)[^\n])+")

#: What precedes the last "@" if it is user and password. What looks like a port may be the start of a password.
_USER_AND_PASSWORD = re.compile(r"[^\s/?#:]*:")

#: A user or a token without a password.
_USER = re.compile(r"[^\s/?#]*@")

#: The value of a parameter, or all that follows "?" if that is no parameter.
_PARAMETER = re.compile(r"([?&;#])([^?&;#]*=)?([^?&;#]*)")

#: A word, or what precedes or follows the scheme of a URL in it.
_WORD = re.compile(r"(?:(?!://)\S)+")

#: The start of user and password where there is no scheme, or a mistyped one, as in ``user:x@tcp(host:3306)/db``. The
#: exceptions are ``C:\x``, ``file:/x``, ``mailto:x``, and the "(?:" and "[^:" of regular expressions.
_CREDENTIALS = re.compile(
    r"(?<![^/,])(?!(?:[a-z]|file):[/\\]|mailto:|[^/,:@]*(?:\(\?|\[\^|\[:))[^/,:@]*:", re.IGNORECASE
)

#: User and password of Oracle, as in ``scott/tiger@//host:1521/x``. With another end, ``a/b@c`` may be anything.
_ORACLE_USER = re.compile(r"[^/]+/.")
_ORACLE_HOST = re.compile(r"//|\(\s*DESCRIPTION|[\w.-]+:\d{4,5}(?!\d)", re.IGNORECASE)


def may_be_secret(name: str, text: str) -> bool:
    """
    Return whether a setting that no connector declares may be a secret, by its name or by its text.

    A name or a text of more than ``LONGEST_TEXT`` characters always counts as a secret.
    """
    if max(len(name), len(text)) > LONGEST_TEXT:
        return True
    name = name.lower()
    words = re.split(r"[^a-z0-9]+", name)
    if any(telltale in "".join(words) for telltale in _TELLTALES) or _NAMED_SECRET.search(text):
        return True
    return not name.startswith(_ABOUT_RECORDS) and not _WORDS.isdisjoint(words)


def is_common(text: str) -> bool:
    """Return whether a text would hide too much if it were hidden wherever it occurs: it is short, or like "true"."""
    return len(text) < _SHORTEST_SECRET or text.lower() in _COMMON


def without_secrets(text: str, values: Collection[str] = ()) -> str:
    """
    Return a text with ``[hidden]`` for its secrets.

    Secrets are the user, the password and the values of parameters in each URL, a user and a password before a host,
    and values to which the text itself gives the name of a secret.

    Args:
        text: The text. If it has more than ``LONGEST_TEXT`` characters, all of it is hidden.
        values: Further secrets; see ``quoted_forms``.
    """
    if len(text) > LONGEST_TEXT:
        return HIDDEN
    text = _without_values(text, values)
    text = _NAMED_PARAMETER.sub(rf"\1{HIDDEN}", text)
    text = _without_named_values(text)
    text = _AFTER_SCHEME.sub(lambda found: _masked_url(found[0]), text)
    return _WORD.sub(lambda found: _masked_word(found[0]), text)


def quoted_forms(secret: str) -> set[str]:
    """Return the forms in which errors may quote a secret or a long line of it: unchanged, escaped, or URL-encoded."""
    found: set[str] = set()
    lines = (line.strip() for line in secret.splitlines())
    for text in {secret, secret.strip(), *(line for line in lines if len(line) >= _SHORTEST_LINE)}:
        escaped = text.encode(errors="backslashreplace")
        found |= {
            text,
            repr(text)[1:-1],
            # As a part of a text that has both kinds of quotes.
            repr(f"\"{text}'")[2:-3],
            json.dumps(text)[1:-1],
            repr(escaped)[2:-1],
            quote(escaped),
            quote(escaped, safe=""),
            quote_plus(escaped),
        }
    return found - {""}


class ErrorTexts(NamedTuple):
    """
    The parts of an error that users and logs may see.

    ``summary`` is the error's text, or its type if the text is empty. ``trace`` is the error's trace.
    """

    summary: str
    trace: str


def error_texts(error: BaseException, values: Collection[str] = ()) -> ErrorTexts:
    """
    Return the text and the trace of an error, without secrets and of limited length.

    This function may call code of a plugin, and takes up to 50 ms, so workers call it on a thread.

    Args:
        error: The error.
        values: Further secrets; see ``quoted_forms``.
    """
    try:
        summary = str(error)
    except Exception as failure:  # code of a plugin
        summary = f"{type(error).__name__}, whose text cannot be made: {type(failure).__name__}"
    if len(summary) > LONGEST_TEXT:
        summary = f"{type(error).__name__}: {summary}"
    # Python's traces name the error at their end. Each part is searched as a whole: half a secret would not be found.
    parts: list[str] = []
    left = LONGEST_TEXT
    for part in reversed(traceback.format_exception(error)):
        left -= len(part) if len(part) <= LONGEST_TEXT else 0
        if left < 0:
            break
        parts.append(_shown(part, values))
    return ErrorTexts(_shown(summary, values) or type(error).__name__, "".join(reversed(parts)))


def _shown(text: str, values: Collection[str]) -> str:
    """Return the text of an error, or a part of a trace, without secrets and of limited length."""
    end = "\n" if text.endswith("\n") else ""
    if len(text) > LONGEST_TEXT:
        return f"{text[:100].partition(':')[0]}: a text of {len(text):,} characters, which is left out{end}"
    shown = without_secrets(text, values)
    if len(shown) <= _LONGEST_ERROR:
        return shown
    return f"{shown[:_LONGEST_ERROR]}... and {len(shown) - _LONGEST_ERROR:,} more characters{end}"


def _without_values(text: str, values: Collection[str]) -> str:
    """Hide all values in one pass: a second pass could find a value in the ``[hidden]`` of another value."""
    shown: list[str] = []
    position = 0
    for start, end in sorted(span for value in values for span in _occurrences(text, value)):
        if start >= position:
            shown += [text[position:start], HIDDEN]
        position = max(position, end)
    return "".join([*shown, text[position:]])


def _occurrences(text: str, value: str) -> Iterator[tuple[int, int]]:
    start = text.find(value)
    while start >= 0:
        yield start, start + len(value)
        start = text.find(value, start + len(value))


def _without_named_values(text: str) -> str:
    shown: list[str] = []
    position = 0
    #: Up to where quotes and braces are known to stay open. Without it, each one would search the rest of its line.
    open_until = dict.fromkeys(_ENCLOSED, 0)
    while found := _NAMED_VALUE.search(text, position):
        start, first = found.end(), text[found.end()]
        value = None
        if start >= open_until.get(first, start + 1):
            value = _ENCLOSED[first].match(text, start)
            if value is None:
                end_of_line = text.find("\n", start)
                open_until[first] = len(text) if end_of_line < 0 else end_of_line
        value = value or _UNENCLOSED.match(text, start)
        assert value is not None
        shown += [text[position:start], HIDDEN]
        position = value.end()
    return "".join([*shown, text[position:]])


def _masked_url(url: str) -> str:
    """Mask a URL without its scheme. Characters after the URL in the same word, such as a quote, may be masked, too."""
    credentials, at, rest = url.rpartition("@")
    if at and _USER_AND_PASSWORD.match(credentials):
        url = f"{HIDDEN}@{rest}"
    elif user := _USER.match(url):
        url = f"{HIDDEN}@{url[user.end() :]}"
    return re.sub(r"^\S+", lambda found: _PARAMETER.sub(_masked_parameter, found[0]), url)


def _masked_parameter(found: re.Match[str]) -> str:
    separator, name, value = found.groups()
    return f"{separator}{name or ''}{HIDDEN if value else ''}"


def _masked_word(word: str) -> str:
    credentials, at, host = word.rpartition("@")
    if _ORACLE_USER.match(credentials) and _ORACLE_HOST.match(host):
        return f"{HIDDEN}@{host}"
    if at and (found := _CREDENTIALS.search(credentials)):
        return f"{credentials[: found.start()]}{HIDDEN}@{host}"
    return word
