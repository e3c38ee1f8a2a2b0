"""Search what users, logs and servers show for the secrets of a run."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from kiel_groups.secret_texts import quoted_forms

__all__ = ["SecretScan"]


class SecretScan:
    """
    Collects texts from many places, and finds secrets in them: as they are, escaped, or encoded for URLs.

    Args:
        secrets: The secrets of the run. Each one is searched for in all forms in which texts may quote it.
    """

    def __init__(self, *secrets: str) -> None:
        self._forms = sorted({form for secret in secrets for form in quoted_forms(secret)})
        #: The texts that were seen, by place. A text is kept once.
        self._seen: dict[str, set[str]] = {}

    def add(self, place: str, *texts: str | bytes) -> None:
        """Add texts of a place, such as the answers of a server."""
        found = (text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts)
        self._seen.setdefault(place, set()).update(found)

    def add_command_lines(self) -> None:
        """Add the command lines of all processes, as ``ps`` shows them."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # The process has ended.
                self.add("ps", path.read_bytes())

    def add_files(self, place: str, folder: Path) -> None:
        """Add the names and the contents of all files below a folder, such as logs and event logs."""
        for path in folder.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                self.add(place, str(path), gzip.decompress(data) if path.suffix == ".gz" else data)

    def add_znodes(self, client: KazooClient, path: str = "/") -> None:
        """Add the paths and the data of all znodes from ``path`` on that the client can read."""
        for each in _znodes(client, path):
            with suppress(NoAuthError, NoNodeError):
                self.add("znodes", each, client.get(each)[0] or b"")

    def check(self, *shown: str) -> None:
        """
        Fail if a place shows a secret, or if no place shows one of the texts ``shown``: then the scan has missed it.
        """
        leaks = [f"{place}: {form!r} in {text[:2_000]!r}" for place, text, form in self._leaks()]
        assert not leaks, "\n".join(leaks)
        for text in shown:
            assert any(text in each for each in self._all()), f"{text!r} is not among what was searched"

    def _leaks(self) -> Iterator[tuple[str, str, str]]:
        for place, texts in self._seen.items():
            for text in texts:
                yield from ((place, text, form) for form in self._forms if form in text)

    def _all(self) -> Iterable[str]:
        return (text for texts in self._seen.values() for text in texts)


def _znodes(client: KazooClient, path: str) -> Iterator[str]:
    """Yield the paths of all znodes from ``path`` on that the client can read."""
    with suppress(NoAuthError, NoNodeError):
        children = client.get_children(path)
        yield path
        for child in children:
            yield from _znodes(client, f"{path.rstrip('/')}/{child}")
