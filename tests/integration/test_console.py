"""The console in a browser: it follows the groups of a real cluster, and operators act in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, Route, expect

from kiel_groups.embedded import Cluster
from tests.helpers.browser import NEEDS_CHROMIUM, TOKEN, console, new_page
from tests.helpers.cluster_data import committed, produce, zookeeper
from tests.helpers.members import end_session, group_of

pytestmark = [pytest.mark.integration, NEEDS_CHROMIUM]

Unique = Callable[[str], str]

#: The areas of tables that scroll to the side.
SCROLLED_SIDEWAYS = """[...document.querySelectorAll(".scroll")]
    .filter(each => each.scrollWidth > each.clientWidth).map(each => each.ariaLabel)"""

#: Closes the dialog, moves the focus to another button before the page is notified of the close, and returns the id of
#: the element that has the focus then.
CLOSED_AND_LEFT = """new Promise(resolve => {
    dialog.addEventListener("close", () => resolve(document.activeElement.id), { once: true });
    dialog.close();
    document.getElementById("a-delete").focus();
})"""

#: Changes the row of the link that has the focus, so that the next page replaces the row, and asks for that page.
CHANGED_ROW = """document.activeElement.closest("tr").cells[1].textContent = "another state";
    htmx.trigger("#main", "sse:change");"""


async def test_a_member_that_dies_is_seen_without_a_reload(fresh_cluster: Cluster, unique: Unique) -> None:
    """The page of a group follows a death and a drain, and the page of all groups leads to it."""
    topic, name = unique("topic"), unique("group")
    await fresh_cluster.create_topic(topic, 4)
    async with group_of(fresh_cluster, name, [topic]) as group, console(fresh_cluster) as (url, browser):
        members = [await group.join(), await group.join(), await group.join()]
        await group.balanced(topic, 4)
        page, errors = await new_page(browser, url)
        await page.get_by_role("link", name=name, exact=True).click()
        rows = page.locator("section[aria-labelledby=members] tbody tr")
        await expect(rows).to_have_count(3)
        chart = page.locator("#chart")
        drawn = await chart.get_attribute("data-lags")
        assert drawn is not None
        await expect(chart).not_to_have_attribute("data-lags", drawn)
        await expect(chart.locator("canvas")).to_be_visible()
        end_session(fresh_cluster, members[2])
        await members[2].stop()
        await expect(rows).to_have_count(2)
        cells = page.locator("ol.grid li")
        await expect(cells.get_by_text("–")).to_have_count(0)
        await preview_and_colour(page)
        drained = members[1].consumer.member_id
        owned = rows.filter(has_text=str(drained)).locator("td[data-name=partitions]")
        await expect(owned).to_have_text("2")
        await rows.filter(has_text=str(drained)).get_by_role("button", name="Drain…").click()
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button", name="Show what changes").click()
        await expect(page.locator("#outcome")).to_contain_text(f"{drained} owns 2 partitions")
        await page.get_by_role("button", name="Make the change").click()
        await expect(page.locator("#outcome")).to_contain_text("Done.")
        await page.get_by_role("button", name="Close").click()
        await expect(rows.filter(has_text=str(drained))).to_contain_text("drained")
        await drain_the_host(page)
        await expect(owned).to_have_text("0")
        await rows.filter(has_text=str(drained)).get_by_role("button", name="Undrain…").click()
        is_edited = asyncio.Event()

        async def answer_after_the_edit(route: Route) -> None:
            await is_edited.wait()
            await route.continue_()

        await page.route("**/undrain", answer_after_the_edit, times=1)
        await page.get_by_role("button", name="Show what changes").click()
        await page.get_by_label("Token").fill(TOKEN)
        is_edited.set()
        await expect(page.locator("#outcome")).to_contain_text(f"{drained} owns 0 partitions")
        await expect(page.get_by_role("button", name="Make the change")).to_be_hidden()
        await page.keyboard.press("Escape")
        await errors_have_labels(page)
        assert [error for error in errors if "400" not in error] == []


async def errors_have_labels(page: Page) -> None:
    """The errors of forms name the labels of their fields, where requests have other names."""
    for action, field, given, text in (
        ("undrain", "member", "", "Member: missing; expected a member or a host"),
        ("reset", "topics", "pv:x", "Topics: 'pv:x' given; expected"),
        ("reset", "to", "2026-99-99", "To: '2026-99-99' given; expected a time"),
        ("plan", "partitions", "pv", "Topics that grow: 'pv' given; expected a topic and a number"),
        ("plan", "partitions", "pv=9", "Topics that grow: no member subscribes to topic 'pv'; name it"),
    ):
        await page.locator(f"#a-{action}").press("Enter")
        await page.locator(f"dialog input[name={field}]").fill(given)
        await page.keyboard.press("Enter")
        await expect(page.locator("#outcome")).to_contain_text(text)
        await page.keyboard.press("Escape")


async def preview_and_colour(page: Page) -> None:
    """Preview the plan with another member, and see the lag of each partition, by keyboard."""
    await page.locator("#a-plan").press("Enter")
    await page.get_by_label("How many members join").fill("1")
    await page.keyboard.press("Enter")
    outcome = page.locator("#outcome")
    await expect(outcome).to_contain_text("would go to new-1: ")
    await expect(outcome).to_contain_text("new-1 would own 1 partition (0 now)")
    await page.keyboard.press("Escape")
    await expect(page.locator("#a-plan")).to_be_focused()
    await page.locator("#by-lag").press("Enter")
    await expect(page.locator("ol.grid li.l0")).to_have_count(4)
    await expect(page.locator("#by-lag")).to_have_attribute("aria-current", "true")
    drawn = await page.locator("#chart").get_attribute("data-lags")
    assert drawn is not None
    await expect(page.locator("#chart")).not_to_have_attribute("data-lags", drawn)
    await expect(page.locator("ol.grid li").get_by_text("0")).to_have_count(4)


async def drain_the_host(page: Page) -> None:
    """Draining the only host is refused, and the box below permits it; nothing is changed."""
    await page.locator("#a-drain-host").click()
    await page.get_by_label("Host whose members").fill(str(await page.locator("#hosts option").get_attribute("value")))
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Show what changes").click()
    outcome = page.locator("#outcome")
    await expect(outcome).to_contain_text("would be drained: start another member first")
    await page.get_by_label("Even if partitions are left").check()
    await page.get_by_role("button", name="Show what changes").click()
    await expect(outcome).to_contain_text("drained:")
    await page.keyboard.press("Escape")


async def test_offsets_are_reset_and_a_group_is_deleted_by_keyboard(fresh_cluster: Cluster, unique: Unique) -> None:
    """Every action can be reached and confirmed by keyboard; a wrong token changes nothing, and the reason is shown."""
    topic, name = unique("topic"), unique("group")
    await fresh_cluster.create_topic(topic, 2)
    async with group_of(fresh_cluster, name, [topic]) as group:
        await group.join()
        await group.delivered(await produce(fresh_cluster, topic, 20))
    assert committed(fresh_cluster, name, topic) == 20
    async with console(fresh_cluster) as (url, browser):
        page, errors = await new_page(browser, f"{url}/")
        link = page.get_by_role("link", name=name, exact=True)
        await link.focus()
        await page.evaluate(CHANGED_ROW)
        await expect(page.get_by_text("another state")).to_have_count(0)
        await expect(link).to_be_focused()
        await page.goto(f"{url}/clusters/main/groups/{name}")
        await page.locator("#a-reset").focus()
        await page.keyboard.press("Enter")
        await page.get_by_label("Token").fill("a-wrong-token-this-is")
        await page.keyboard.press("Enter")
        outcome = page.locator("#outcome")
        await expect(outcome).to_contain_text("Token: it is missing or wrong")
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_label("Token").press("Enter")
        await expect(outcome).to_contain_text(" → 0")
        assert committed(fresh_cluster, name, topic) == 20
        await page.get_by_label("To:").fill("yesterday")
        await page.get_by_label("To:").press("Enter")
        await expect(outcome).to_contain_text("'yesterday' is none of: earliest, latest")
        await expect(page.get_by_label("To:")).to_be_focused()
        await page.get_by_role("button", name="Show what changes").press("Enter")
        await expect(page.get_by_role("button", name="Show what changes")).to_be_focused()
        await page.get_by_label("To:").fill("earliest")
        await page.get_by_label("To:").press("Enter")
        await expect(outcome).to_contain_text(" → 0")
        await page.keyboard.press("Enter")  # The button that makes the change has the focus.
        await expect(outcome).to_contain_text("Done.")
        assert committed(fresh_cluster, name, topic) == 0
        await expect(page.get_by_role("button", name="Close")).to_be_focused()
        assert await page.evaluate(CLOSED_AND_LEFT) == "a-delete"
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Delete the group")).to_be_visible()
        await page.get_by_role("button", name="Show what changes").press("Enter")
        await expect(outcome).to_contain_text("its settings")
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text("Done.")
        await expect(page.locator("h1")).to_contain_text("not there")
        await page.keyboard.press("Escape")
        await expect(page.locator("#main")).to_be_focused()
        await page.goto(f"{url}/")
        await expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
        assert [error for error in errors if "401" not in error] == []


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1200, "light", marks=pytest.mark.slow), (360, "dark")])
async def test_pages_are_accessible_at_every_width(
    fresh_cluster: Cluster, unique: Unique, width: int, scheme: str
) -> None:
    """axe-core finds nothing serious, and no page is wider than a phone; a hostile name is shown as it is."""
    topic, hostile = unique("topic"), f"<b id=hostile>&'\" {width}"
    await fresh_cluster.create_topic(topic, 3)
    async with group_of(fresh_cluster, unique("group"), [topic]) as group, console(fresh_cluster) as (url, browser):
        await group.join()
        await group.balanced(topic, 3)
        with zookeeper(fresh_cluster) as client:
            client.ensure_path(f"/consumers/{hostile}/ids")
            client.create(f"/consumers/{group.name}/offsets/a-topic-that-is-gone/0", b"3", makepath=True)
        page, errors = await new_page(browser, f"{url}/", width=width, scheme=scheme)
        await expect(page.get_by_role("link", name=group.name, exact=True)).to_be_visible()
        of_group = f"/clusters/main/groups/{group.name}"
        for path, opener in (("/", ""), (of_group, ""), (f"{of_group}?colour=lag", ""), (of_group, "#a-plan")):
            await page.goto(f"{url}{path}")
            if opener:
                await page.locator(opener).click()
            found = await Axe().run(page)
            serious = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
            assert not serious, [(each["id"], each["nodes"][0]["html"]) for each in serious]
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert await page.evaluate(SCROLLED_SIDEWAYS) == []
            shown = page.locator("tr .problem" if path == "/" else "[data-action=drain]").first
            await expect(shown).to_be_visible()
            box = await shown.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width, "it is seen only after scrolling to the side"
        await page.goto(f"{url}/")
        await page.get_by_role("link", name=hostile, exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(hostile)
        await expect(page.locator("#hostile")).to_have_count(0)
        assert not errors
        with zookeeper(fresh_cluster) as client:
            client.delete(f"/consumers/{hostile}", recursive=True)
