"""The service shows several clusters by a file, and connectors of real workers, which operators create and change."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect
from tornado.httpclient import AsyncHTTPClient

from kiel_groups.embedded import Cluster
from kiel_groups.rest.settings import RestSettings
from tests.helpers.browser import NEEDS_CHROMIUM, TOKEN, console, new_page
from tests.helpers.cluster_data import zookeeper
from tests.helpers.commands import Running
from tests.helpers.rest_requests import JSON, Got, ask
from tests.helpers.shown_mirror import MIRROR
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask as ask_worker
from tests.helpers.worker_groups import until_state, worker_on

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

WITH_TOKEN = {**JSON, "Authorization": f"Bearer {TOKEN}"}

#: The service finds the workers, so their token must differ from its own.
WORKER_TOKEN = "t0ken-of-all-workers"


async def text_at(url: str) -> str:
    """Return the text of a page or of the metrics."""
    client = AsyncHTTPClient(force_instance=True)
    text = (await client.fetch(url)).body.decode()
    client.close()
    return text


async def succeeded(url: str, method: str) -> dict[str, Any]:
    """Return the document of a successful answer, or {} for an error such as during a rebalance."""
    got = await ask(url, method, headers=WITH_TOKEN)
    return dict(got.document) if got.status == 200 else {}


async def test_clusters_of_a_file_and_their_connectors(
    shared_clusters: Callable[..., Cluster], unique: Unique, tmp_path: Path
) -> None:
    """
    A connector of workers that brokers coordinate is created, paused, restarted and deleted through the service, be it
    observed in ZooKeeper or by brokers. Its page shows so, and a failed task is a problem. One cluster of four cannot
    be reached; the others are shown nevertheless, and a group is led in one of them. The topics that the pattern of a
    Java consumer matches have no owners.
    """
    cluster = shared_clusters("3.9.5", "0.9.0.1")
    workers, led, name, chroot = unique("workers"), unique("group"), unique("source"), unique("chroot")
    for file, token in (("token", TOKEN), ("workers.token", WORKER_TOKEN)):
        (tmp_path / file).write_text(token)
        (tmp_path / file).chmod(0o600)
    second = f"{cluster.zk_hosts.partition('/')[0]}/{chroot}"
    with zookeeper(cluster) as client:
        for topic in ("pv-eu", "pv-us", "orders"):
            client.create(f"/{chroot}/brokers/topics/{topic}", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
        subscription = b'{"version":1,"subscription":{"pv-(eu|us),none":1},"pattern":"white_list","timestamp":"1"}'
        client.create(f"/{chroot}/consumers/java/ids/java_h-1-ab", subscription, makepath=True)
    (tmp_path / "clusters.toml").write_text(
        f'[main]\nzookeeper = "{cluster.zk_hosts}"\ngroups = ["{led}"]\nworker-token-file = "workers.token"\n'
        f'[second]\nzookeeper = "{second}"\n'
        f'[modern]\nbrokers = "{cluster.brokers[0]}"\nworker-zookeeper = "{cluster.zk_hosts}"\n'
        'worker-token-file = "workers.token"\n'
        '[away]\nzookeeper = "127.0.0.1:1"\ngroups = ["g"]\n'
    )
    words = ["serve", "--clusters", f"{tmp_path}/clusters.toml", "--token-file", f"{tmp_path}/token"]
    config = {"connector.class": "FileStreamSource", "file": f"{tmp_path}/f", "topic": unique("topic")}
    rest = RestSettings(port=0, token=WORKER_TOKEN)
    async with worker_on(cluster, workers, rest=rest, coordination="brokers"):
        with Running(["-m", "kiel_groups", *words, "--port", "0", "--interval", "1"]) as process:

            def served() -> re.Match[str] | None:
                return re.search(r"serves main, second, modern, away at (\S+)", "\n".join(process.errors))

            url = (await eventually(served, "the service runs"))[1]
            connectors = f"{url}/v1/clusters/main/groups/{workers}/connectors"
            by_brokers = f"{url}/v1/clusters/modern/groups/{workers}/connectors"

            async def put(connector: str, config: dict[str, str], **how: bool) -> Got:
                """Create a connector; try again while the workers rebalance, and before the service knows them."""

                async def answer() -> Got | None:
                    body = {"config": config, **how}
                    got = await ask(f"{by_brokers}/{connector}", "PUT", body, WITH_TOKEN)
                    return None if got.status in (409, 503) or "does not exist" in str(got.document) else got

                return await eventually(answer, "the settings are stored or refused", 60.0)

            wrong = await put(name, {**config, "tasks.max": "x", "topic": "a b"})
            assert (wrong.status, wrong.document["message"].count("\n")) == (400, 1), wrong.document
            assert "tasks.max: 'x' given; expected" in wrong.document["message"]
            assert (await put(name, config, dry_run=True)).document["is_new"]
            assert (await ask(by_brokers)).document == {}
            assert (await ask(f"{by_brokers}/{name}", "PUT", {"config": config})).status == 401
            created = (await put(name, {**config, "db.password": "s3cret"})).document
            assert {"setting": "db.password", "before": None, "after": "[hidden]", "note": ""} in created["changes"]

            async def has_states(state: str) -> bool:
                got = await ask(f"{connectors}/{name}/status")
                works = [got.document["connector"], *got.document["tasks"]] if got.status == 200 else []
                return [each["state"] for each in works] == [state, state]

            await eventually(lambda: has_states("RUNNING"), "the service shows the connector", 60.0)
            refused = await ask(f"{connectors}/{name}/pause", "POST", {})
            paused = await ask(f"{connectors}/{name}/pause", "POST", {}, WITH_TOKEN)
            assert (refused.status, paused.status) == (401, 200)
            assert {"work": f"{name}-0", "before": "RUNNING", "after": "PAUSED"} in paused.document["changes"]
            await eventually(lambda: has_states("PAUSED"), "the connector is paused")
            page = await text_at(f"{url}/clusters/main/groups/{workers}/connectors")
            assert (f">{name}-0</th>" in page, page.count(">PAUSED</td>"), "RUNNING" in page) == (True, 2, False)
            assert (await ask(f"{connectors}/{name}/resume", "POST", {}, WITH_TOKEN)).status == 200
            await eventually(lambda: has_states("RUNNING"), "the connector runs")
            assert (await ask(f"{connectors}/{name}/restart", "POST", {"task": 0}, WITH_TOKEN)).status == 200
            assert list((await ask(connectors)).document) == [name]
            assert (await put(f"{name}-bad", {**config, "file": str(tmp_path)})).status == 200

            async def failed() -> dict[str, str]:
                found = (await ask(f"{url}/v1/clusters/main/groups/{workers}/findings")).document["findings"]
                return next((each for each in found if each["kind"] == "failed"), {})

            finding = await eventually(failed, "the service finds the failed task")
            assert finding["text"].startswith(f"task {name}-bad-0 has failed: ConfigError: file: ")
            command = f"'kiel-groups workers describe {workers} --zookeeper {cluster.zk_hosts}' shows all causes"
            assert finding["remedy"].endswith(command)
            assert f'kiel_group_findings{{cluster="main",group="{workers}",kind="failed"}} 1.0' in await text_at(
                f"{url}/metrics"
            )
            gone = await eventually(
                lambda: succeeded(f"{connectors}/{name}", "DELETE"), "the connector is deleted", 60.0
            )
            assert {"work": f"{name}-0", "before": "RUNNING", "after": None} in gone["changes"]
            assert gone["config"]["db.password"] == "[hidden]"
            assert list((await ask(by_brokers)).document) == [f"{name}-bad"]

            def logged(path: str) -> list[str]:
                return [line for line in process.errors if re.search(rf"{path} by 127\.0\.0\.1 took ", line)]

            # A thread of this process reads the log.
            await eventually(
                lambda: len(logged(f"/connectors/{name}")) == 2, "the creation and the deletion are logged"
            )
            assert len(logged(f"POST /v1/clusters/main/groups/{workers}/connectors/.*")) == 3
            assert not [line for line in process.errors if WORKER_TOKEN in line or "s3cret" in line]

            async def is_partly_ready() -> bool:
                got = await ask(f"{url}/readyz")
                clusters = got.document["clusters"]
                return got.status == 200 and "127.0.0.1:1" in clusters.pop("away") and set(clusters.values()) == {"ok"}

            await eventually(is_partly_ready, "three of four clusters are ready")
            await eventually(lambda: any(f"group {led}: " in line for line in process.errors), "it leads")
            reason = "error: group g of cluster away has no candidate here: "
            await eventually(lambda: any(reason in line for line in process.errors), "it cannot lead", 60.0)
            (java,) = (await ask(f"{url}/v1/clusters/second/groups")).document["groups"]
            assert (java["group"], java["unowned"]) == ("java", 2)
            front, metrics = await text_at(f"{url}/"), await text_at(f"{url}/metrics")
            assert all(f'<h2 id="c-{each}">' in front for each in ("main", "second", "modern", "away"))
            assert "The newest load failed: " in front
            ups = {"main": "1.0", "second": "1.0", "modern": "1.0", "away": "0.0"}
            assert all(f'kiel_cluster_up{{cluster="{each}"}} {up}' in metrics for each, up in ups.items())
            assert await asyncio.to_thread(process.end, signal.SIGTERM) == 143
            assert not [line for line in process.errors if "exception" in line]
    with zookeeper(cluster) as client:
        client.delete(f"/{chroot}", recursive=True)


async def a_mirror_is_shown(page: Page, name: str) -> None:
    """The page shows the topics of a mirror, and its problem with the remedy, on a dark phone, too."""
    await page.emulate_media(color_scheme="dark")
    mirror = page.get_by_role("region", name=f"Mirror {name}", exact=True)
    await expect(mirror).to_contain_text("Running: waiting; 12,000 records were left when")
    cells = mirror.get_by_role("region", name=f"Topics of the mirror {name}").locator("tbody td")
    await expect(cells).to_have_text(["page-views", "3", "12,000", "0", re.compile(r"^\d+ s ago$")])
    await expect(mirror.get_by_role("listitem")).to_contain_text(
        f"{name}-0: the target new:9092 has not stored 7 records within 10 s; trying again"
        "the task waits for the target, and skips no record"
    )
    found = await Axe().run(page)
    serious = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
    assert not serious, [(each["id"], each["nodes"][0]["html"]) for each in serious]
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    box = await cells.last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 360


@NEEDS_CHROMIUM
async def test_connectors_are_created_paused_and_deleted_in_the_console(
    cluster_39: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By keyboard, at the width of a phone: the page of all groups leads to the connectors, and follows each action."""
    monkeypatch.setattr("kiel_groups.workers.execution.work_supervisor._METRICS_S", 0.5)
    workers, name = unique("workers"), unique("source")
    settings = f"connector.class=FileStreamSource\nfile={tmp_path}/f\ndb.password=s3cret\ntopic="
    async with worker_on(cluster_39, workers) as worker, console(cluster_39) as (url, browser):
        page, errors = await new_page(browser, url, width=360)
        await page.get_by_role("link", name=f"Connectors of {workers}").press("Enter")
        outcome = page.locator("#outcome")
        await page.get_by_role("button", name="Create a connector…").press("Enter")
        await page.get_by_label("Name").fill(name)
        await page.get_by_role("textbox", name="Settings").fill(settings)
        await page.get_by_label("Token").fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text("topic: '' given; expected the name of a topic")
        # The browser reports the refused request as an error.
        assert [each for each in errors if "400 (Bad Request)" not in each] == []
        errors.clear()
        await page.get_by_role("textbox", name="Settings").fill(f"{settings}{unique('topic')}")
        await page.get_by_label("Token").press("Enter")
        await expect(outcome).to_contain_text("db.password: none → [hidden]")
        await page.keyboard.press("Enter")  # The button that makes the change has the focus.
        await expect(outcome).to_contain_text("Done.")
        await page.keyboard.press("Escape")
        states = page.locator("tbody td:nth-child(3)")
        await expect(states).to_have_text(["RUNNING", "RUNNING"])
        found = await Axe().run(page)
        serious = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
        assert not serious, [(each["id"], each["nodes"][0]["html"]) for each in serious]
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        for button in (f"Restart… {name}-0", f"Delete… {name}"):
            box = await page.get_by_role("button", name=button).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 360
        await page.get_by_role("button", name=f"Pause… {name}").press("Enter")
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text(f"{name}-0: RUNNING → PAUSED")
        await until_state(worker.url, name, "RUNNING", "RUNNING")
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text("Done.")
        await page.keyboard.press("Escape")
        await expect(states).to_have_text(["PAUSED", "PAUSED"])
        await page.get_by_role("button", name=f"Resume… {name}").press("Enter")
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text("PAUSED → RUNNING")
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text("Done.")
        await page.keyboard.press("Escape")
        await expect(states).to_have_text(["RUNNING", "RUNNING"])
        await page.get_by_role("button", name=f"Restart… {name}-0").press("Enter")
        await expect(page.get_by_label("Task;")).to_have_value("0")
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text(f"{name}-0: RUNNING → RUNNING")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name=f"Settings… {name}").press("Enter")
        shown = await page.get_by_role("textbox", name="Settings").input_value()
        assert "db.password=[hidden]" in shown
        await page.get_by_role("textbox", name="Settings").fill(shown.replace(f"{tmp_path}/f", f"{tmp_path}/g"))
        await page.get_by_label("Token").press("Enter")
        await expect(outcome).to_contain_text(f"file: {tmp_path}/f → {tmp_path}/g")
        await expect(outcome).not_to_contain_text("db.password:  →")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name=f"Delete… {name}").press("Enter")
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text(f"{name}-0: RUNNING → deleted")
        assert await ask_worker(worker.url, "GET", "/connectors") == [name]
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text("Done.")
        await page.keyboard.press("Escape")
        await expect(page.get_by_text("The group has no connectors.")).to_be_visible()
        await ask_worker(worker.url, "POST", "/connectors", {"name": name, "config": {"connector.class": MIRROR}})
        await a_mirror_is_shown(page, name)
        assert not errors
