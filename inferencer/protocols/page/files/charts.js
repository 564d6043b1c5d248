// The charts of a model, by uPlot.

import { duration, figure, list, make, put, rate, serverNow, short, time } from "./words.js";

const LANES = ["chosen", "quarantined", "serves", "restored", "published"];
const LANE_TINTS = ["warn", "bad", "accent", "good", "dim"];
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 432000];
const STEPS = [...[-6, -5, -4, -3, -2, -1].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power)), ...SECONDS];
let colours = {};
export function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(["ink", "dim", "line", "accent", "good", "warn", "bad", "shade"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
readColours();

export function clear(model) { // they are drawn anew, where they are drawn
  for (const chart of Object.values(model.charts)) {
    chart.plot?.destroy();
    chart.plot = null;
  }
}

const clockTime = (splits, span) => splits.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB", span < 600 ? {} : { hour: "2-digit", minute: "2-digit" }));
const tick = (value) => (value ? duration(value).replace(/\.0+(?=\u00a0)|\u00a00\u00a0\w+$/, "") : "0"); // "2 min", not "2 min 0 s"; "2 s", not "2.0 s"
const DURATIONS = { incrs: STEPS, values: (_, splits) => splits.map(tick) };
const fromZero = (least) => ({ range: (_, low, high) => [0, Math.max(least, (high || 0) * 1.1)] });

function widest(plot, values, axis, cycle) { // as wide as its labels are
  if (cycle > 1) return plot.axes[axis]._size;
  const longest = (values ?? []).reduce((most, one) => (one.length > most.length ? one : most), "");
  plot.ctx.font = plot.axes[axis].font[0];
  return Math.max(34, Math.ceil(plot.ctx.measureText(longest).width / devicePixelRatio) + 14);
}

function show(chart, data, options) { // options are read where there is no plot yet, or one of another kind
  const one = chart;
  if (!window.uPlot) return;
  const height = options.height ?? 130;
  if (one.plot && one.kind !== options.kind) {
    one.plot.destroy();
    one.plot = null;
  }
  one.kind = options.kind;
  if (!one.plot) {
    const axis = { stroke: colours.dim, font: "12px system-ui, sans-serif", grid: { stroke: colours.line, width: 1 }, ticks: { show: false }, size: widest, gap: 6 };
    const x = options.x ?? { values: (_, splits) => clockTime(splits, splits.at(-1) - splits[0]), space: 90, incrs: STEPS };
    const place = make("div");
    one.figure.append(place);
    one.plot = new window.uPlot({
      width: Math.max(100, place.clientWidth), height, padding: [12, 30, 0, 0],
      scales: { x: { time: false }, ...options.scales },
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      axes: [{ ...axis, size: 26, ...x }, { ...axis, space: 24, ...options.y }],
      series: [{}, ...options.series], bands: options.bands,
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
  const keys = options.keys.filter(Boolean);
  list(one.figure.querySelector(".keys"), JSON.stringify(keys), () => keys.map(([form, text]) => make("li", form ? { class: form } : {}, text)));
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
export function metricOf(model) {
  const names = metricsOf(model);
  return names.includes(model.metric) ? model.metric : names[0];
}

export function plot(model) {
  if (!model.status || !model.node) return;
  const versions = [...model.versions.values()].sort((a, b) => a.number - b.number);
  plotTimeline(model, versions);
  plotMetric(model, versions);
  const samples = model.traffic;
  const x = samples.map((one) => one.at);
  const when = (at, pointed) => (pointed ? `${time(samples[at].at)}  ` : "");
  show(model.charts.freshness, [x, ...envelope(samples), samples.map((one) => one.behind)], {
    series: [line("accent"), line("accent"), line("warn")],
    bands: [{ series: [2, 1], fill: colours.shade }],
    scales: { y: fromZero(1) },
    y: DURATIONS,
    keys: [["accent", "age, lowest to highest"], ["warn", "a newer one waits"]],
    words: (at, pointed) => `${when(at, pointed)}${samples[at].age === null ? "nothing serves" : `${duration(samples[at].age)} since its step`}${samples[at].behind ? `, ${duration(samples[at].behind)} behind` : ""}`,
  });
  const apart = steady(samples);
  const failed = samples.some((one) => one.failed);
  const tints = ["good", "warn", "dim"];
  show(model.charts.rate, [x, samples.map((one) => one.rate), samples.map((one) => (failed ? one.failed : null)), ...apart.map((number) => samples.map((one) => one.versions[number]?.[0] ?? null))], {
    kind: apart.join(),
    series: [line("accent", { fill: colours.shade }), line("bad"), ...apart.map((_, at) => line(tints[at], { dash: [5, 3] }))],
    scales: { y: fromZero(1) },
    y: { values: (_, splits) => splits.map(rate) },
    keys: [["accent", "answered"], failed && ["bad", "failed"], ...apart.map((number, at) => [`${tints[at]} dash`, `version ${figure(number)}`])],
    words: (at, pointed) => [pointed ? time(samples[at].at) : "", `${rate(samples[at].rate)}/s`, samples[at].failed ? `${rate(samples[at].failed)}/s failed` : "",
      ...apart.map((number) => `${figure(number)}: ${rate(samples[at].versions[number]?.[0] ?? 0)}/s`)].filter(Boolean).join("  "),
  });
  const busiest = samples.map((one) => Object.entries(one.versions).reduce((best, next) => (next[1][0] > (best?.[1][0] ?? 0) ? next : best), null));
  show(model.charts.latency, [x, busiest.map((one) => one?.[1][1] ?? null), busiest.map((one) => one?.[1][2] ?? null)], {
    series: ["accent", "warn"].map((tint) => line(tint, { points: { show: true, size: 3, stroke: colours[tint], fill: colours[tint] } })), // lone ones too
    scales: { y: fromZero(0.001) },
    y: DURATIONS,
    keys: [["accent", "p50"], ["warn", "p99"]],
    words: (at, pointed) => (busiest[at] ? `${when(at, pointed)}p50 ${duration(busiest[at][1][1])}, p99 ${duration(busiest[at][1][2])} of version ${figure(busiest[at][0])}` : "no requests"),
  });
}

function envelope(samples) { // the lowest and the highest age around each sample: between two, it rises and falls
  const near = samples.length ? (samples.at(-1).at - samples[0].at) / 80 : 0;
  let from = 0;
  const ends = samples.map((one, at) => {
    while (from < at - 1 && samples[from].at < one.at - near) from += 1;
    let to = at + 1;
    while (to < samples.length && samples[to].at <= one.at + near) to += 1;
    const some = samples.slice(from, Math.max(to, at + 2)).filter((other) => other.age !== null);
    if (one.age === null || some.every((other) => (other.age_low ?? other.age) === (other.age_high ?? other.age))) return [one.age, one.age]; // it only rises
    return [Math.min(...some.map((other) => other.age_low ?? other.age)), Math.max(...some.map((other) => other.age_high ?? other.age))];
  });
  return [ends.map((one) => one[0]), ends.map((one) => one[1])];
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
  let whole = versions.length - 1; // of older ones some were left out, which bars would show as slower
  while (whole > 0 && versions[whole].nth - versions[whole - 1].nth === 1) whole -= 1;
  const from = whole > 0 ? (versions[whole].committed_at ?? -Infinity) : -Infinity;
  const seen = events.filter((one) => one[0] >= from).sort((a, b) => a[0] - b[0]);
  const chart = model.charts.timeline;
  Object.assign(chart, { seen, bucket: bucketOf(chart, seen) });
  show(chart, [seen.map((one) => one[0]), ...LANES.map((_, lane) => seen.map((one) => (one[1] === lane ? lane : null)))], {
    height: 140,
    series: LANES.map((_, lane) => ({ paths: () => null, stroke: colours[LANE_TINTS[lane]], points: { show: false } })),
    scales: { x: { time: false, range: (_, low, high) => [Math.min(low ?? high, high - 20), Math.max(high ?? 0, serverNow())] }, y: { range: [-0.6, 4.6] } },
    y: { splits: [0, 1, 2, 3, 4], values: () => LANES },
    draw: (plot) => drawLanes(chart, plot),
    keys: [chart.bucket && ["", `bars: versions in ${tick(chart.bucket)}`]],
    words: (at) => `${time(seen[at][0])}  ${seen[at][2] === null ? "" : figure(seen[at][2])} ${seen[at][3] ?? LANES[seen[at][1]]}`,
  });
}

function bucketOf(chart, seen) { // seconds that one bar stands for, where dots would lie on each other
  const most = Math.max(...[2, 3, 4].map((lane) => seen.filter((one) => one[1] === lane).length));
  const columns = ((chart.plot?.width ?? 1000) - 110) / 9;
  if (most < columns) return null;
  const span = serverNow() - seen[0][0];
  return SECONDS.find((one) => one >= span / columns) ?? SECONDS.at(-1);
}

function drawLanes(chart, plot) {
  const { ctx, bbox } = plot;
  const x = (at) => Math.round(plot.valToPos(at, "x", true));
  const space = plot.valToPos(0, "y", true) - plot.valToPos(1, "y", true);
  ctx.save();
  for (const [lane, tint] of LANE_TINTS.entries()) {
    const events = chart.seen.filter((one) => one[1] === lane);
    const y = plot.valToPos(lane, "y", true);
    ctx.fillStyle = colours[tint];
    if (lane > 1 && chart.bucket) {
      const counts = new Map();
      for (const [at] of events) counts.set(Math.floor(at / chart.bucket), (counts.get(Math.floor(at / chart.bucket)) ?? 0) + 1);
      const most = Math.max(...counts.values());
      for (const [at, count] of counts) {
        const left = Math.max(bbox.left, x(at * chart.bucket));
        const height = Math.max(2, 0.76 * space * count / most);
        ctx.fillRect(left, y + 0.4 * space - height, Math.max(1, Math.min(x((at + 1) * chart.bucket), bbox.left + bbox.width) - left - devicePixelRatio), height);
      }
    } else {
      for (const [at] of events) {
        ctx.beginPath();
        ctx.arc(x(at), y, (lane < 2 ? 4.5 : 3) * devicePixelRatio, 0, 2 * Math.PI);
        ctx.fill();
      }
    }
  }
  ctx.restore();
}

function decades(low, high) { // 1, 2, 5, 10 and so on; 1, 10, 100 where these are many
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    for (const one of high / low > 1000 ? [1] : [1, 2, 5]) found.push(Number(`${one}e${power}`));
  return found.filter((one) => one >= low && one <= high);
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
  const values = seen.map((one) => one.metrics[metric]);
  const low = Math.min(...values);
  const log = low > 0 && Math.max(...values) / low >= 5; // what falls by far is flat on a linear scale
  const bad = seen.map((one) => (one.reason ? one.metrics[metric] : null));
  chart.serving = model.status.serving;
  show(chart, [seen.map((one) => Number(one.step)), values, bad], {
    kind: `${metric} ${log} ${seen.length < 30}`,
    series: [line("accent", { points: { show: seen.length < 30, size: 4 } }), { paths: () => null, points: { show: true, size: 9, stroke: colours.bad, fill: colours.bad } }],
    scales: log ? { y: { distr: 3, range: (_, least, most) => [least / 1.2, most * 1.2] } } : {},
    x: { values: (_, splits) => splits.map((one) => figure(one)) },
    y: { values: (_, splits) => splits.map(short), ...(log ? { splits: (_, axis, least, most) => decades(least, most), filter: (_, splits) => splits } : {}) },
    keys: [["accent", `${metric} by step${log ? ", log scale" : ""}`], bad.some((one) => one !== null) && ["bad dot", "quarantined"], chart.serving && ["good", "serves"]],
    draw: (plot) => {
      if (!chart.serving) return;
      const { ctx, bbox } = plot;
      const at = Math.round(plot.valToPos(Number(chart.serving.step), "x", true));
      if (at < bbox.left || at > bbox.left + bbox.width) return;
      ctx.save();
      ctx.fillStyle = colours.good;
      ctx.fillRect(at - devicePixelRatio, bbox.top, 2 * devicePixelRatio, bbox.height);
      ctx.restore();
    },
    words: (at) => `${metric} ${short(seen[at].metrics[metric])} at step ${figure(seen[at].step)}, version ${figure(seen[at].number)}`,
  });
}
