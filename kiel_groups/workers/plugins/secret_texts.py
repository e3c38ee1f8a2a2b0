"""Recognise secrets by the names of settings, and hide those that are parts of texts, such as the password in a URL."""

from __future__ import annotations

import re

__all__ = ["HIDDEN", "may_be_secret", "without_secrets"]

#: What users and logs see instead of a secret, as in Kafka Connect.
HIDDEN = "[hidden]"

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

# Each pattern takes time in proportion to the text, which may have a megabyte.

#: A secret that a text gives a name, as in ``password='x'``.
_NAMED_SECRET = re.compile(r"(?:password|passwd|secret|token|credential)\w{0,20}[\"']?\s*[=:]", re.IGNORECASE)

#: From the start of a URL's host to the next blank.
_AFTER_SCHEME = re.compile(r"(?<=://)\S+")

#: User and password. A password that is not encoded may have any character, so it reaches up to the last "@" unless
#: what follows the first colon is a port.
_USER_INFO = re.compile(r"[^\s/?#@:]*:(?!\d*(?:[/?#,;]|$))\S*@|[^\s/?#]*@")

#: User and password where there is no scheme, or a mistyped one.
_CREDENTIALS = re.compile(r"(?<![^\s/,])[^\s/,:@]*:[^\s/]*@")

#: The value of a parameter, or all that follows "?" if that is no parameter.
_PARAMETER = re.compile(r"([?&;#])([^?&;#=]*=)?([^?&;#]*)")


def may_be_secret(name: str, text: str) -> bool:
    """Return whether a setting that no connector declares may be a secret, by its name or by what its text has."""
    name = name.lower()
    words = re.split(r"[^a-z0-9]+", name)
    if any(telltale in "".join(words) for telltale in _TELLTALES) or _NAMED_SECRET.search(text):
        return True
    return not name.startswith(_ABOUT_RECORDS) and not _WORDS.isdisjoint(words)


def without_secrets(text: str) -> str:
    """Return a text with ``[hidden]`` for user and password, and for the values of parameters, of each URL in it."""
    return _CREDENTIALS.sub(f"{HIDDEN}@", _AFTER_SCHEME.sub(lambda found: _masked(found[0]), text))


def _masked(url: str) -> str:
    """Mask a URL without its scheme. What follows the URL in the same word, such as a quote, may be masked with it."""
    if user_info := _USER_INFO.match(url):
        url = f"{HIDDEN}@{url[user_info.end() :]}"
    return _PARAMETER.sub(_masked_parameter, url)


def _masked_parameter(found: re.Match[str]) -> str:
    separator, name, value = found.groups()
    return f"{separator}{name or ''}{HIDDEN if value else ''}"
