"use strict";
// The page itself comes from the server, and htmx asks for it again when an event names a change. This replaces what
// differs, draws the lag, and carries out actions: each is shown first as its dry run, and made after a confirmation.

(() => {
  const TOKEN = "kiel-groups-token"; // In the storage of this tab only; it is gone with the tab.

  const COMPACT = new Intl.NumberFormat("en", { notation: "compact" });

  // The marks of the axis of time, in UTC as in the table of rebalances.
  function times(_, seconds, __, ___, step) {
    return seconds.map((each) => new Date(each * 1000).toISOString().slice(11, step < 60 ? 19 : 16));
  }

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
        axes: [{ ...axis, values: times, space: 80 }, { ...axis, values: (_, lags) => lags.map((each) => COMPACT.format(each)) }],
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most)] } },
        series: [{}, { stroke: style.getPropertyValue("--accent"), width: 2 }],
      },
      [lags.map((each) => each[0] / 1000), lags.map((each) => each[1])],
      chart,
    );
  }

  // What differs in a new page is replaced, and nothing else: focus, scroll positions and open details stay.
  const BOXES = new Set(["SECTION", "DIV", "UL", "TABLE", "TBODY", "OL"]);

  function merge(old, fresh) {
    if (!BOXES.has(old.tagName) || !old.cloneNode().isEqualNode(fresh.cloneNode())) {
      if (!old.isEqualNode(fresh)) old.replaceWith(fresh);
    } else mergeChildren(old, fresh);
  }

  function mergeChildren(old, fresh) {
    const were = [...old.children];
    const are = [...fresh.children];
    are.forEach((each, at) => (at < were.length ? merge(were[at], each) : old.append(each)));
    were.slice(are.length).forEach((each) => each.remove());
  }

  function show(text) {
    const began = performance.now();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const focused = document.activeElement?.id;
    document.title = fresh.title;
    say("live");
    for (const each of fresh.querySelectorAll("details")) each.open = Boolean(document.getElementById(each.id)?.open);
    mergeChildren(document.getElementById("main"), fresh.getElementById("main"));
    draw();
    if (focused && document.activeElement?.id !== focused) {
      (document.getElementById(focused) || document.getElementById("main")).focus({ preventScroll: true });
    }
    // A page of many partitions takes time. At most a fifth of it is spent on this, however many changes there are. The
    // time until the frame is none of it: a hidden tab has no frames. A computer that sleeps in the frame adds ten seconds.
    restUntil = began + 1000;
    const merged = performance.now() - began;
    requestAnimationFrame(() => {
      const drawing = performance.now();
      setTimeout(() => {
        const now = performance.now();
        restUntil = Math.max(restUntil, now + Math.min(4 * (merged + now - drawing), 10_000));
      });
    });
  }

  let restUntil = 0;
  let waiting = 0;

  document.addEventListener("htmx:beforeRequest", (event) => {
    const rest = restUntil - performance.now();
    if (rest <= 0) return;
    event.preventDefault();
    waiting ||= setTimeout(() => { waiting = 0; htmx.trigger("#main", "sse:change"); }, rest);
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    event.detail.shouldSwap = false;
    if (!event.detail.isError && event.detail.serverResponse) show(event.detail.serverResponse);
  });

  function say(text) {
    const live = document.getElementById("live");
    if (live.textContent !== text) live.textContent = text;
  }

  // The fields of an action: the name, the label, the value at first, and the list of known values. A GET changes nothing.
  const TOPICS = ["topics", "Topics, such as pv or orders:0,1; empty means all"];
  const STORE = ["store", "Store, if the group has several: zookeeper or broker-v1"];
  const SETTINGS = "Settings, each in a line such as tasks.max=2, or as JSON";
  const ACTIONS = {
    plan: {
      title: "Preview a plan", method: "GET", path: "/plan",
      fields: [
        ["add-member", "How many members join"],
        ["remove-member", "Members that leave, by their ids or the parts after the last dash"],
        ["host", "Host whose members leave", "", "hosts"],
        ["partitions", "Topics that grow, such as pv=12"],
        ["topic", "Topics that all members read, if they differ from those now"],
      ],
    },
    rebalance: {
      title: "Rebalance", method: "POST", path: "/rebalance", unchanged: "The leader makes a new plan, even if nothing moves.",
      fields: [["reason", "Cause in the history", "rebalance"]],
    },
    drain: {
      title: "Drain a member", method: "POST", path: "/drain", required: ["member"],
      fields: [["member", "Member"], ["leave_unowned"]],
    },
    "drain-host": {
      title: "Drain a host", method: "POST", path: "/drain", required: ["host"],
      fields: [["host", "Host whose members give their partitions to others", "", "hosts"], ["leave_unowned"]],
    },
    undrain: {
      title: "Undrain", method: "POST", path: "/undrain", about: "drained",
      fields: [["member", "Member", "", "drained"], ["host", "Host, for all its members", "", "hosts"]],
    },
    reset: {
      title: "Reset offsets", method: "POST", path: "/offsets/reset",
      fields: [TOPICS, ["to", "To: earliest, latest, current, a number, a time, or how long ago (2h)", "earliest"], STORE],
    },
    "delete-offsets": { title: "Delete offsets", method: "POST", path: "/offsets/delete", fields: [TOPICS, STORE] },
    delete: { title: "Delete the group", method: "DELETE", path: "", fields: [] },
    create: {
      title: "Create a connector", method: "PUT", path: "", required: ["connector", "config"],
      fields: [["connector", "Name"], ["config", SETTINGS, "connector.class=FileStreamSource\nfile=\ntopic="]],
    },
    configure: {
      title: "Change the settings of", method: "PUT", path: "", required: ["config"], unchanged: "No setting is different.",
      fields: [["config", SETTINGS]],
    },
    "delete-connector": { title: "Delete connector", method: "DELETE", path: "", fields: [] },
    pause: { title: "Pause", method: "POST", path: "/pause", fields: [] },
    resume: { title: "Resume", method: "POST", path: "/resume", fields: [] },
    restart: { title: "Restart", method: "POST", path: "/restart", fields: [["task", "Task; empty means the connector and all its tasks"]] },
  };

  function bodyOf(form) {
    const body = {};
    for (const [name, value] of new FormData(form)) {
      const text = value.trim();
      if (name === "topics") body.topics = text ? text.split(/\s+/) : null;
      else if (name === "to") body.to = target(text);
      else if (name === "config") body.config = settings(text);
      else if (name === "task") Object.assign(body, text ? { task: whole(text) } : { include_tasks: true });
      else if (name === "leave_unowned") body[name] = true;
      else if (name !== "token" && text) body[name] = text;
    }
    return body;
  }

  function whole(text) {
    if (/^\d{1,9}$/.test(text)) return Number(text);
    throw new Error(`Task: '${text}' given; expected a number such as 0`);
  }

  function settings(text) {
    if (text.startsWith("{")) {
      let found;
      try {
        found = JSON.parse(text);
      } catch (error) {
        throw new Error(`Settings: this is not JSON: ${error.message}`);
      }
      return found.config instanceof Object ? found.config : found;
    }
    const lines = text.split("\n").map((line) => line.trim()).filter((line) => line && !line.startsWith("#"));
    return Object.fromEntries(lines.map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`Settings: '${line}' given; expected a name and a value, such as tasks.max=2`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }));
  }

  // The settings of a connector as lines, or as JSON if a value has several lines.
  function linesOf(config) {
    const all = Object.entries(config).filter(([name]) => name !== "name");
    if (all.some(([, value]) => value.includes("\n"))) return JSON.stringify(Object.fromEntries(all), null, 1);
    return all.map(([name, value]) => `${name}=${value}`).join("\n");
  }

  const PLACES = ["earliest", "latest", "current"];

  function target(text) {
    if (/^\d+$/.test(text)) return { offset: Number(text) };
    if (/^[+-]\d+$/.test(text)) return { shift: Number(text) };
    if (/^\d{4}-/.test(text)) return { time: text };
    if (/^P?(\d+[a-z])+$/i.test(text)) return { ago: text };
    if (PLACES.includes(text)) return text;
    throw new Error(`To: '${text}' is none of: ${PLACES.join(", ")}; an offset such as 120; a shift such as -50; `
      + "a time such as 2026-11-29T08:00Z; how long ago, such as 2h");
  }

  // Errors begin with the name of a field of requests. The form has its label in its place. These fields have other names.
  const FIELDS = { time: "to", ago: "to", shift: "to", topics: "topic" };

  function inLabels(message, action) {
    const labels = new Map(action.fields.filter(([, label]) => label).map(([name, label]) => [name, label.split(/[,;:]/)[0]]));
    const name = message.match(/^([a-z-]+): /)?.[1];
    const label = labels.get(name) || labels.get(FIELDS[name]);
    return label ? label + message.slice(name.length) : message;
  }

  async function send(action, group, { connector, ...body }, dryRun) {
    const headers = {};
    const token = sessionStorage.getItem(TOKEN);
    if (token) headers.Authorization = `Bearer ${token}`;
    const request = { method: action.method, headers };
    let query = "";
    if (action.method === "DELETE") query = dryRun ? "?dry_run=true" : "";
    else if (action.method === "GET") {
      const words = Object.entries(body).flatMap(([name, text]) => text.split(/\s+/).map((word) => [name, word]));
      query = `?${new URLSearchParams(words)}`;
    }
    else {
      headers["Content-Type"] = "application/json";
      request.body = JSON.stringify({ ...body, dry_run: dryRun });
    }
    const path = connector === undefined ? action.path : `/${encodeURIComponent(connector)}`;
    const answer = await fetch(group + path + query, request);
    const found = await answer.json();
    if (answer.status === 401) throw new Error("Token: it is missing or wrong; the service has it from its --token-file");
    if (!answer.ok) throw new Error(inLabels(found.message, action));
    return found;
  }

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  const MOST_LINES = 500;

  function counted(count, noun) {
    return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
  }

  function some(things, most) {
    const more = things.length > most ? ` and ${things.length - most} more` : "";
    return things.slice(0, most).join(", ") + more;
  }

  // A plan: how many partitions move between which members, and what each member owns then.
  function describePlan(found) {
    const names = new Map(found.members.map((each) => [each.id, each.name]));
    const ways = new Map();
    for (const { topic, partition, before, after } of found.moves) {
      const way = `${before === null ? "without an owner" : `of ${names.get(before)}`} ${
        after === null ? "would have none" : `would go to ${names.get(after)}`}`;
      if (!ways.has(way)) ways.set(way, []);
      ways.get(way).push(`${topic}:${partition}`);
    }
    const moves = [...ways].map(([way, all]) => `${counted(all.length, "partition")} ${way}: ${some(all, 8)}`);
    const changed = found.members.filter((each) => each.gone || each.partitions_before !== each.partitions_after);
    const members = changed.map((each) => {
      const now = each.gone ? "would leave" : `would own ${counted(each.partitions_after, "partition")}`;
      return `${each.name} ${now} (${each.partitions_before} now)`;
    });
    const same = found.members.length - changed.length;
    if (same) members.push(`${counted(same, "member")} would own as many as now.`);
    const unassigned = Object.entries(found.unassigned).map(([partition, why]) => `${partition} gets no owner: ${why}`);
    const first = found.moves.length ? `${counted(found.moves.length, "partition")} would move.` : "No partition would move.";
    const notes = [...(found.fallback ? [found.fallback] : []), ...found.notes, ...unassigned];
    return [first, ...notes, ...(moves.length ? ["", ...moves] : []), "", ...members];
  }

  // The changes as lines; everything else as it was answered.
  function describe(found, action) {
    const { changes = [], members = [], loses = [], notes = [], restore, dry_run, ...rest } = found;
    const lines = changes.map((each) => {
      const what = each.setting || each.work || `${each.topic}:${each.partition}`;
      if (each.work && each.after === null) return `${what}: ${each.before} → deleted`;
      return `${what}: ${each.before ?? "none"} → ${each.after ?? "none"}${each.note ? ` (${each.note})` : ""}`;
    });
    lines.push(...members.map((each) => `${each.slot} owns ${counted(each.owned, "partition")}`), ...loses, ...notes);
    if (rest.restore_file) lines.push(`What was lost is in ${rest.restore_file} on the machine of the service.`);
    if (rest.by_members) lines.push("The live members make this change.");
    if (rest.not_set && rest.not_set.length) lines.push(`Not set in time: ${rest.not_set.join(", ")}`);
    if (rest.left_out && rest.left_out.length) lines.push(`Left out, because they do not exist: ${rest.left_out.join(", ")}`);
    return lines.length ? lines : [action.unchanged || "Nothing is different."];
  }

  // Names may have characters that reverse or hide the text around them.
  function visible(text) {
    return text.replace(/[\p{Cc}\p{Cf}]/gu, (sign) => (sign === "\n" ? sign : `\\u${sign.codePointAt(0).toString(16).padStart(4, "0")}`));
  }

  function bounded(lines) {
    const more = lines.length - MOST_LINES;
    return visible((more > 0 ? [...lines.slice(0, MOST_LINES), `and ${more} lines more`] : lines).join("\n"));
  }

  function download(found) {
    const text = JSON.stringify(found.restore, null, 1);
    const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    return element("a", { href, download: `kiel-groups-${found.group}-restore.json`, textContent: "Save what restores it" });
  }

  function field(name, label, preset, list, given, required) {
    if (name === "leave_unowned") {
      return element("label", { className: "check" }, element("input", { type: "checkbox", name }),
        "Even if partitions are left without an owner, because no other member reads them (leave_unowned)");
    }
    if (name === "config") {
      const value = given.config ? linesOf(JSON.parse(given.config)) : preset;
      return element("label", { className: "wide" }, label,
        element("textarea", { name, value, required, rows: 10, spellcheck: false }));
    }
    const value = name === "token" ? sessionStorage.getItem(TOKEN) || "" : given[name] || preset || "";
    const type = name === "token" ? "password" : "text";
    const input = element("input", { name, value, type, required, autocomplete: "off" });
    if (list) input.setAttribute("list", list);
    return element("label", {}, label, input);
  }

  function open(action, group, given) {
    const dialog = document.getElementById("dialog");
    const isRead = action.method === "GET";
    const outcome = element("pre", { id: "outcome", hidden: true, tabIndex: 0 });
    outcome.setAttribute("role", "status");
    const show = element("button", { type: "submit", textContent: isRead ? "Show the plan" : "Show what changes", className: "primary" });
    const make = element("button", { type: "button", textContent: "Make the change", hidden: true, className: "primary" });
    const close = element("button", { type: "button", textContent: "Close" });
    const shown = action.fields.filter(([name]) => name !== "store" || "store" in given);
    const fields = [...shown, ["token", isRead ? "Token, if reads need it" : "Token"]].map(
      ([name, label, preset, list]) => field(name, label, preset, list, given, Boolean(action.required?.includes(name))),
    );
    const names = action.about ? [...document.getElementById(action.about).options].map((each) => each.value) : [];
    const about = names.length ? [element("p", { textContent: `Now ${action.about}: ${some(names, 10)}` })] : [];
    const title = element("h2", { id: "dialog-title", textContent: [action.title, given.connector].join(" ").trim() });
    const form = element("form", {}, title, ...about, ...fields, outcome,
      element("div", { className: "buttons" }, close, show, make));
    let edits = 0;
    async function run(dryRun) {
      const began = edits;
      show.disabled = make.disabled = true;
      sessionStorage.setItem(TOKEN, new FormData(form).get("token"));
      outcome.hidden = false;
      outcome.textContent = dryRun ? "asking" : "in progress";
      try {
        const found = await send(action, group, bodyOf(form), dryRun);
        outcome.textContent = (dryRun ? "" : "Done.\n") + bounded(isRead ? describePlan(found) : describe(found, action));
        if (found.restore) outcome.append("\n", download(found));
        make.hidden = !dryRun || isRead || edits !== began; // An edit meanwhile is not in what was shown.
        if (!dryRun) say(`${action.title}: done`);
      } catch (error) {
        outcome.textContent = visible(error.message);
        make.hidden = true;
      }
      show.disabled = make.disabled = false;
      // The browser has taken the focus from a disabled button. An operator who types in a field keeps it.
      if (!make.hidden) make.focus();
      else if (!form.contains(document.activeElement)) (dryRun ? show : close).focus();
    }
    form.addEventListener("submit", (event) => { event.preventDefault(); run(true); });
    form.addEventListener("input", () => { edits += 1; make.hidden = true; });
    make.addEventListener("click", () => run(false));
    close.addEventListener("click", () => dialog.close());
    dialog.replaceChildren(form);
    dialog.showModal();
  }

  let opener = ""; // The id of the button that opened the dialog. The page may have replaced the button itself.

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-action]");
    if (!button) return;
    opener = button.id;
    const path = button.dataset.path || document.querySelector(".actions").dataset.group;
    open(ACTIONS[button.dataset.action], path, { ...document.querySelector(".actions")?.dataset, ...button.dataset });
  });
  let isNew = true;

  let source = null;

  document.addEventListener("htmx:sseOpen", (event) => {
    source = event.detail.source;
    say("live");
    // Changes while the connection was lost had no events.
    if (!isNew) htmx.trigger("#main", "sse:change");
    isNew = false;
  });
  // A browser has six connections to a service, for all tabs together: a tab that is not seen gives its one back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source?.close();
    else if (source?.readyState === EventSource.CLOSED) {
      for (const each of [document.body, document.getElementById("main")]) htmx.trigger(each, "htmx:afterProcessNode");
    }
  });
  document.addEventListener("htmx:sseError", () => say("no connection to the service; trying again"));
  document.addEventListener("DOMContentLoaded", () => {
    draw();
    const dialog = document.getElementById("dialog");
    // Chromium reports the close in its next frame. The operator may have moved the focus to another button meanwhile, and
    // must not press the opener in its place. The browser itself returns the focus, unless the page has a new opener.
    dialog.addEventListener("close", () => {
      const focused = document.activeElement;
      if (!focused || focused === document.body || dialog.contains(focused)) {
        (document.getElementById(opener) || document.getElementById("main")).focus();
      }
    });
  });
})();
