// The operator's page: shows what /api/events tells, and asks for what an operator wants. All names are text, never markup.

const MOST = { versions: 1000, happened: 200, traffic: 600 };
const QUIET = 12; // seconds without a word after which the server counts as lost: it has one every five
const ROWS = 14;
const $ = (id) => document.getElementById(id);
const models = new Map(); // by name: what the server said, and what is on the screen
const server = { workers: [], server: {}, actions: { allowed: false, why: "" } };
const clock = { now: Date.now() / 1000, at: performance.now() / 1000, heard: null };

// Words ---

const seconds = () => performance.now() / 1000;
const serverNow = () => clock.now + seconds() - clock.at; // the server's clock: the browser's may jump

function duration(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const s = Math.max(0, value);
  if (s < 0.0005) return `${Math.round(s * 1e6)} µs`;
  if (s < 0.01) return `${(s * 1000).toFixed(s < 0.001 ? 2 : 1)} ms`;
  if (s < 0.95) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
const figure = (value) => (typeof value === "number" ? value.toLocaleString("en-US") : String(value).replace(/\B(?=(\d{3})+$)/g, ","));
const short = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3)
  ? value.toExponential(2) : String(Number(value.toPrecision(4))));
const rate = (value) => (value >= 100 ? Math.round(value).toLocaleString("en-US") : String(Number((value ?? 0).toFixed(value < 10 ? 1 : 0))));
const ago = (at) => { const s = Math.floor(serverNow() - at); return s < 1 ? "now" : s < 60 ? `${s} s ago` : `${duration(s)} ago`; };
const mib = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`);
const many = (count, what) => `${figure(count)} ${what}${count === 1 ? "" : "s"}`;
const time = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") node.addEventListener("click", value);
    else if (name === "text") node.textContent = value;
    else if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
function list(node, signature, build) { // built again only where it is another one
  if (node.dataset.signature === signature) return;
  const focus = node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  node.dataset.signature = signature;
  node.replaceChildren(...build());
  if (focus) [...node.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focus)?.focus();
}

// What the server says ---

function take(message, whole) {
  clock.now = message.now;
  clock.at = seconds();
  if (whole) {
    server.actions = message.actions;
    for (const model of models.values()) Object.assign(model, { stride: 1, versions: new Map(), happened: [], traffic: [] });
    for (const name of models.keys()) if (!(name in (message.models ?? {}))) forget(name);
  }
  for (const name of message.gone ?? []) forget(name);
  for (const [name, change] of Object.entries(message.models ?? {})) {
    if (!models.has(name)) models.set(name, { name, status: null, stride: 1, versions: new Map(), happened: [], traffic: [] });
    const model = models.get(name);
    if (change.status) Object.assign(model, { status: change.status, statusAt: clock.at });
    for (const version of change.versions ?? []) model.versions.set(String(version.number), version);
    for (const what of ["happened", "traffic"]) {
      const last = model[what].at(-1)?.sequence ?? -1;
      model[what].push(...(change[what] ?? []).filter((one) => one.sequence > last));
      if (model[what].length > MOST[what]) model[what].splice(0, model[what].length - MOST[what]);
    }
    if (model.versions.size > MOST.versions) thin(model);
  }
  for (const what of ["workers", "server"]) if (message[what]) server[what] = message[what];
  ask();
}

function thin(model) { // as the server does: of older versions every second, fourth, eighth stays
  const ascending = [...model.versions.values()].sort((a, b) => a.number - b.number).slice(0, -400);
  while (model.versions.size > 750 && model.stride < 2 ** 32) {
    for (const one of ascending) if (one.nth % model.stride && !one.reason) model.versions.delete(String(one.number));
    if (model.versions.size > 750) model.stride *= 2;
  }
  if (model.versions.size > MOST.versions) model.versions.delete(String(ascending[0].number));
}

function forget(name) {
  const model = models.get(name);
  for (const chart of Object.values(model?.charts ?? {})) chart.plot?.destroy();
  model?.node?.remove();
  models.delete(name);
}

// The connection ---

const connection = { pause: 0.5, lost: null, again: null, abort: null };
const token = () => sessionStorage.getItem("paramsync-token");
const headers = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

async function connect() {
  clearTimeout(connection.again);
  const abort = (connection.abort = new AbortController());
  const watch = setInterval(() => { if (clock.heard !== null && seconds() - clock.heard > QUIET) abort.abort(); }, 1000);
  let why = "The server said nothing for a while.";
  try {
    clock.heard = seconds();
    const answer = await fetch("/api/events", { headers: headers(), signal: abort.signal, cache: "no-store" });
    if (answer.status === 401) $("sign-in").hidden = false;
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `HTTP status ${answer.status}`);
    why = "The server ended the connection.";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      clock.heard = seconds();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const [, kind, data] = part.match(/^event: (.*)\ndata: (.*)$/) ?? [];
        if (kind === "state") found();
        if (kind === "end") why = "The server is stopping.";
        if (kind === "state" || kind === "change") take(JSON.parse(data), kind === "state");
      }
    }
  } catch (error) {
    if (error.name !== "AbortError" && error.name !== "TypeError") why = error.message;
    else if (error.name === "TypeError") why = "The server does not answer.";
  } finally {
    clearInterval(watch);
  }
  lose(why);
}

function found() {
  connection.pause = 0.5;
  if (!$("lost").hidden) say("Connected again.");
  connection.lost = null;
  $("lost").hidden = true;
  put($("connection"), "live");
  ask();
}

function lose(why) {
  const first = connection.lost === null && clock.heard !== null && models.size > 0; // a worker left: there are others
  connection.lost ??= serverNow();
  connection.tryAt = seconds() + connection.pause * (0.75 + Math.random() / 2);
  connection.again = setTimeout(connect, 1000 * (connection.tryAt - seconds()));
  connection.pause = Math.min(10, connection.pause * 2);
  put($("lost-what"), `Lost the server. ${why}`);
  $("lost").hidden = first;
  put($("connection"), first ? "connecting…" : "lost");
  tick();
}

$("retry").addEventListener("click", () => {
  connection.abort?.abort();
  connect();
});

function say(text) {
  put($("said"), text);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => put($("said"), ""), 8000);
}

// The screen ---

let asked = false;
let plotted = -Infinity;
function ask() {
  if (asked) return;
  asked = true;
  (document.hidden ? (then) => setTimeout(then, 500) : requestAnimationFrame)(() => {
    asked = false;
    draw();
  });
}

function draw() {
  const names = [...models.keys()].sort();
  for (const name of names) drawModel(models.get(name));
  list($("nav"), JSON.stringify(names.length > 1 ? names.map((name) => [name, mood(models.get(name))]) : []), () =>
    names.length < 2 ? [] : names.map((name) => make("a", { href: `#${models.get(name).node.id}`, class: mood(models.get(name)), text: name })));
  drawServer();
  if (seconds() - plotted >= 0.5 && !document.hidden) {
    plotted = seconds();
    for (const model of models.values()) plot(model);
  }
  const first = models.get(names.find((name) => wrongs(models.get(name)).length) ?? names[0]);
  const serving = first?.status?.serving;
  document.title = first ? `${wrongs(first).length ? "▲ " : ""}${serving ? figure(serving.number) : "nothing"} · ${first.name} · paramsync` : "paramsync";
  tick();
}

function tick() { // what time alone changes
  for (const model of models.values()) if (model.node) drawHeadline(model);
  if (connection.lost !== null) {
    const left = Math.max(0, Math.ceil((connection.tryAt ?? 0) - seconds()));
    put($("lost-when"), `What is below is ${duration(serverNow() - connection.lost)} old. ${left ? `Trying again in ${left} s.` : "Trying…"}`);
  }
}
setInterval(tick, 1000);
setInterval(() => { if (connection.lost === null) ask(); }, 1000);

const elapsed = (model) => seconds() - model.statusAt;
const serves = (model) => model.status?.serving && model.status.published?.number === model.status.serving.number;

function wrongs(model) {
  const status = model.status;
  if (!status) return [];
  const found = [];
  if (!status.serving) found.push(status.waiting_for ? `Nothing serves: ${status.waiting_for}` : "Nothing serves yet.");
  if (status.last_error) found.push(status.last_error);
  const newest = status.quarantined.at(-1);
  if (newest && (!status.serving || newest.number > status.serving.number)) found.push(`Version ${figure(newest.number)} is quarantined: ${newest.reason}`);
  for (const [signature, why] of Object.entries(status.not_served)) found.push(`Signature ${signature} is not served: ${why}`);
  return found;
}

function mood(model) {
  if (wrongs(model).length) return "wrong";
  return model.status && (model.status.pinned !== null || !serves(model)) ? "late" : "";
}

function behind(model) {
  const status = model.status;
  if (!status.serving) return status.published ? `version ${figure(status.published.number)} is published` : "nothing is published";
  if (serves(model)) return `newest · its step was ${duration(status.serving_age_seconds + elapsed(model))} ago`;
  const words = [`${duration((status.lag_seconds ?? 0) + elapsed(model))} behind`];
  if (status.lag_steps) words.push(many(status.lag_steps, "step"));
  if (status.lag_versions) words.push(many(status.lag_versions, "version"));
  return words.join(", ");
}

function drawHeadline(model) {
  const status = model.status;
  if (!status) return;
  const { node } = model;
  put(node.querySelector(".serves .big"), status.serving ? figure(status.serving.number) : "–");
  const late = node.querySelector(".behind");
  put(late, behind(model));
  const words = !serves(model) && (status.lag_seconds ?? 0) + elapsed(model) > 2;
  late.classList.toggle("warn", Boolean(words || !status.serving));
}

function drawModel(model) {
  if (!model.node) build(model);
  const { node, status } = model;
  if (!status) return;
  drawHeadline(model);
  const restoring = status.restoring === null ? "" : ` · restoring ${figure(status.restoring)}${status.restored_share ? ` (${Math.round(100 * status.restored_share)} %)` : ""}`;
  const parts = Object.entries(status.parts ?? {}).map(([name, version]) => `${name} ${figure(version?.number)}`).join(" + ");
  const choice = node.querySelector(".choice");
  const words = `${status.pinned === null ? "" : `pinned to ${figure(status.pinned)}`}|${parts ? `joined from ${parts}` : status.pinned === null ? `follows the newest in ${status.store}` : ` · follows ${status.store} once unpinned`}${status.signed_by ? ` · signed by key ${status.signed_by}` : ""}${restoring}`;
  list(choice, words, () => [make("b", { text: words.slice(0, words.indexOf("|")) }), words.slice(words.indexOf("|") + 1)]);
  const wrong = wrongs(model);
  node.querySelector(".wrong").hidden = !wrong.length;
  list(node.querySelector(".wrong"), JSON.stringify(wrong), () => wrong.map((text) => make("li", { text: text.length > 300 ? `${text.slice(0, 300)}…` : text })));
  const joined = parts !== "";
  const may = server.actions.allowed && !joined;
  node.querySelector(".actions").hidden = !may;
  node.querySelector("[data-do=unpin]").hidden = status.pinned === null;
  const why = node.querySelector(".why");
  why.hidden = server.actions.allowed || joined || !server.actions.why;
  put(why, server.actions.why);
  $("sign-in").hidden = !(server.actions.token || token());
  drawVersions(model, may);
  drawHappened(model);
  drawErrors(model);
  drawDiff(model);
  if (status.serving && !model.described) describe(model);
  model.digit?.changed();
}

function build(model) {
  const node = (model.node = $("model").content.firstElementChild.cloneNode(true));
  node.id = `model-${(build.count = (build.count ?? 0) + 1)}`;
  const title = node.querySelector("h2");
  title.id = `${node.id}-title`;
  put(title, model.name);
  node.setAttribute("aria-labelledby", title.id);
  node.querySelector(".scroll").setAttribute("aria-label", `Versions of ${model.name}`);
  for (const button of node.querySelectorAll("[data-do]")) button.addEventListener("click", () => act(model, button.dataset.do));
  const later = [...models.keys()].sort().slice([...models.keys()].sort().indexOf(model.name) + 1).map((name) => models.get(name).node).find(Boolean);
  $("models").insertBefore(node, later ?? null);
  model.charts = Object.fromEntries([...node.querySelectorAll("[data-chart]")].map((one) => [one.dataset.chart, { figure: one }]));
  node.querySelector("figcaption select").addEventListener("change", (event) => {
    model.metric = event.target.value;
    plot(model);
  });
  const diff = node.querySelector(".diff");
  diff.querySelector(".scroll").setAttribute("aria-label", `Changed parameters of ${model.name}`);
  diff.addEventListener("change", () => { diff.dataset.chosen = 1; });
  diff.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    compare(model, diff);
  });
}

function drawVersions(model, may) {
  const { status, node } = model;
  const metric = metricOf(model);
  const held = new Set([...status.resident, ...Object.values(status.labels), ...status.quarantined.slice(-3).map((one) => one.number)].map(String));
  for (const one of [...model.versions.values()].sort((a, b) => b.number - a.number).slice(0, 6)) held.add(String(one.number));
  if (status.serving) held.add(String(status.serving.number));
  const last = latest(model);
  const rows = [...held].sort((a, b) => b - a).slice(0, ROWS).map((number) => {
    const seen = model.versions.get(number) ?? {};
    const own = String(status.serving?.number) === number;
    const bad = status.quarantined.find((one) => String(one.number) === number);
    const state = own ? "serves" : status.resident.map(String).includes(number) ? "in memory" : bad ? "quarantined" : status.in_store.map(String).includes(number) ? "in the store" : "gone";
    const labels = Object.entries(status.labels).filter(([, one]) => String(one) === number).map(([label]) => label);
    const [per, p50, p99] = last.versions[number] ?? [0, null, null];
    const at = seen.committed_at ?? (own ? status.serving.committed_at : null);
    const value = seen.metrics?.[metric] ?? (own ? status.serving.metrics?.[metric] : undefined);
    return { number, state, labels, at, value, per, p50, p99, own, reason: bad?.reason };
  });
  put(node.querySelector("th.metric"), metric ?? "");
  const body = node.querySelector(".versions tbody");
  list(body, JSON.stringify([rows.map((row) => [row.number, row.state, row.labels]), may]), () =>
    rows.map((row) => make("tr", row.own ? { class: "serving" } : {},
      make("td", { class: "n", text: figure(row.number) }),
      make("td", { class: row.own ? "" : row.reason ? "bad" : "dim", text: row.state, title: row.reason }),
      make("td", {}, ...row.labels.map((label) => make("span", { class: "chip" }, make("span", { text: label }),
        ...(may ? [make("button", { type: "button", "data-key": `unlabel ${label}`, "aria-label": `Take the label ${label} away`, text: "×", on: () => act(model, "unlabel", row.number, label) })] : [])))),
      ...["n dim", "n", "n", "n", "n"].map((one) => make("td", { class: one })),
      make("td", { class: "acts" }, ...(may && row.state !== "gone" ? [["pin", "Pin"], ["label", "Label…"]].map(([what, word]) =>
        make("button", { type: "button", "data-key": `${what} ${row.number}`, "aria-label": `${word} version ${row.number}`, text: word, on: () => act(model, what, row.number) })) : [])))));
  for (const [at, row] of rows.entries()) { // what changes all the time, in place: nobody's click is to miss its button
    const words = [row.at ? ago(row.at) : "–", metric ? short(row.value) : "", ...(row.per ? [`${rate(row.per)}/s`, duration(row.p50), duration(row.p99)] : ["–", "–", "–"])];
    for (const [column, text] of words.entries()) put(body.children[at].children[3 + column], text);
  }
}

const latest = (model) => model.traffic.at(-1) ?? { versions: {}, rate: 0, failed: 0 };

const WORDS = { served: "serves", unlabelled: "lost the label" };

function drawHappened(model) {
  const events = [];
  for (const one of model.versions.values()) {
    if (one.served_at) events.push({ at: one.served_at, kind: "served", number: one.number, took: one.served_at - one.step_done_at });
    else if (one.committed_at && !one.quarantined_at) events.push({ at: one.committed_at, kind: "published", number: one.number });
    if (one.quarantined_at) events.push({ at: one.quarantined_at, kind: "quarantined", number: one.number, text: one.reason });
  }
  events.push(...model.happened.filter((one) => one.kind !== "error"));
  events.sort((a, b) => b.at - a.at);
  const shown = events.slice(0, 40);
  list(model.node.querySelector(".happened ol"), JSON.stringify(shown), () => shown.map((one) => {
    const line = make("span", one.kind === "quarantined" ? { class: "bad" } : one.kind === "served" || one.kind === "published" ? {} : { class: "warn" });
    const number = figure(one.number ?? "");
    if (one.kind === "unpinned") line.append("unpinned: follows the newest again");
    else if (one.kind === "rolled back") line.append(`rolled back to ${number}`, one.from ? ` from ${figure(one.from)}` : "");
    else if (one.label !== undefined) line.append(`${number} ${WORDS[one.kind] ?? one.kind} ${one.label}`);
    else line.append(`${number} ${WORDS[one.kind] ?? one.kind}`);
    if (one.took !== undefined) line.append(make("span", { class: "dim", text: ` ${duration(one.took)} after its step` }));
    if (one.text) line.append(`: ${one.text.length > 120 ? `${one.text.slice(0, 120)}…` : one.text}`);
    return make("li", {}, make("time", { text: time(one.at) }), line);
  }));
}

function drawErrors(model) {
  const errors = model.happened.filter((one) => one.kind === "error").map((one) => ({ at: one.at, what: "", text: one.text }));
  const known = new Set();
  for (const one of model.status.quarantined) {
    known.add(one.number);
    errors.push({ at: one.since, what: `version ${figure(one.number)} was quarantined`, text: one.reason });
  }
  for (const one of model.versions.values())
    if (one.reason && !known.has(one.number)) errors.push({ at: one.quarantined_at, what: `version ${figure(one.number)} was quarantined`, text: one.reason });
  errors.sort((a, b) => b.at - a.at);
  const shown = errors.slice(0, 10);
  const part = model.node.querySelector(".errors");
  part.hidden = !shown.length;
  list(part.querySelector("ol"), JSON.stringify(shown), () =>
    shown.map((one) => make("li", {}, make("time", { text: time(one.at) }), make("span", {}, one.what, make("pre", { text: one.text })))));
}

function drawDiff(model) {
  const numbers = [...model.status.in_store].reverse();
  const part = model.node.querySelector(".diff");
  part.hidden = numbers.length < 2;
  for (const [at, select] of part.querySelectorAll("select").entries()) {
    const chosen = select.value;
    list(select, JSON.stringify(numbers), () => numbers.map((one) => make("option", { value: String(one), text: figure(one) })));
    select.value = part.dataset.chosen && numbers.map(String).includes(chosen) ? chosen : String(numbers[1 - at]);
  }
}

async function compare(model, part) {
  const [old, now] = [...part.querySelectorAll("select")].map((one) => one.value);
  const said = part.querySelector("form span");
  put(said, "Comparing…");
  try {
    const answer = await fetch(`/api/diff?${new URLSearchParams({ model: model.name, old, new: now })}`, { headers: headers() });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    put(said, Object.entries(found.kinds).map(([kind, count]) => `${count} ${kind}`).join(", "));
    part.querySelector(".scroll").hidden = !found.parameters.length;
    part.querySelector("tbody").replaceChildren(...found.parameters.map((one) => make("tr", {},
      make("td", {}, one.name, make("span", { class: "dim", text: ` ${one.shape.join("×") || "scalar"}` })),
      make("td", { class: "n", text: one.kind !== "changed" ? one.kind : one.norm === null ? `${figure(one.changed)} values` : one.relative === null ? `${short(one.norm)}, from 0` : `${short(100 * one.relative)} %` }),
      make("td", { class: "n", text: short(one.largest) }),
      make("td", {}, one.histogram.some(Boolean) ? bars(one.histogram, found.histogram_edges) : ""))));
  } catch (error) {
    put(said, error.message);
  }
}

function bars(counts, edges) {
  const most = Math.max(...counts);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${3 * counts.length} 24`);
  svg.setAttribute("role", "img");
  const top = counts.indexOf(most);
  svg.setAttribute("aria-label", `most changes are from ${short(edges[top])} to ${short(edges[top + 1])}`);
  for (const [at, count] of counts.entries()) {
    if (!count) continue;
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = Math.max(1, 24 * count / most);
    for (const [name, value] of Object.entries({ x: 3 * at, y: 24 - height, width: 2, height })) bar.setAttribute(name, value);
    svg.append(bar);
  }
  return svg;
}

function drawServer() {
  $("server").hidden = !server.workers.length;
  $("trouble").hidden = !server.server.trouble;
  put($("trouble"), server.server.trouble ?? "");
  const most = Math.max(1, ...server.workers.map((one) => one.resident_bytes));
  list($("workers"), JSON.stringify(server.workers), () => server.workers.map((one) => {
    const name = one.number === null ? "supervisor" : `worker ${one.number}`;
    return make("tr", {}, make("td", { text: name }), make("td", { class: one.state === "ended" ? "bad" : "dim", text: one.state }),
      make("td", { class: "n", text: String(one.pid ?? "–") }), make("td", { class: "n", text: mib(one.private_bytes) }), make("td", { class: "n", text: mib(one.resident_bytes) }),
      make("td", {}, make("progress", { max: most, value: one.resident_bytes, "aria-label": `Memory of ${name}` })),
      make("td", { class: one.restarts ? "n bad" : "n", text: one.number === null ? "" : String(one.restarts) }));
  }));
}

// Charts ---

const LANES = ["chosen", "quarantined", "serves", "restored", "published"];
let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(["ink", "dim", "line", "accent", "good", "warn", "bad", "shade"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  for (const model of models.values()) for (const chart of Object.values(model.charts ?? {})) {
    chart.plot?.destroy();
    chart.plot = null;
  }
  plotted = -Infinity;
  ask();
});

const clockTime = (splits, span) => splits.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB", span < 600 ? {} : { hour: "2-digit", minute: "2-digit" }));

function show(chart, data, options) { // options are read where there is no plot yet
  const one = chart;
  if (!window.uPlot) return;
  const height = options.height ?? 130;
  if (!one.plot) {
    const axis = { stroke: colours.dim, font: "12px system-ui, sans-serif", grid: { stroke: colours.line, width: 1 }, ticks: { show: false }, size: 54, gap: 6 };
    const x = options.x ?? { values: (_, splits) => clockTime(splits, splits.at(-1) - splits[0]), space: 90 };
    const place = make("div");
    one.figure.append(place);
    one.plot = new window.uPlot({
      width: Math.max(100, place.clientWidth), height, padding: [6, 18, 0, 0],
      scales: { x: { time: false }, ...options.scales },
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      axes: [{ ...axis, size: 26, ...x }, { ...axis, ...options.y }],
      series: [{}, ...options.series],
      hooks: { draw: options.draw ? [options.draw] : [], setCursor: [(plot) => caption(one, plot)] },
    }, data, place);
    one.sizes = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width > 50 && one.plot && one.plot.width !== width) one.plot.setSize({ width, height });
    });
    one.sizes.observe(place);
    const destroy = one.plot.destroy.bind(one.plot);
    one.plot.destroy = () => {
      one.sizes.disconnect();
      destroy();
      place.remove();
    };
  } else {
    one.plot.setData(data);
  }
  one.words = options.words;
  one.figure.classList.toggle("none", data[0].length === 0);
  caption(one, one.plot);
}

function caption(chart, plot) {
  const at = plot.cursor.idx;
  put(chart.figure.querySelector("figcaption > span"), plot.data[0].length ? chart.words(at ?? plot.data[0].length - 1, at !== null && at !== undefined) : "nothing yet");
}

const line = (colour, more) => ({ stroke: colours[colour], width: 1.5, points: { show: false }, ...more });

function metricsOf(model) {
  const names = new Map();
  for (const one of model.versions.values()) for (const name of Object.keys(one.metrics)) names.set(name, (names.get(name) ?? 0) + 1);
  return [...names.keys()].sort((a, b) => (b === "loss") - (a === "loss") || (a < b ? -1 : 1));
}
function metricOf(model) {
  const names = metricsOf(model);
  return names.includes(model.metric) ? model.metric : names[0];
}

function plot(model) {
  if (!model.status || !model.node) return;
  const versions = [...model.versions.values()].sort((a, b) => a.number - b.number);
  plotTimeline(model, versions);
  plotMetric(model, versions);
  const samples = model.traffic;
  const x = samples.map((one) => one.at);
  show(model.charts.freshness, [x, samples.map((one) => one.age), samples.map((one) => one.behind)], {
    series: [line("accent", { fill: colours.shade }), line("warn")],
    scales: { y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.1)] } },
    y: { values: (_, splits) => splits.map((one) => (one ? duration(one) : "0")), size: 62 },
    words: (at, pointed) => `${pointed ? `${time(samples[at].at)}  ` : ""}${duration(samples[at].age)} since its step${samples[at].behind ? `, ${duration(samples[at].behind)} behind` : ""}`,
  });
  const apart = steady(samples);
  if (model.charts.rate.apart !== apart.join()) {
    model.charts.rate.plot?.destroy();
    Object.assign(model.charts.rate, { plot: null, apart: apart.join() });
  }
  const tints = ["good", "warn", "dim"];
  show(model.charts.rate, [x, samples.map((one) => one.rate), samples.map((one) => one.failed), ...apart.map((number) => samples.map((one) => one.versions[number]?.[0] ?? null))], {
    series: [line("accent", { fill: colours.shade }), line("bad"), ...apart.map((_, at) => line(tints[at], { dash: [5, 3] }))],
    scales: { y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.1)] } },
    y: { values: (_, splits) => splits.map(rate) },
    words: (at, pointed) => [pointed ? time(samples[at].at) : "", `${rate(samples[at].rate)}/s`, samples[at].failed ? `${rate(samples[at].failed)}/s failed` : "",
      ...apart.map((number) => `${figure(number)}: ${rate(samples[at].versions[number]?.[0] ?? 0)}/s`)].filter(Boolean).join("  "),
  });
  const busiest = samples.map((one) => Object.entries(one.versions).reduce((best, next) => (next[1][0] > (best?.[1][0] ?? 0) ? next : best), null));
  show(model.charts.latency, [x, busiest.map((one) => one?.[1][1] ?? null), busiest.map((one) => one?.[1][2] ?? null)], {
    series: [line("accent", { spanGaps: false }), line("warn")],
    scales: { y: { range: (_, low, high) => [0, (high || 0.001) * 1.1] } },
    y: { values: (_, splits) => splits.map((one) => (one ? duration(one) : "0")), size: 62 },
    words: (at, pointed) => (busiest[at] ? `${pointed ? `${time(samples[at].at)}  ` : ""}p50 ${duration(busiest[at][1][1])}, p99 ${duration(busiest[at][1][2])} of version ${figure(busiest[at][0])}` : "no requests"),
  });
}

function steady(samples) { // versions that answer side by side for long enough to be told apart
  const counts = new Map();
  for (const one of samples.slice(-60)) for (const number of Object.keys(one.versions)) counts.set(number, (counts.get(number) ?? 0) + 1);
  const long = [...counts].filter(([, count]) => count >= 10).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([number]) => number);
  return long.length > 1 ? long.sort() : [];
}

function plotTimeline(model, versions) {
  const events = [];
  for (const one of versions) {
    if (one.committed_at) events.push([one.committed_at, 4, one.number]);
    if (one.restored_at) events.push([one.restored_at, 3, one.number]);
    if (one.served_at) events.push([one.served_at, 2, one.number]);
    if (one.quarantined_at) events.push([one.quarantined_at, 1, one.number]);
  }
  for (const one of model.happened) if (one.kind !== "error") events.push([one.at, 0, one.number, one.kind]);
  const from = model.traffic[0] && versions.length > 400 ? Math.min(model.traffic[0].at, serverNow() - 120) : -Infinity;
  const seen = events.filter((one) => one[0] >= from).sort((a, b) => a[0] - b[0]);
  const tints = ["warn", "bad", "accent", "good", "dim"];
  show(model.charts.timeline, [seen.map((one) => one[0]), ...LANES.map((_, lane) => seen.map((one) => (one[1] === lane ? lane : null)))], {
    height: 140,
    series: LANES.map((_, lane) => ({ paths: () => null, points: { show: true, size: lane < 2 ? 9 : 6, fill: colours[tints[lane]], stroke: colours[tints[lane]], width: 0 } })),
    scales: { x: { time: false, range: (_, low, high) => [Math.min(low ?? high, high - 20), Math.max(high ?? 0, serverNow())] }, y: { range: [-0.6, 4.6] } },
    y: { splits: [0, 1, 2, 3, 4], values: () => LANES, size: 84, grid: { show: true, stroke: colours.line } },
    words: (at) => `${time(seen[at][0])}  ${seen[at][2] === null ? "" : figure(seen[at][2])} ${seen[at][3] ?? LANES[seen[at][1]]}`,
  });
}

function plotMetric(model, versions) {
  const names = metricsOf(model);
  const metric = metricOf(model);
  const select = model.node.querySelector("figcaption select");
  select.hidden = names.length < 2;
  list(select, JSON.stringify(names), () => names.map((name) => make("option", { value: name, text: name })));
  if (metric !== undefined && select.value !== metric) select.value = metric;
  const chart = model.charts.metric;
  chart.figure.hidden = metric === undefined;
  if (metric === undefined) return;
  const seen = versions.filter((one) => typeof one.metrics[metric] === "number").sort((a, b) => a.step - b.step || a.number - b.number);
  chart.serving = model.status.serving;
  show(chart, [seen.map((one) => Number(one.step)), seen.map((one) => one.metrics[metric]), seen.map((one) => (one.reason ? one.metrics[metric] : null))], {
    series: [line("accent", { points: { show: seen.length < 30, size: 4 } }), { paths: () => null, points: { show: true, size: 9, stroke: colours.bad, fill: colours.bad } }],
    x: { values: (_, splits) => splits.map((one) => figure(one)) },
    y: { values: (_, splits) => splits.map(short) },
    draw: (plot) => {
      if (!chart.serving) return;
      const { ctx, bbox } = plot;
      const at = Math.round(plot.valToPos(Number(chart.serving.step), "x", true));
      if (at < bbox.left || at > bbox.left + bbox.width) return;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colours.good;
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textAlign = at > bbox.left + bbox.width - 60 * devicePixelRatio ? "right" : "left";
      ctx.textBaseline = "top";
      ctx.fillText(" serves ", at, bbox.top + 2);
      ctx.restore();
    },
    words: (at) => `${metric} ${short(seen[at].metrics[metric])} at step ${figure(seen[at].step)}, version ${figure(seen[at].number)}`,
  });
}

// What is asked for: once more before it is done ---

const ACTS = {
  sync: (name) => ["Sync now", "Serve the newest published version now, where it can be. A version in quarantine is tried once more."],
  pin: (name, number) => [`Pin to ${figure(number)}`, `Version ${figure(number)} serves, and stays whatever is published, until somebody unpins ${name}.`],
  unpin: () => ["Unpin", "The newest published version is followed again."],
  rollback: () => ["Roll back", "The version that served before serves again, and stays until somebody unpins the model."],
  label: (name, number) => [`Label ${figure(number)}`, `Requests that name the label are answered from version ${figure(number)}, which stays in memory.`],
  unlabel: (name, number, label) => ["Take the label away", `Requests that name ${label} are refused from then on.`],
};
let doing = null;

function act(model, what, number, label) {
  const [title, words] = ACTS[what](model.name, number, label);
  put($("ask-title"), `${title}: ${model.name}`);
  put($("ask-what"), words);
  put($("ask-yes"), title);
  put($("ask-error"), "");
  $("ask-field").hidden = what !== "label";
  put($("ask-label"), "Label, such as stable or canary");
  Object.assign($("ask-input"), { value: label ?? "", type: "text", required: what === "label" });
  doing = async () => {
    const body = {};
    if (number !== undefined && what !== "unlabel") body.version = Number.isSafeInteger(Number(number)) ? Number(number) : String(number);
    if (what === "label") body.label = $("ask-input").value;
    if (what === "unlabel") body.label = label;
    const status = await post(`/api/models/${encodeURIComponent(model.name)}/${what}`, body);
    say(`${model.name}: done. ${status.serving ? `Version ${figure(status.serving.number)} serves` : "Nothing serves"}${status.pinned === null ? "." : ", pinned."}`);
  };
  $("ask").showModal();
  (what === "label" ? $("ask-input") : $("ask-no")).focus();
}

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify(body) });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.error ?? `HTTP status ${answer.status}`);
  return found;
}

$("ask").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if ($("ask-yes").disabled) return;
  $("ask-yes").disabled = true;
  put($("ask-error"), "");
  try {
    await doing();
    $("ask").close();
  } catch (error) {
    put($("ask-error"), error.name === "TypeError" ? "The server does not answer; nothing is known of what came of it." : error.message);
  } finally {
    $("ask-yes").disabled = false;
  }
});
$("ask-no").addEventListener("click", () => $("ask").close());
$("sign-in").addEventListener("click", () => {
  put($("ask-title"), "Use a token");
  put($("ask-what"), "It is kept in this tab only, and sent with what is asked of this server. Leave it empty to forget it.");
  put($("ask-yes"), "Use it");
  put($("ask-error"), "");
  $("ask-field").hidden = false;
  put($("ask-label"), "Token");
  Object.assign($("ask-input"), { value: "", type: "password", required: false });
  doing = async () => {
    const value = $("ask-input").value.trim();
    if (value) sessionStorage.setItem("paramsync-token", value);
    else sessionStorage.removeItem("paramsync-token");
    $("ask-input").value = "";
    connection.abort?.abort();
    connection.pause = 0.1;
  };
  $("ask").showModal();
  $("ask-input").focus();
});

// Draw a digit ---

async function describe(model) {
  model.described = true;
  try {
    const answer = await fetch(`/v1/models/${encodeURIComponent(model.name)}/metadata`, { headers: headers() });
    if (!answer.ok) return void setTimeout(() => { model.described = false; }, 5000);
    const signatures = (await answer.json()).metadata.signature_def.signature_def;
    const signature = signatures.serving_default;
    const inputs = Object.entries(signature?.inputs ?? {});
    const outputs = Object.entries(signature?.outputs ?? {});
    if (inputs.length !== 1) return;
    const sizes = (inputs[0][1].tensor_shape?.dim ?? []).map((one) => Number(one.size));
    const shape = sizes.slice(1).join("x");
    const scores = outputs.find(([, one]) => Number(one.tensor_shape?.dim?.at(-1)?.size) === 10);
    if (!scores || !["784", "28x28", "28x28x1"].includes(shape) || inputs[0][1].dtype !== "DT_FLOAT") return;
    model.digit = new Digit(model, shape, outputs.length > 1 ? scores[0] : null);
  } catch { /* a model that does not say what it takes gets no field to draw in */ }
}

const STROKES = [ // of the samples, in a square of 28
  "9,8 14,5 19,8 20,14 19,20 14,23 9,20 8,14 9,8", "11,9 15,5 15,23", "9,9 13,5 18,7 18,11 9,22 20,22", "9,7 15,5 18,9 13,13 18,17 15,22 8,20",
  "16,23 16,5 8,16 20,16", "19,5 10,5 9,13 15,12 19,16 15,22 8,20", "17,5 10,12 9,19 14,23 18,19 15,14 10,16", "8,6 20,6 12,23",
  "14,13 9,9 14,5 19,9 14,13 9,18 14,23 19,18 14,13", "18,11 13,14 9,10 13,5 18,7 18,13 16,23",
];

class Digit {
  constructor(model, shape, output) {
    Object.assign(this, { model, shape, output, last: null, story: [], busy: false, again: false, blank: true });
    this.part = model.node.querySelector(".digit");
    this.part.hidden = false;
    this.canvas = this.part.querySelector("canvas");
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    Object.assign(this.context, { lineWidth: 24, lineCap: "round", lineJoin: "round", strokeStyle: "#fff" });
    this.small = make("canvas", { width: 28, height: 28 }).getContext("2d", { willReadFrequently: true });
    this.part.querySelector(".samples").append(...STROKES.map((_, digit) => make("button", { type: "button", "aria-label": `Draw a ${digit}`, text: String(digit), on: () => this.sample(digit) })));
    this.part.querySelector(".clear").addEventListener("click", () => this.clear());
    this.bars = STROKES.map((_, digit) => {
      const bar = make("progress", { max: 1, value: 0, "aria-label": `Probability of ${digit}` });
      const words = make("span", { text: "" });
      this.part.querySelector(".bars").append(make("li", {}, make("span", { text: String(digit) }), bar, words));
      return [bar, words];
    });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.from = this.place(event);
      this.to(this.from);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.from) for (const one of event.getCoalescedEvents?.() ?? [event]) this.to(this.place(one));
    });
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, () => { this.from = null; });
    this.canvas.addEventListener("keydown", (event) => {
      if (/^[0-9]$/.test(event.key)) this.sample(Number(event.key));
      else if (["Delete", "Backspace", "Escape"].includes(event.key)) this.clear();
    });
    this.sample(3);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * (280 / box.width), (event.clientY - box.top) * (280 / box.height)];
  }

  to(point) {
    this.context.beginPath();
    this.context.moveTo(...this.from);
    this.context.lineTo(...point);
    this.context.stroke();
    this.from = point;
    this.drawn();
  }

  sample(digit) {
    this.clear();
    const points = STROKES[digit].split(" ").map((one) => one.split(",").map((value) => Number(value) * 10));
    this.context.beginPath();
    this.context.moveTo(...points[0]);
    for (const point of points.slice(1)) this.context.lineTo(...point);
    this.context.stroke();
    this.drawn();
  }

  clear() {
    this.context.clearRect(0, 0, 280, 280);
    Object.assign(this, { blank: true, story: [] });
    this.shown(null);
  }

  drawn() {
    Object.assign(this, { blank: false, story: [] });
    this.predict();
  }

  changed() { // another version serves
    const number = this.model.status.serving?.number;
    if (number !== this.last && !this.blank && connection.lost === null) this.predict();
  }

  pixels() {
    this.small.clearRect(0, 0, 28, 28);
    this.small.imageSmoothingQuality = "high";
    this.small.drawImage(this.canvas, 0, 0, 28, 28);
    const { data } = this.small.getImageData(0, 0, 28, 28);
    const flat = Array.from({ length: 784 }, (_, at) => Math.round((data[4 * at + 3] / 255) * 1000) / 1000);
    if (this.shape === "784") return flat;
    return Array.from({ length: 28 }, (_, row) => flat.slice(28 * row, 28 * row + 28).map((one) => (this.shape === "28x28x1" ? [one] : one)));
  }

  async predict() {
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    this.last = this.model.status.serving?.number;
    try {
      const answer = await fetch(`/v1/models/${encodeURIComponent(this.model.name)}:predict?model_spec=1`, {
        method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify({ instances: [this.pixels()] }),
      });
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.error);
      const row = found.predictions[0];
      const scores = this.output === null ? row : row[this.output];
      if (!this.blank) this.shown(scores, found.model_spec?.version);
    } catch (error) {
      put(this.part.querySelector(".story"), `No answer: ${error.message}`);
    }
    await new Promise((then) => setTimeout(then, 100)); // ten a second are enough to watch
    this.busy = false;
    if (this.again) {
      this.again = false;
      this.predict();
    }
  }

  shown(scores, version) {
    const [big, dim] = this.part.querySelector(".guess").children;
    let shares = scores ?? [];
    if (scores && (Math.min(...scores) < 0 || Math.abs(scores.reduce((a, b) => a + b, 0) - 1) > 0.01)) { // logits
      const most = Math.max(...scores);
      const powers = scores.map((one) => Math.exp(one - most));
      const sum = powers.reduce((a, b) => a + b, 0);
      shares = powers.map((one) => one / sum);
    }
    const best = scores ? shares.indexOf(Math.max(...shares)) : -1;
    for (const [digit, [bar, words]] of this.bars.entries()) {
      bar.value = shares[digit] ?? 0;
      put(words, scores ? `${(100 * shares[digit]).toFixed(1)} %` : "");
      bar.parentElement.classList.toggle("best", digit === best);
    }
    put(big, scores ? String(best) : "–");
    put(dim, version ? `answers version ${figure(version)}` : "");
    if (!scores) return void put(this.part.querySelector(".story"), "Draw with mouse, finger or pen; or press a digit.");
    if (version && this.story.at(-1)?.version !== version) this.story.push({ version, best, share: shares[best] });
    if (this.story.length > 200) this.story.splice(1, 1);
    const first = this.story[0];
    put(this.part.querySelector(".story"), this.story.length > 1
      ? `${many(this.story.length, "version")} answered for this drawing: from ${first.best} (${Math.round(100 * first.share)} %, version ${figure(first.version)}) to ${best} (${Math.round(100 * shares[best])} %).`
      : "It is asked again whenever another version serves.");
  }
}

connect();
