"""Secrets that connectors use by reference: a task gets them, and nobody else sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from tests.helpers.commands import kiel_groups_here
from tests.helpers.leaking_connectors import LEAKING_SOURCE
from tests.helpers.secret_scan import SecretScan
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import WorkerPrograms, ask, until_state

pytestmark = pytest.mark.integration

PASSWORD, RENEWED, API_KEY, USER = 'pass/word "one"', "renewed-word-8812", "api-key-4471-zz", "u5er-name-22"


async def test_no_secret_of_a_connector_is_shown_or_stored(
    cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A connector quotes its secrets in errors, causes, a problem, and settings of its tasks. Neither answers, statuses,
    znodes, the log of the worker, nor command lines have them. The task gets each change of a file at its next start.
    """
    group, name, proof = unique("workers"), unique("leaky"), tmp_path / "proof"
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "db.properties").write_text(f"login={PASSWORD}\n")
    (secrets / "user").write_text(f"{USER}\n")
    monkeypatch.setenv("LEAKY_KEY", API_KEY)
    scan = SecretScan(password=PASSWORD, renewed=RENEWED, api_key=API_KEY, user=USER)
    config = {
        "name": name,
        "connector.class": LEAKING_SOURCE,
        "login": "${file:db.properties:login}",
        "api.key": "${env:LEAKY_KEY}",
        "url": "http://${file:user}@host/x",
        "proof": str(proof),
        "fault": "raise",
    }
    options = ("--secrets-dir", str(secrets), "--secrets-env", "LEAKY_*", "--verbose")
    with (
        scan.watching_processes(),
        WorkerPrograms(cluster_39, group, 6_000, options=options) as workers,
    ):
        await workers.add()
        url = workers.url

        async def show(method: str, path: str, body: object = None) -> str:
            text = json.dumps(await ask(url, method, path, body))
            scan.look_at("an answer", text)
            return text

        checked = json.loads(await show("PUT", f"/connector-plugins/{LEAKING_SOURCE}/config/validate", config))
        values = {each["value"]["name"]: each["value"]["value"] for each in checked["configs"]}
        assert (checked["error_count"], values["login"]) == (0, "${file:db.properties:login}")
        await show("POST", "/connectors", {"name": name, "config": config})
        status = await until_state(url, name, "RUNNING", "FAILED")
        assert "KielGroupsError: cannot log in with '[hidden]' and [hidden]" in status["tasks"][0]["trace"]
        assert proof.read_text() == sha256(PASSWORD.encode()).hexdigest()
        scan.look_at("an answer", json.dumps(status))

        await show("PATCH", f"/connectors/{name}/config", {"fault": "problem"})
        scan.look_at("an answer", json.dumps(await until_state(url, name, "RUNNING", "RUNNING")))
        path = f"/connectors/{name}/tasks/0/status"

        async def has_problem() -> bool:
            return "cannot log in with [hidden] at http://[hidden]@host/x" in await show("GET", path)

        await eventually(has_problem, "the problem is shown", 60.0)
        (secrets / "db.properties").write_text(f"login={RENEWED}\n")
        await show("POST", f"/connectors/{name}/tasks/0/restart")
        renewed = sha256(RENEWED.encode()).hexdigest()
        await eventually(lambda: proof.read_text() == renewed, "the task starts with the new secret", 60.0)
        assert '"login": "${file:db.properties:login}"' in await show("GET", f"/connectors/{name}/config")
        assert '"login": "${file:db.properties:login}"' in await show("GET", f"/connectors/{name}/tasks")
        await show("GET", "/connectors?expand=status&expand=info")

        with pytest.raises(AssertionError, match=r"login: \$\{file:gone:k\}: .*/gone does not exist on this worker"):
            await show("PATCH", f"/connectors/{name}/config", {"login": "${file:gone:k}"})
        await show("PATCH", f"/connectors/{name}/config", {"fault": "configs"})
        status = await until_state(url, name, "FAILED", "RUNNING")
        assert "task_configs returned a secret in the setting 'dsn' of task 0" in status["connector"]["trace"]
        (secrets / "db.properties").unlink()
        await show("POST", f"/connectors/{name}/tasks/0/restart")
        status = await until_state(url, name, "FAILED", "FAILED")
        assert "db.properties does not exist on this worker" in status["tasks"][0]["trace"]
        scan.look_at("an answer", json.dumps(status))

        words = ("workers", "describe", group, "--zookeeper", cluster_39.zk_hosts, "--json")
        described = await asyncio.to_thread(kiel_groups_here, *words)
        scan.look_at("a command's answer", described.stdout + described.stderr)
        log = "\n".join((*workers.running[0].errors, *workers.running[0].lines))
    assert f"{name}-0 failed: cannot log in with '[hidden]'" in log
    scan.look_at("the log", log)
    assert scan.saw_command("workers", "--secrets-dir")
    # ZooKeeper's log has all changes of znodes.
    assert scan.look_into(cluster_39.zookeeper.folder)
    assert any(b"${env:LEAKY_KEY}" in path.read_bytes() for path in cluster_39.zookeeper.folder.rglob("log.*"))
    assert scan.found == []
