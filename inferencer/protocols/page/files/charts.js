// The charts of a model, by uPlot.

import { duration, figure, list, make, put, rate, serverNow, short, time } from "./words.js";

const LANES = ["chosen", "quarantined", "serves", "restored", "published"];
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
