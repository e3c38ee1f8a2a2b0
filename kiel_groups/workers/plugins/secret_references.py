"""
Replace references in settings, such as ``${file:database.properties:password}``, by the secrets that they name.

The configuration in ZooKeeper has the references. Each worker reads the secrets from its own files and environment,
when it checks settings and when it starts a connector or a task. Everyone who can create connectors can use all these
secrets, so the operator of a worker chooses one directory and the names of variables.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import BinaryIO

from kiel_groups.errors import ConfigError
from kiel_groups.secret_texts import is_common, quoted_forms

#: A reference: its provider, and the name of a file, of a file and a key in it, or of a variable.
_REFERENCE = re.compile(r"\$\{(file|env):([^${}]*)\}")

#: The beginning of a reference.
_BEGINNING = re.compile(r"\$\{(?:file|env):")

#: The references of other providers, which Kafka Connect may have and workers do not.
_OTHER_REFERENCE = re.compile(r"\$\{(\w{1,40}):[^${}]{1,200}\}")

#: The most bytes of a file with secrets. The texts of errors are searched for secrets up to this length.
_LARGEST_FILE = 1 << 16

#: The most characters of the path of a file in a reference.
_LONGEST_PATH = 500

#: The most characters of all values in the settings of one connector or task: as many as a request may have.
_MOST_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True, repr=False)
class ResolvedConfig:
    """
    Settings with values in place of references. The ``repr`` has none of them.

    Args:
        texts: All settings by name. A setting with an error keeps its references.
        errors: Why references have no value, by setting. Each text begins with the setting's name.
        secrets: The values, in all forms in which texts may quote them.
    """

    texts: Mapping[str, str | None]
    errors: Mapping[str, str]
    secrets: frozenset[str]


class SecretReferences:
    """
    Finds the values of references. The object has no values itself: each call reads them anew.

    Args:
        directory: ``${file:NAME}`` is the text of a file below this directory, and ``${file:NAME:KEY}`` is the value of
            a key in such a file, which has the format of Java's properties. None allows neither.
        variables: ``${env:NAME}`` is the value of an environment variable with one of these names. In a name, ``*``
            matches any characters, and ``?`` matches one.
        files: Further files by the names that references use for them.

    Raises:
        ConfigError: There is no such directory, or ``variables`` is one text.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        variables: Iterable[str] = (),
        *,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        if isinstance(variables, str):
            raise ConfigError(f"secrets: the text {variables!r} given for variables; expected a list of texts")
        self._directory = None if directory is None else Path(directory)
        if self._directory is not None and not self._directory.is_dir():
            raise ConfigError(f"secrets: {str(directory)!r} is not a directory; expected one with the files of secrets")
        self._variables = tuple(filter(None, variables))
        self._files = dict(files or {})

    def resolve(self, config: Mapping[str, str | None], literal: Collection[str] = ()) -> ResolvedConfig:
        """
        Replace the references in settings by their values. The call may block: it reads files.

        A value is used as it is, also if it contains a reference. In a text that is a JSON object, it is escaped.

        Args:
            config: The texts by name.
            literal: The settings that may not have references.
        """
        reading = _Reading(self)
        texts, errors = dict(config), {}
        for name, text in config.items():
            if text is None or (found := _BEGINNING.search(text)) is None:
                continue
            try:
                if name in literal:
                    raise ConfigError(f"{text[found.start() :]:.100} given; this setting takes no references")
                if _BEGINNING.search(without_references(text)):
                    raise ConfigError(
                        f"{found[0]} begins a reference that is not complete; expected ${{file:NAME:KEY}},"
                        " ${file:NAME} or ${env:NAME}, without '$', '{' and '}' in names"
                    )
                texts[name] = reading.substituted(text)
            except ConfigError as error:
                errors[name] = f"{name}: {error}"
        forms = frozenset(form for value in reading.secrets for form in quoted_forms(value))
        return ResolvedConfig(texts, errors, forms)

    def value_of_variable(self, name: str) -> str:
        """Return the value of an allowed environment variable. Raise ConfigError if there is none."""
        if not any(fnmatchcase(name, allowed) for allowed in self._variables):
            more = ",".join([*self._variables, name[:100]])
            raise ConfigError(
                f"the variable is not allowed on this worker; start all workers of the group with --secrets-env {more}"
            )
        try:
            if (value := os.environb.get(name.encode())) is not None:
                return value.decode()
        except UnicodeError:
            raise ConfigError("the variable, or its name, is not a text in UTF-8 on this worker") from None
        raise ConfigError("the variable is not set on this worker; set it on all workers of the group")

    def text_of_file(self, name: str) -> str:
        """
        Return the text of a file with secrets.

        Raises:
            ConfigError: There is no directory of secrets, the path leads out of it, or the file cannot be read.
        """
        path = self._files.get(name) or self._path_of(name)
        try:
            with _opened(path) as file:
                if name not in self._files:
                    # The check follows the open: the links of a path may change in between.
                    self._check_within(os.readlink(f"/proc/self/fd/{file.fileno()}"))
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ConfigError(f"{path} is not a regular file")
                data = file.read(_LARGEST_FILE + 1)
        except FileNotFoundError:
            raise ConfigError(
                f"{path} does not exist on this worker; create it on all workers of the group, or correct the reference"
            ) from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read on this worker: {error.strerror}") from None
        if len(data) > _LARGEST_FILE:
            raise ConfigError(f"{path} has more than {_LARGEST_FILE:,} bytes; expected a file with secrets")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not a text in UTF-8") from None

    def _path_of(self, name: str) -> Path:
        if self._directory is None:
            raise ConfigError(
                "this worker has no directory of secrets; start all workers of the group with --secrets-dir"
            )
        is_legal = 0 < len(name) <= _LONGEST_PATH and name.isprintable()
        if not is_legal or name.startswith("/") or ".." in PurePath(name).parts:
            raise ConfigError(
                "expected the path of a file below the directory of secrets, which neither begins with '/' nor has '..'"
            )
        return self._directory / name

    def _check_within(self, path: str) -> None:
        """Raise ConfigError if the real path of a file is not below the directory of secrets."""
        assert self._directory is not None
        # Kubernetes has links within the directory.
        if not PurePath(path).is_relative_to(os.path.realpath(self._directory)):
            raise ConfigError("the file is a link out of the directory of secrets; copy it into the directory")


def _opened(path: Path, *, again: bool = True) -> BinaryIO:
    """Open a file without waiting for the writer of a FIFO."""
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except FileNotFoundError:
        # Kubernetes may just have replaced the folder to which the links in the directory lead.
        if not again:
            raise
        return _opened(path, again=False)


#: Without a directory and variables: each reference is an error.
NO_REFERENCES = SecretReferences()


class _Reading:
    """Reads each file once, for the settings of one connector or task."""

    def __init__(self, references: SecretReferences) -> None:
        self._references = references
        self._texts: dict[str, str] = {}
        self._properties: dict[str, Mapping[str, str]] = {}
        self._left = _MOST_CHARACTERS
        #: The values that other texts must not show.
        self.secrets: set[str] = set()

    def substituted(self, text: str) -> str:
        """Return a text with values in place of its references. Raise ConfigError if a reference has no value."""
        escaped = _escaped if _is_json_object(text) else str
        return _REFERENCE.sub(lambda found: escaped(self._value(found)), text)

    def _value(self, found: re.Match[str]) -> str:
        try:
            value = self._references.value_of_variable(found[2]) if found[1] == "env" else self._of_file(found[2])
            self._left -= len(value)
            if self._left < 0:
                raise ConfigError(f"the values of all references have more than {_MOST_CHARACTERS:,} characters")
        except ConfigError as error:
            raise ConfigError(f"{found[0]:.200}: {error}") from None
        if not is_common(value):
            self.secrets.add(value)
        return value

    def _of_file(self, place: str) -> str:
        name, colon, key = place.partition(":")
        # Other spellings, such as "./x", are no other files.
        name = name and str(PurePath(name))
        if name not in self._texts:
            self._texts[name] = self._references.text_of_file(name)
        if not colon:
            # Editors end a file with a line end.
            return self._texts[name].rstrip("\r\n")
        if name not in self._properties:
            try:
                self._properties[name] = parse_java_properties(self._texts[name])
            except ValueError as error:
                raise ConfigError(f"the file is not in the format of Java's properties: {error}") from None
        keys = self._properties[name]
        if key not in keys:
            # The nearest key is not named: of a file that is a password by itself, the key is the password.
            raise ConfigError("the file on this worker has no such key; expected a line KEY=VALUE with this key")
        return keys[key]


def has_reference(text: str) -> bool:
    """Return whether a text has a reference."""
    return _REFERENCE.search(text) is not None


def is_reference(text: str) -> bool:
    """Return whether a text is one reference and nothing else. Then it has no secret itself."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def without_references(text: str) -> str:
    """Return a text without its references."""
    return _REFERENCE.sub("", text)


def other_provider(text: str) -> str | None:
    """Return the provider of a reference that Kafka Connect may have, and workers do not; None without one."""
    found = _OTHER_REFERENCE.search(without_references(text))
    return found[1] if found else None


def _escaped(value: str) -> str:
    return json.dumps(value)[1:-1]


def _is_json_object(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


#: The end of a line; ``str.splitlines`` knows more than Java does.
_LINE_END = re.compile(r"\r\n?|\n")

#: A key, and what follows it up to its value.
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*")

_ESCAPE = re.compile(r"\\(?:u(.{0,4})|(.))")

_BLANKS = " \t\f"


def parse_java_properties(text: str) -> dict[str, str]:
    """
    Return the values of a file in the format of Java's properties, by key, as ``java.util.Properties`` reads it.

    Raises:
        ValueError: An escape of a character, such as ``\\u00e9``, is not complete, or is half a character.
    """
    found: dict[str, str] = {}
    parts: list[str] = []
    for line in [*_LINE_END.split(text), ""]:
        line = line.lstrip(_BLANKS)
        if not parts and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        parts.append(line[:-1] if backslashes % 2 else line)
        if backslashes % 2:
            continue
        whole, parts = "".join(parts), []
        key = _KEY.match(whole)
        assert key is not None
        found[_unescaped(key[1])] = _unescaped(whole[key.end() :])
    return found


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        if found[1] is None:
            return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(found[2], found[2])
        if not re.fullmatch("[0-9a-fA-F]{4}", found[1]):
            raise ValueError("a '\\u' is not followed by four hexadecimal digits")
        return chr(int(found[1], 16))

    found = _ESCAPE.sub(character, text)
    try:
        # Java writes characters outside the basic plane as two escapes.
        return found.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("a '\\u' is half a character, and the other half does not follow") from None
