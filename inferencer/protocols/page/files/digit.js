// A field to draw a digit in, which the model answers, again whenever another version serves.

import { post } from "./calls.js";
import { figure, make, many, percent, put } from "./words.js";

export function digitOf(signature) { // the shape of the picture and the name of the scores, of a model of digits
  const inputs = Object.entries(signature?.inputs ?? {});
  const outputs = Object.entries(signature?.outputs ?? {});
  if (inputs.length !== 1) return null;
  const shape = (inputs[0][1].tensor_shape?.dim ?? []).slice(1).map((one) => one.size).join("x");
  const scores = outputs.find(([, one]) => Number(one.tensor_shape?.dim?.at(-1)?.size) === 10);
  if (!scores || !["784", "28x28", "28x28x1"].includes(shape) || inputs[0][1].dtype !== "DT_FLOAT") return null;
  return [shape, outputs.length > 1 ? scores[0] : null];
}

const STROKES = [ // of the samples, in a square of 28
  "9,8 14,5 19,8 20,14 19,20 14,23 9,20 8,14 9,8", "11,9 15,5 15,23", "9,9 13,5 18,7 18,11 9,22 20,22", "9,7 15,5 18,9 13,13 18,17 15,22 8,20",
  "16,23 16,5 8,16 20,16", "19,5 10,5 9,13 15,12 19,16 15,22 8,20", "17,5 10,12 9,19 14,23 18,19 15,14 10,16", "8,6 20,6 12,23",
  "14,13 9,9 14,5 19,9 14,13 9,18 14,23 19,18 14,13", "18,11 13,14 9,10 13,5 18,7 18,13 16,23",
];

export class Digit {
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
    if (number !== this.last && !this.blank) this.predict();
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
      const found = await post(`/v1/models/${encodeURIComponent(this.model.name)}:predict?model_spec=1`, { instances: [this.pixels()] });
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
      put(words, scores ? percent(shares[digit], 1) : "");
      bar.parentElement.classList.toggle("best", digit === best);
    }
    put(big, scores ? String(best) : "–");
    put(dim, version ? `answers version ${figure(version)}` : "");
    if (!scores) return void put(this.part.querySelector(".story"), "Draw with mouse, finger or pen; or press a digit.");
    if (version && this.story.at(-1)?.version !== version) this.story.push({ version, best, share: shares[best] });
    if (this.story.length > 200) this.story.splice(1, 1);
    const first = this.story[0];
    put(this.part.querySelector(".story"), this.story.length > 1
      ? `${many(this.story.length, "version")} answered for this drawing: from ${first.best} (${percent(first.share)}, version ${figure(first.version)}) to ${best} (${percent(shares[best])}).`
      : "It is asked again whenever another version serves.");
  }
}
