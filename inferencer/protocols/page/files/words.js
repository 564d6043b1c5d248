// What the page says: figures, durations, and the nodes that they stand in.

export const clock = { now: Date.now() / 1000, at: performance.now() / 1000 };
export const $ = (id) => document.getElementById(id);
export const seconds = () => performance.now() / 1000;
export const serverNow = () => clock.now + seconds() - clock.at; // the server's clock: the browser's may jump

export function duration(value) { // which no line is broken in
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const s = Math.max(0, value);
  const two = (first, one, second, other) => `${Math.floor(first)}\u00a0${one}\u00a0${Math.floor(second)}\u00a0${other}`;
  if (s < 0.0005) return `${Math.round(s * 1e6)}\u00a0µs`;
  if (s < 0.01) return `${(s * 1000).toFixed(s < 0.001 ? 2 : 1)}\u00a0ms`;
  if (s < 0.95) return `${Math.round(s * 1000)}\u00a0ms`;
  if (s < 10) return `${s.toFixed(1)}\u00a0s`;
  if (s < 60) return `${Math.floor(s)}\u00a0s`;
  if (s < 3600) return two(s / 60, "min", s % 60, "s");
  if (s < 86400) return two(s / 3600, "h", (s % 3600) / 60, "min");
  return two(s / 86400, "d", (s % 86400) / 3600, "h");
}
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}\u00a0%`;
export const figure = (value) => (typeof value === "number" ? value.toLocaleString("en-US") : String(value).replace(/\B(?=(\d{3})+$)/g, ","));
export const short = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3)
  ? value.toExponential(2) : String(Number(value.toPrecision(4))));
export const rate = (value) => (value >= 100 ? Math.round(value).toLocaleString("en-US") : String(Number((value ?? 0).toFixed(value < 10 ? 1 : 0))));
export const ago = (at) => { const s = Math.floor(serverNow() - at); return s < 1 ? "now" : s < 60 ? `${s}\u00a0s ago` : `${duration(s)} ago`; };
export const mib = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`);
export const bytes = (count) => { // in thousands
  const at = count < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3));
  const value = count / 1000 ** at;
  return `${at && value < 9.95 ? value.toFixed(1) : Math.round(value)}\u00a0${["B", "kB", "MB", "GB", "TB"][at]}`;
};
export const many = (count, what) => `${figure(count)} ${what}${count === 1 ? "" : "s"}`;
export const time = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") node.addEventListener("click", value);
    else if (name === "text") node.textContent = value;
    else if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
export function list(node, signature, build) { // built again only where it is another one
  if (node.dataset.signature === signature) return;
  const focus = node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  node.dataset.signature = signature;
  node.replaceChildren(...build());
  if (focus) [...node.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focus)?.focus();
}
