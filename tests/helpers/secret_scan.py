"""Look for secrets in what a run shows and leaves: command lines, answers, logs, and the files of servers and Spark."""

from __future__ import annotations

import base64
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kiel_groups.secret_texts import quoted_forms

__all__ = ["SecretScan"]

#: The interval at which the command lines of all processes are read, in seconds. Each process of a run lives longer.
_INTERVAL_S = 0.02


class SecretScan:
    """
    A search for some secrets, as they are, escaped, quoted as in URLs, and in base64, alone or within a longer text.

    Args:
        secrets: The secrets by name. Each has at least 11 characters.
    """

    def __init__(self, **secrets: str) -> None:
        self._forms = {name: _forms(secret) for name, secret in secrets.items()}
        #: What was found, and where.
        self.found: list[str] = []
        self._command_lines: set[bytes] = set()

    def look_at(self, where: str, text: str | bytes, *, ignoring: Collection[str] = ()) -> None:
        """Look for all secrets in a text, other than those with an ignored name."""
        data = text.encode() if isinstance(text, str) else text
        for name, forms in self._forms.items():
            if name not in ignoring and any(form in data for form in forms):
                self.found.append(f"{name} in {where}")

    def look_into(self, folder: Path, *, besides: Collection[Path] = (), ignoring: Collection[str] = ()) -> int:
        """
        Look at the names and the contents of all files below a folder, and return how many there are.

        Args:
            folder: The folder.
            besides: Files and folders that have secrets on purpose.
            ignoring: The names of secrets that these files may have.
        """
        count = 0
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or any(path.is_relative_to(each) for each in besides):
                continue
            with suppress(FileNotFoundError):  # The server has removed it.
                # Servers preallocate files, with zeros.
                self.look_at(str(path), str(path).encode() + path.read_bytes().rstrip(b"\0"), ignoring=ignoring)
                count += 1
        return count

    @contextmanager
    def watching_processes(self) -> Iterator[None]:
        """Look at the command lines of all processes, as ``ps`` shows them, while the block runs."""
        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()

    def saw_command(self, *words: str) -> bool:
        """Return whether a process has run with all these words in its command line."""
        return any(all(word.encode() in line for word in words) for line in self._command_lines)

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(_INTERVAL_S):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):  # The process has ended.
                    line = path.read_bytes()
                    if line not in self._command_lines:
                        self._command_lines.add(line)
                        self.look_at(f"the command line {line!r}", line)


def _forms(secret: str) -> set[bytes]:
    """Return the texts that show a secret."""
    assert len(secret) >= 11
    data = secret.encode()
    forms = {form.encode() for form in quoted_forms(secret)}
    # In base64, what a text shows of the secret depends on how many bytes precede it: the first character that has bits
    # of the secret only, and the last one.
    for before, first in enumerate((0, 2, 3)):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = encode(bytes(before) + data)
            forms.add(encoded[first : (before + len(data)) * 8 // 6])
    return forms
