// The operator's page: asks for /api/state every second, shows it, and sends what an operator wants. Names are text, never markup.

import { get, keep, post, token } from "./calls.js";
import { clear, metricOf, plot, readColours } from "./charts.js";
import { describe } from "./predict.js";
import { $, ago, bytes, clock, duration, figure, list, make, many, mib, percent, put, rate, seconds, serverNow, short, time } from "./words.js";

const EVERY = 1; // seconds between two questions
const HIDDEN = 5; // the same in a tab that nobody sees
const PATIENCE = 12000; // milliseconds after which the server counts as lost
const ROWS = 14;
const models = new Map(); // by name: what the server says, and what is on the screen
let server = { peers: [], workers: [], server: {}, actions: { allowed: false, why: "" } };

// The server's state, asked for again and again ---

const connection = { pause: 0.5, failures: 0, lost: null, tryAt: 0, turn: 0, timer: null };

async function poll() {
  clearTimeout(connection.timer);
  const turn = (connection.turn += 1); // of two questions at a time, the later one counts
  const [state, error] = await get(`/api/state?${new URLSearchParams({ model: openedName() })}`, AbortSignal.timeout(PATIENCE))
    .then((found) => [found], (problem) => [null, problem]);
  if (turn !== connection.turn) return;
  if (error) {
    if (error.status === 401) $("sign-in").hidden = false;
    lose(error.status ? error.message : "It does not answer.");
    return;
  }
  again(document.hidden ? HIDDEN : EVERY);
  find();
  take(state);
}

function again(pause) {
  connection.tryAt = seconds() + pause;
  connection.timer = setTimeout(poll, 1000 * pause);
}

function take(state) {
  clock.now = state.now;
  clock.at = seconds();
  server = state;
  for (const name of models.keys()) if (!(name in state.models)) forget(name);
  for (const [name, said] of Object.entries(state.models)) {
    const model = models.get(name) ?? { name };
    const versions = new Map(said.versions.map((version) => [String(version.number), version]));
    models.set(name, Object.assign(model, said, { versions, statusAt: clock.at }));
  }
  draw();
}

function forget(name) {
  const model = models.get(name);
  if (model.charts) clear(model);
  model.node?.remove();
  models.delete(name);
}

function find() {
  if (!$("lost").hidden) say("Connected again.");
  Object.assign(connection, { pause: 0.5, failures: 0, lost: null });
  $("lost").hidden = true;
  put($("connection"), "live");
}

function lose(why) {
  connection.failures += 1;
  connection.lost ??= serverNow();
  const first = connection.failures === 1 && models.size > 0; // a worker left: there are others
  again(connection.pause * (0.75 + Math.random() / 2));
  connection.pause = Math.min(10, connection.pause * 2);
  put($("lost-what"), `Lost the server. ${why}`);
  $("lost").hidden = first;
  put($("connection"), first ? "connecting…" : "lost");
  tick();
}

$("retry").addEventListener("click", poll);
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });

function say(text) {
  put($("said"), text);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => put($("said"), ""), 8000);
}

// The screen ---

function draw() {
  const names = [...models.keys()].sort();
  const opened = openedModel();
  for (const model of models.values()) if (model.node) model.node.hidden = model !== opened;
  $("overview").hidden = Boolean(opened) || !names.length;
  if (opened) drawModel(opened);
  else drawRows(names);
  const listed = names.length > 1 && opened ? names.map((name) => [name, mood(models.get(name)), name === opened.name]) : [];
  list($("nav"), JSON.stringify(listed), () => listed.length < 2 ? [] : [make("a", { class: "all", href: "#/", "data-key": "all", text: "All models" }),
    ...listed.map(([name, feeling, here]) => make("a", { href: fragment(name), class: feeling, "data-key": name, "aria-current": here ? "page" : undefined, text: name }))]);
  drawFleet(opened);
  drawServer();
  if (opened && !document.hidden) plot(opened);
  if (shown !== opened) turn(opened);
  const first = opened ?? models.get(names.find((name) => wrongs(models.get(name)).length) ?? names[0]);
  const serving = first?.status?.serving;
  document.title = first ? `${wrongs(first).length ? "▲ " : ""}${serving ? figure(serving.number) : "nothing"} · ${first.name} · paramsync` : "paramsync";
  tick();
}

function tick() { // what time alone changes
  for (const model of models.values()) if (model.node && !model.node.hidden) drawHeadline(model);
  if (!$("overview").hidden) drawAges();
  if (connection.lost !== null) {
    const left = Math.max(0, Math.ceil(connection.tryAt - seconds()));
    put($("lost-when"), `${models.size ? `What is below is ${duration(serverNow() - connection.lost)} old. ` : ""}${left ? `Trying again in ${left} s.` : "Trying…"}`);
  }
}
setInterval(tick, 1000);

// All models, or one: the fragment of the address says which ---

let shown; // undefined until something was
const fragment = (name) => `#/${encodeURIComponent(name)}`;

function openedName() {
  if (models.size === 1) return [...models.keys()][0];
  try {
    return decodeURIComponent(location.hash.slice(2));
  } catch { // no fragment of ours
    return "";
  }
}
const openedModel = () => models.get(openedName()) ?? null;

function turn(opened) { // to another view: what is read and tabbed to begins with it
  const before = shown;
  shown = opened;
  if (before === undefined) return;
  scrollTo(0, 0);
  const row = before && !opened && [...$("rows").querySelectorAll("a")].find((one) => one.textContent === before.name);
  (row || (opened?.node.querySelector("h2") ?? $("overview-title"))).focus({ preventScroll: Boolean(opened) });
}
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment says which model is open
  $("models").focus();
});
window.addEventListener("hashchange", () => {
  draw();
  poll();
});

function stateOf(model) { // in a word or two, and how bad that is
  const { status } = model;
  if (!status) return ["starting", "dim"];
  if (status.state === "damaged") return ["damaged", "bad"];
  if (!status.serving) return ["nothing serves", "bad"];
  if (newestIsBad(status)) return ["newest quarantined", "bad"];
  if (status.publisher === "died") return ["trainer died", "bad"];
  if (wrongs(model).length) return ["trouble", "bad"];
  if (status.pinned !== null) return ["pinned", "warn"];
  return lag(model) > 2 ? ["behind", "warn"] : ["newest", "good"];
}

function trainerOf(status) { // its words, and how bad they are
  if (status?.publisher === "died") return [`died ${ago(status.publisher_since)}`, "bad"];
  if (status?.publisher === "finished") return [`finished ${ago(status.publisher_since)}`, "dim"];
  return status?.publisher === "training" ? ["training", "good"] : ["–", "dim"];
}

function drawRows(names) { // what is wrong comes first
  const rank = { bad: 0, warn: 1, dim: 1, good: 1 };
  const rows = names.map((name) => ({ name, state: stateOf(models.get(name)), wrong: wrongs(models.get(name)) })).sort((a, b) => rank[a.state[1]] - rank[b.state[1]]);
  list($("rows"), JSON.stringify(rows), () => rows.flatMap(({ name, state: [word, tint], wrong }) => [
    make("tr", { "data-model": name }, make("th", { scope: "row" }, make("a", { href: fragment(name), "data-key": name, text: name })),
      make("td", { class: `state ${tint}`, text: word }), ...["n", "n", "n", "more", "n more"].map((one, at) => make("td", { class: one }, ...(at === 2 ? [make("span"), make("span", { class: "more" })] : [])))),
    ...(wrong.length ? [make("tr", { class: "trouble" }, make("td", { colspan: 7 }, ...wrong.slice(0, 2).map((one) => make("p", { text: one.text }))))] : [])]));
  drawAges();
}

function drawAges() {
  for (const row of $("rows").querySelectorAll("[data-model]")) {
    const model = models.get(row.dataset.model);
    const { status } = model ?? {};
    if (!status) continue;
    const [trainer, tint] = trainerOf(status);
    const late = lag(model);
    const [, , version, age, wait, training, requests] = row.children;
    put(version, status.serving ? figure(status.serving.number) : "–");
    put(age, status.serving ? duration(ageOf(model)) : "–");
    put(wait.firstChild, late === null ? "–" : duration(late));
    put(wait.lastChild, late !== null && status.lag_versions ? `, ${many(status.lag_versions, "version")}` : "");
    put(training, trainer);
    training.className = `more ${tint}`;
    put(requests, `${rate(latest(model).rate)}/s`);
  }
}

const elapsed = (model) => seconds() - model.statusAt;
const serves = (model) => model.status?.serving && model.status.published?.number === model.status.serving.number;

const ageOf = (model) => model.status.serving_age_seconds + elapsed(model);
const lag = (model) => (!model.status.serving || serves(model) ? null : (model.status.lag_seconds ?? 0) + elapsed(model));
const plain = (model, text) => text.replaceAll("/.ATTRIBUTES/VARIABLE_VALUE", "").replaceAll(`${model.status.store}/`, ""); // what all have in common

function newestIsBad(status) {
  const newest = status.quarantined.at(-1);
  return newest && (!status.serving || Number(newest.number) > Number(status.serving.number)) ? newest : null;
}

function wrongs(model) { // each with what to do about it, where that is known
  const status = model.status;
  if (!status) return [];
  const found = [];
  const add = (text, advice = "") => found.push({ text: plain(model, text), advice });
  if (!status.serving) add(status.reason ? `Nothing serves: ${status.reason}` : "Nothing serves yet.");
  if (status.state === "damaged") add("What serves is damaged, and there is nothing else.");
  else if (status.reason) add(status.reason);
  const bad = newestIsBad(status);
  if (bad) add(`Version ${figure(bad.number)} is quarantined: ${bad.reason}`, bad.advice);
  if (status.bucket?.reason) add(`The bucket ${status.bucket.address}: ${status.bucket.reason.replace(`${status.bucket.address}: `, "")}`, "What served goes on serving, and it is tried again.");
  if (status.publisher === "died") add(`The trainer died at ${time(status.publisher_since)}.`, "Answers get older until it is started again: look at its log.");
  for (const [signature, why] of Object.entries(status.not_served)) add(`Signature ${signature} is not served: ${why}`);
  return found;
}

const MOODS = { bad: "wrong", warn: "late" };
const mood = (model) => MOODS[stateOf(model)[1]] ?? "";

function behind(model) {
  const status = model.status;
  if (!status.serving) return status.published ? `version ${figure(status.published.number)} is published` : "nothing is published";
  if (serves(model)) return `newest · its step was ${duration(ageOf(model))} ago`;
  const words = [`${duration(lag(model))} behind`];
  if (status.lag_steps) words.push(many(status.lag_steps, "step"));
  if (status.lag_versions) words.push(many(status.lag_versions, "version"));
  if (status.next != null) words.push(`version ${figure(status.next)} serves at ${time(status.next_at)}`);
  return words.join(", ");
}

function drawHeadline(model) {
  const status = model.status;
  if (!status) return;
  const { node } = model;
  put(node.querySelector(".serves .big"), status.serving ? figure(status.serving.number) : "–");
  const late = node.querySelector(".behind");
  put(late, behind(model));
  late.classList.toggle("warn", !status.serving || lag(model) > 2);
  const [trainer, tint] = trainerOf(status);
  const training = node.querySelector(".trainer");
  put(training, trainer === "–" ? "" : tint === "good" ? "training" : `trainer ${trainer}`);
  training.className = `trainer ${tint}`;
}

const STAGES = ["publish", "upload", "download", "serve"]; // of a version that comes from a bucket

function coming({ answered_at: answered, behind: waiting, copied }) { // how versions come from a bucket
  const words = [answered ? `Bucket answered ${ago(answered)}` : "Bucket has not answered yet"];
  if (waiting) words.push(`${many(waiting, "version")} to fetch`);
  if (copied) {
    const deltas = copied.deltas ? many(copied.deltas, "delta") : "";
    const way = copied.way === "delta" ? `as ${deltas}` : deltas ? `whole, and ${deltas}` : "whole";
    words.push(`version ${figure(copied.number)} came ${way}, ${bytes(copied.bytes)} of ${bytes(copied.size)} (${percent(copied.bytes / Math.max(copied.size, 1), 1)})`);
    words.push(STAGES.filter((one) => one in copied.stages).map((one) => `${one} ${duration(copied.stages[one])}`).join(", "));
  }
  return words.join(" · ");
}

function drawModel(model) {
  if (!model.node) build(model);
  const { node, status } = model;
  if (!status) return;
  drawHeadline(model);
  const restoring = status.restoring === null ? "" : ` · restoring ${figure(status.restoring)}${status.restored_share ? ` (${percent(status.restored_share)})` : ""}`;
  const parts = Object.entries(status.parts ?? {}).map(([name, version]) => `${name} ${figure(version?.number)}`).join(" + ");
  const choice = node.querySelector(".choice");
  const place = status.bucket?.address ?? status.store;
  const words = `${status.pinned === null ? "" : `pinned to ${figure(status.pinned)}`}|${parts ? `joined from ${parts}` : status.pinned === null ? `follows the newest in ${place}` : ` · follows ${place} once unpinned`}${status.signed_by ? ` · signed by key ${status.signed_by}` : ""}${restoring}`;
  list(choice, words, () => [make("b", { text: words.slice(0, words.indexOf("|")) }), words.slice(words.indexOf("|") + 1)]);
  const bucket = node.querySelector(".bucket");
  bucket.hidden = !status.bucket;
  if (status.bucket) put(bucket, coming(status.bucket));
  const wrong = wrongs(model);
  node.querySelector(".wrong").hidden = !wrong.length;
  list(node.querySelector(".wrong"), JSON.stringify(wrong), () => wrong.map(({ text, advice }) => make("li", {}, text.length > 300 ? `${text.slice(0, 300)}…` : text, ...(advice ? [make("p", { text: advice })] : []))));
  const joined = parts !== "";
  const may = server.actions.allowed && !joined;
  node.querySelector(".actions").hidden = !may;
  node.querySelector("[data-do=unpin]").hidden = status.pinned === null;
  const why = node.querySelector(".why");
  why.hidden = server.actions.allowed || joined || !server.actions.why;
  put(why, server.actions.why);
  drawVersions(model, may);
  drawHappened(model);
  drawErrors(model);
  drawDiff(model);
  if (status.serving && !model.described) describe(model);
  if (connection.lost === null) model.digit?.changed();
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
  $("models").append(node);
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
    const [per, p50, p99, failed] = last.versions[number] ?? [0, null, null, 0];
    const at = seen.committed_at ?? (own ? status.serving.committed_at : null);
    const value = seen.metrics?.[metric] ?? (own ? status.serving.metrics?.[metric] : undefined);
    return { number, state, labels, at, value, per, p50, p99, failed, own, reason: bad?.reason };
  });
  put(node.querySelector("th.metric"), metric ?? "");
  const body = node.querySelector(".versions tbody");
  list(body, JSON.stringify([rows.map((row) => [row.number, row.state, row.labels]), may]), () =>
    rows.map((row) => make("tr", row.own ? { class: "serving" } : {},
      make("td", { class: "n", text: figure(row.number) }),
      make("td", { class: row.own ? "" : row.reason ? "bad" : "dim", title: row.reason }, row.state, make("span", { class: "less" })),
      make("td", {}, ...row.labels.map((label) => make("span", { class: "chip" }, make("span", { text: label }),
        ...(may ? [make("button", { type: "button", "data-key": `unlabel ${label}`, "aria-label": `Take the label ${label} away`, text: "×", on: () => act(model, "unlabel", row.number, label) })] : [])))),
      ...["n dim more", "n more", "n more", "n more bad", "n more", "n more"].map((one) => make("td", { class: one })),
      make("td", { class: "acts" }, ...(may && row.state !== "gone" ? [["pin", "Pin"], ["label", "Label…"]].map(([what, word]) =>
        make("button", { type: "button", "data-key": `${what} ${row.number}`, "aria-label": `${word} version ${row.number}`, text: word, on: () => act(model, what, row.number) })) : [])))));
  for (const [at, row] of rows.entries()) { // what changes all the time, in place: nobody's click is to miss its button
    const words = [row.at ? ago(row.at) : "–", metric ? short(row.value) : "", row.per ? `${rate(row.per)}/s` : "–", row.failed ? `${rate(row.failed)}/s` : "", ...(row.per ? [duration(row.p50), duration(row.p99)] : ["–", "–"])];
    for (const [column, text] of words.entries()) put(body.children[at].children[3 + column], text);
    put(body.children[at].querySelector(".less"), words[0]);
  }
}

const latest = (model) => model.traffic.at(-1) ?? { versions: {}, rate: 0, failed: 0 };

const WORDS = { served: "serves", unlabelled: "lost the label" };

function drawHappened(model) {
  const events = [];
  for (const one of model.versions.values()) {
    if (one.served_at) events.push({ at: one.served_at, kind: "served", number: one.number, took: one.served_at - one.step_done_at });
    else if (one.committed_at && !one.quarantined_at) events.push({ at: one.committed_at, kind: "published", number: one.number });
    if (one.quarantined_at) events.push({ at: one.quarantined_at, kind: "quarantined", number: one.number, text: plain(model, one.reason) });
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
  const errors = model.happened.filter((one) => one.kind === "error").map((one) => ({ at: one.at, what: "", text: plain(model, one.text) }));
  const known = new Set();
  for (const one of model.status.quarantined) {
    known.add(one.number);
    errors.push({ at: one.since, what: `version ${figure(one.number)} was quarantined`, text: plain(model, one.reason) });
  }
  for (const one of model.versions.values())
    if (one.reason && !known.has(one.number)) errors.push({ at: one.quarantined_at, what: `version ${figure(one.number)} was quarantined`, text: plain(model, one.reason) });
  errors.sort((a, b) => b.at - a.at);
  const alike = new Map(); // the newest of those that differ in numbers alone
  for (const one of errors) {
    const key = one.text.replace(/\d+/g, "#");
    if (alike.has(key)) alike.get(key).more += 1;
    else alike.set(key, { ...one, more: 0 });
  }
  const shown = [...alike.values()].slice(0, 10);
  const part = model.node.querySelector(".errors");
  part.hidden = !shown.length;
  list(part.querySelector("ol"), JSON.stringify(shown), () =>
    shown.map((one) => make("li", {}, make("time", { text: time(one.at) }), make("span", {}, one.what, one.more ? ` (and ${figure(one.more)} alike before)` : "", make("pre", { text: one.text })))));
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
    const found = await get(`/api/diff?${new URLSearchParams({ model: model.name, old, new: now })}`);
    put(said, Object.entries(found.kinds).map(([kind, count]) => `${count} ${kind}`).join(", "));
    part.querySelector(".scroll").hidden = !found.parameters.length;
    part.querySelector("tbody").replaceChildren(...found.parameters.map((one) => make("tr", {},
      make("td", { title: one.name }, one.shown, make("span", { class: "dim", text: ` ${one.shape.join("×") || "scalar"}` })),
      make("td", { class: "n", text: one.kind !== "changed" ? one.kind : one.norm === null ? `${figure(one.changed)} values` : one.relative === null ? `${short(one.norm)}, from 0` : `${short(100 * one.relative)}\u00a0%` }),
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

function drawFleet(opened) { // the slowest first, as paramsync status has them
  const rows = server.peers.flatMap(({ address, error, models: found }) => {
    const those = Object.entries(found).filter(([name]) => !opened || name === opened.name);
    return those.length ? those.map(([name, one]) => ({ address, name, ...one })) : [{ address, name: "", error: error ?? "does not have this model" }];
  });
  const rank = (one) => ("error" in one ? -2 : Number(one.serving ?? -1));
  rows.sort((a, b) => a.name.localeCompare(b.name) || rank(a) - rank(b) || Math.floor(b.lag_seconds ?? 0) - Math.floor(a.lag_seconds ?? 0));
  $("fleet").hidden = !rows.length;
  put($("shares"), shares(rows.filter((one) => one.name)));
  list($("peers"), JSON.stringify(rows), () => rows.map((one) => make("tr", {}, make("th", { scope: "row", text: one.address }), make("td", { class: "more", text: one.name || "–" }),
    make("td", { class: "error" in one || one.reason || one.state === "damaged" ? "bad" : one.state === "serving" ? "good" : "warn", text: one.error ?? one.state }),
    make("td", { class: "n", text: one.serving == null ? "–" : `${figure(one.serving)}${one.pinned === null ? "" : " pinned"}` }),
    make("td", { class: "n", text: one.lag_seconds == null ? "–" : one.lag_seconds ? duration(one.lag_seconds) : "newest" }))));
}

function shares(rows) { // which versions serve on how many servers, and how far apart they swapped
  return [...new Set(rows.map((one) => one.name))].map((name) => [name, rows.filter((one) => one.name === name)]).map(([name, some]) => `${name}: ${[...new Set(some.map((one) => one.serving))].reverse().map((version) => {
    const on = some.filter((one) => one.serving === version);
    const late = on.map((one) => one.swap_skew_seconds).filter((one) => one !== null);
    const skew = late.length > 1 && version !== null ? `, swapped within ${duration(Math.max(...late) - Math.min(...late))}` : "";
    return `${version === null ? "no version" : `version ${figure(version)}`} on ${many(on.length, "server")} (${percent(on.length / some.length)}${skew})`;
  }).join("; ")}`).join(" · ");
}

function drawServer() {
  $("sign-in").hidden = !(server.actions.token || token());
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

// What is asked for: once more before it is done ---

const ACTS = {
  sync: () => ["Sync now", "Serve the newest published version now, where it can be. A version in quarantine is tried once more."],
  pin: ({ name }, number) => [`Pin to ${figure(number)}`, `Version ${figure(number)} serves, and stays whatever is published, until somebody unpins ${name}.`],
  unpin: () => ["Unpin", "The newest published version is followed again."],
  rollback: ({ name, status: { rollback_to: back, rollback_served: served } }) => (back === null ? ["Roll back", "There is no version to go back to."]
    : [`Roll back to ${figure(back)}`, `Version ${figure(back)}, which ${served ? "served before, serves again" : "never served here, serves"}, and stays until somebody unpins ${name}.`]),
  label: (_, number) => [`Label ${figure(number)}`, `Requests that name the label are answered from version ${figure(number)}, which stays in memory.`],
  unlabel: (_, number, label) => ["Take the label away", `Requests that name ${label} are refused from then on.`],
};
let doing = null;

function act(model, what, number, label) {
  const [title, words] = ACTS[what](model, number, label);
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
    poll();
    say(`${model.name}: done. ${status.serving ? `Version ${figure(status.serving.number)} serves` : "Nothing serves"}${status.pinned === null ? "." : ", pinned."}`);
  };
  $("ask").showModal();
  (what === "label" ? $("ask-input") : $("ask-no")).focus();
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
    keep(value);
    $("ask-input").value = "";
    poll();
  };
  $("ask").showModal();
  $("ask-input").focus();
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  for (const model of models.values()) if (model.charts) clear(model);
  draw();
});

poll();
