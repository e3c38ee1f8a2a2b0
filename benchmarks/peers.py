"""
The environments of the clients with which kiel-groups is compared, in benchmarks and in tests of mixed groups.

Each one is created in the cache folder at its first use. They are no extra of this package, because pykafka asks for a
release of kazoo that is too old for kiel-groups.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from kiel_groups.embedded.jars import cache_folder
from kiel_groups.embedded.processes import file_lock

__all__ = ["PEERS", "available_peer", "peer_environment"]

_CODECS = ("python-snappy", "lz4", "xxhash")

#: Packages by peer. librdkafka 3 will refuse brokers before 0.10.
PEERS = {
    "confluent-kafka": ("confluent-kafka>=2.6,<3",),
    "kafka-python": ("kafka-python==3.0.*", *_CODECS),
    "kafka-python and confluent-kafka": ("kafka-python==3.0.*", *_CODECS, "confluent-kafka>=2.6,<3"),
    "pykafka": ("pykafka==2.8.*", *_CODECS),
}


def peer_environment(peer: str) -> Path:
    """
    Return the interpreter of an environment with a peer, which the first call installs.

    Raises:
        OSError, CalledProcessError: The environment cannot be created, or the peer cannot be installed.
    """
    folder = cache_folder() / "benchmarks" / peer
    python, installed = folder / "bin" / "python", folder / "installed"
    wanted = " ".join(PEERS[peer])
    # Tests in several processes may need a peer at once.
    with file_lock(folder.parent / f".{peer}.lock"):
        if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True)
            installed.write_text(wanted, encoding="utf-8")
    return python


def available_peer(peer: str) -> Path | None:
    """Return the interpreter of a peer's environment. If it cannot be created, say how to do it, and return None."""
    try:
        return peer_environment(peer)
    except (OSError, subprocess.CalledProcessError) as error:
        click.echo(
            f"without {peer}, which could not be installed: {error}. Try again where 'pip install"
            f" {' '.join(PEERS[peer])}' works in a new environment of {sys.executable}",
            err=True,
        )
        return None
