"use strict";
// The page itself comes from the server, and htmx replaces it when an event names a change. This draws the lag, and
// carries out actions: each is shown first as its dry run, and made after a confirmation.

(() => {
  const TOKEN = "kiel-groups-token"; // In the storage of this tab only; it is gone with the tab.

  function draw() {
    const chart = document.getElementById("chart");
    if (!chart || chart.firstChild || !window.uPlot) return;
    const lags = JSON.parse(chart.dataset.lags);
    if (lags.length < 2) {
      chart.textContent = "There is nothing to draw yet.";
      return;
    }
    const style = getComputedStyle(document.body);
    const axis = { stroke: style.getPropertyValue("--text"), grid: { stroke: style.getPropertyValue("--line") } };
    new uPlot(
      {
        width: chart.clientWidth,
        height: 190,
        legend: { show: false },
        axes: [axis, { ...axis, size: 80 }],
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most)] } },
        series: [{}, { stroke: style.getPropertyValue("--accent"), width: 2 }],
      },
      [lags.map((each) => each[0] / 1000), lags.map((each) => each[1])],
      chart,
    );
  }

  function say(text) {
    document.getElementById("live").textContent = text;
  }

  const ACTIONS = {
    rebalance: { title: "Rebalance", method: "POST", path: "/rebalance", fields: [["reason", "Cause in the history", "rebalance"]] },
    drain: { title: "Drain a member", method: "POST", path: "/drain", fields: [["member", "Member"]] },
    undrain: { title: "Undrain", method: "POST", path: "/undrain", fields: [["member", "Member"]] },
    reset: {
      title: "Reset offsets", method: "POST", path: "/offsets/reset",
      fields: [["topics", "Topics, such as pv or orders:0,1; empty means all"], ["to", "To: earliest, latest, current, a number, a time, or how long ago (2h)", "earliest"]],
    },
    "delete-offsets": {
      title: "Delete offsets", method: "POST", path: "/offsets/delete",
      fields: [["topics", "Topics, such as pv or orders:0,1; empty means all"]],
    },
    delete: { title: "Delete the group", method: "DELETE", path: "", fields: [] },
  };

  function bodyOf(form) {
    const body = {};
    for (const [name, value] of new FormData(form)) {
      const text = value.trim();
      if (name === "topics") body.topics = text ? text.split(/\s+/) : null;
      else if (name === "to") body.to = target(text);
      else if (name !== "token" && text) body[name] = text;
    }
    return body;
  }

  function target(text) {
    if (/^\d+$/.test(text)) return { offset: Number(text) };
    if (/^[+-]\d+$/.test(text)) return { shift: Number(text) };
    if (/^\d{4}-/.test(text)) return { time: text };
    if (/^P?(\d+[a-z])+$/i.test(text)) return { ago: text };
    return text;
  }

  async function send(action, group, body, dryRun) {
    const headers = {};
    const token = sessionStorage.getItem(TOKEN);
    if (token) headers.Authorization = `Bearer ${token}`;
    const request = { method: action.method, headers };
    let query = "";
    if (action.method === "DELETE") query = dryRun ? "?dry_run=true" : "";
    else {
      headers["Content-Type"] = "application/json";
      request.body = JSON.stringify({ ...body, dry_run: dryRun });
    }
    const answer = await fetch(group + action.path + query, request);
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.message);
    return found;
  }

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // The changes as lines; everything else as it was answered.
  function describe(found) {
    const { changes = [], members = [], loses = [], notes = [], restore, dry_run, ...rest } = found;
    const lines = changes.map((each) => {
      const what = each.setting || `${each.topic}:${each.partition}`;
      return `${what}: ${each.before ?? "none"} → ${each.after ?? "none"}${each.note ? ` (${each.note})` : ""}`;
    });
    lines.push(...members.map((each) => `${each.slot} owns ${each.owned} partitions`), ...loses, ...notes);
    if (rest.restore_file) lines.push(`What was lost is in ${rest.restore_file} on the machine of the service.`);
    if (rest.by_members) lines.push("The live members make this change.");
    if (rest.not_set && rest.not_set.length) lines.push(`Not set in time: ${rest.not_set.join(", ")}`);
    if (rest.left_out && rest.left_out.length) lines.push(`Left out, because they do not exist: ${rest.left_out.join(", ")}`);
    return lines.length ? lines.join("\n") : "Nothing is different.";
  }

  function download(found) {
    const text = JSON.stringify(found.restore, null, 1);
    const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    return element("a", { href, download: `kiel-groups-${found.group}-restore.json`, textContent: "Save what restores it" });
  }

  function open(action, group, given) {
    const dialog = document.getElementById("dialog");
    const outcome = element("pre", { id: "outcome", hidden: true });
    outcome.setAttribute("role", "status");
    const show = element("button", { type: "submit", textContent: "Show what changes", className: "primary" });
    const make = element("button", { type: "button", textContent: "Make the change", hidden: true, className: "primary" });
    const close = element("button", { type: "button", textContent: "Close" });
    const fields = [...action.fields, ["token", "Token"]].map(([name, label, preset]) => {
      const value = name === "token" ? sessionStorage.getItem(TOKEN) || "" : given[name] || preset || "";
      const input = element("input", { name, value, type: name === "token" ? "password" : "text", autocomplete: "off" });
      return element("label", {}, label, input);
    });
    const form = element("form", {}, element("h2", { id: "dialog-title", textContent: action.title }), ...fields, outcome,
      element("div", { className: "buttons" }, close, show, make));
    async function run(dryRun) {
      show.disabled = make.disabled = true;
      sessionStorage.setItem(TOKEN, new FormData(form).get("token"));
      outcome.hidden = false;
      outcome.textContent = dryRun ? "asking" : "in progress";
      try {
        const found = await send(action, group, bodyOf(form), dryRun);
        outcome.textContent = (dryRun ? "" : "Done.\n") + describe(found);
        if (found.restore) outcome.append("\n", download(found));
        make.hidden = !dryRun;
        if (!dryRun) say(`${action.title}: done`);
      } catch (error) {
        outcome.textContent = error.message;
        make.hidden = true;
      }
      show.disabled = make.disabled = false;
      (make.hidden ? close : make).focus();
    }
    form.addEventListener("submit", (event) => { event.preventDefault(); run(true); });
    form.addEventListener("input", () => { make.hidden = true; });
    make.addEventListener("click", () => run(false));
    close.addEventListener("click", () => dialog.close());
    dialog.replaceChildren(form);
    dialog.showModal();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-action]");
    if (!button) return;
    open(ACTIONS[button.dataset.action], document.querySelector(".actions").dataset.group, { ...button.dataset });
  });
  document.addEventListener("htmx:sseOpen", () => say("live"));
  document.addEventListener("htmx:sseError", () => say("no connection to the service; trying again"));
  document.addEventListener("htmx:afterSwap", draw);
  document.addEventListener("DOMContentLoaded", draw);
})();
