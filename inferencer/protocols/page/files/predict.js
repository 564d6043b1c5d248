// A form to ask a model in: a field for each input of a signature, with an example of its shape and dtype.

import { get, post } from "./calls.js";
import { Digit, digitOf } from "./digit.js";
import { duration, figure, make, put } from "./words.js";

const MOST = 20000; // elements of an example, and characters of an answer that are shown
const WORDS = { DT_STRING: "text", DT_BOOL: false };
const DTYPES = { DT_HALF: "float16", DT_FLOAT: "float32", DT_DOUBLE: "float64" };
const pathOf = (model) => `/v1/models/${encodeURIComponent(model.name)}`;
const sizesOf = (input) => (input.tensor_shape?.dim ?? []).map((one) => Number(one.size));

export async function describe(model) {
  model.described = true;
  try {
    const signatures = (await get(`${pathOf(model)}/metadata`)).metadata.signature_def.signature_def;
    const digit = digitOf(signatures.serving_default);
    if (digit) model.digit = new Digit(model, ...digit);
    form(model, signatures, Boolean(digit));
  } catch { // asked again, such as while it is not answered from yet
    setTimeout(() => { model.described = false; }, 5000);
  }
}

function example({ dtype, tensor_shape: shape }, sizes) {
  if (shape?.unknown_rank) return [WORDS[dtype] ?? 0];
  if (sizes.reduce((count, size) => count * Math.max(1, size), 1) > MOST) return undefined;
  return sizes.reduceRight((inner, size) => Array(Math.max(1, size)).fill(inner), WORDS[dtype] ?? 0);
}

function form(model, signatures, folded) {
  const part = model.node.querySelector(".try");
  part.hidden = false;
  part.querySelector("details").open = !folded;
  const [select] = part.getElementsByTagName("select");
  const names = Object.keys(signatures).sort((a, b) => (b === "serving_default") - (a === "serving_default") || (a < b ? -1 : 1));
  select.append(...names.map((name) => make("option", { value: name, text: name })));
  select.parentElement.hidden = names.length < 2;
  const ask = () => fields(part.querySelector(".inputs"), signatures[select.value].inputs);
  select.addEventListener("change", ask);
  ask();
  part.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    predict(model, part, select.value);
  });
}

function fields(place, inputs) {
  place.replaceChildren(...Object.entries(inputs).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, input]) => {
    const sizes = sizesOf(input);
    const value = example(input, sizes);
    const text = value === undefined ? "" : JSON.stringify(value).replaceAll(",", ", ");
    const shape = input.tensor_shape?.unknown_rank ? "of any shape" : sizes.length ? `[${sizes.map((one) => (one < 0 ? "any" : one)).join(", ")}]` : "scalar";
    const field = make("textarea", { name, rows: text.length > 80 ? 4 : 1, spellcheck: "false", placeholder: text ? "" : "JSON of this shape, which is too large for an example" });
    field.value = text;
    return make("label", {}, make("b", { text: name }), make("span", { class: "dim", text: ` ${DTYPES[input.dtype] ?? input.dtype.slice(3).toLowerCase()} ${shape}` }), field);
  }));
}

async function predict(model, part, signature) {
  const said = part.querySelector("[role=status]");
  const shown = part.querySelector("pre");
  const inputs = {};
  said.className = "bad";
  for (const field of part.querySelectorAll("textarea")) {
    try {
      inputs[field.name] = JSON.parse(field.value);
    } catch (error) {
      field.focus();
      return void put(said, `${field.name}: ${error.message}`);
    }
  }
  const began = performance.now();
  try {
    const found = await post(`${pathOf(model)}:predict?model_spec=1`, { signature_name: signature, inputs });
    const text = JSON.stringify(found.outputs, null, 1).replace(/\[[^[\]{}]*\]/g, (row) => row.replace(/\s+/g, " ")); // a row in a line
    said.className = "dim";
    put(said, `version ${figure(found.model_spec?.version ?? "–")} answered in ${duration((performance.now() - began) / 1000)}`);
    put(shown, text.length > MOST ? `${text.slice(0, MOST)}…` : text);
    shown.hidden = false;
  } catch (error) {
    shown.hidden = true;
    put(said, error.message);
  }
}
