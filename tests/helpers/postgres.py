"""A PostgreSQL server for tests, Debian's or another one of this machine, on a socket in a temporary folder."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from kiel_groups.embedded.processes import ChildProcess, log_tail
from tests.helpers.waiting import eventually_blocking

__all__ = ["running_postgres"]

#: Settings of a server whose data the test deletes. It listens on no port, only on the socket.
_SETTINGS = {"listen_addresses": "", "fsync": "off", "shared_buffers": "16MB", "max_connections": "20"}


def _programs() -> Path | None:
    """Return the folder with ``initdb`` and ``postgres`` of the newest release, or None if there is none."""
    # Debian has them outside of the PATH.
    found = {int(path.parts[-3]): path.parent for path in Path("/usr/lib/postgresql").glob("[0-9]*/bin/initdb")}
    if found:
        return found[max(found)]
    initdb = shutil.which("initdb")
    return None if initdb is None else Path(initdb).parent


def _user() -> pwd.struct_passwd:
    """Return the user of the server. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


@contextmanager
def running_postgres(schema: Path) -> Iterator[str]:
    """
    Run a server with a database that has this schema, and yield the connection string. Skip the test without a server.
    """
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt install postgresql)")
    user = _user()
    # Not pytest's folder: as a rule, other users cannot enter it, and the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="kiel-groups-postgres-") as name:
        folder = Path(name)
        data, log = folder / "data", folder / "log"
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = []
        if os.geteuid() == 0:
            # The change of the user would undo the tie of ChildProcess to this process.
            ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            as_user = ["setpriv", *ids, "--pdeathsig", "KILL", "--"]
        options = ["--auth=trust", "--username=tests", "--encoding=UTF8", "--no-locale", "--no-sync"]
        made = subprocess.run(
            [*as_user, str(programs / "initdb"), *options, "-D", str(data)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        settings = [f"--{key}={value}" for key, value in _SETTINGS.items()]
        command = [*as_user, str(programs / "postgres"), "-D", str(data), "-k", name, *settings]
        server = ChildProcess(command, log=log, folder=folder)
        try:
            address = f"host={name} user=tests dbname=postgres"
            eventually_blocking(lambda: _answers(address, server, log), "PostgreSQL answers")
            with psycopg.connect(address) as connection:
                connection.execute(schema.read_bytes())
            yield address
        finally:
            # SIGTERM would wait for the end of all sessions.
            server.kill()


def _answers(address: str, server: ChildProcess, log: Path) -> bool:
    assert server.status is None, log_tail(log)
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError as error:
        # While it starts, there is no socket yet, or it says so.
        if re.search(r"No such file|refused|starting up", str(error)):
            return False
        raise
    return True
