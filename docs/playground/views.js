// The view of an answer in each tab.
import { listing } from "./editor.js";

/** An element with children: `el("p", {class: "pale"}, "text", other)`. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value !== undefined) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A number with an SI prefix, such as 276 G, as in the tables of commands. */
export function human(number, unit = "") {
  const units = ["", " k", " M", " G", " T", " P"];
  let power = 0;
  while (Math.abs(number) >= 999.5 && power < units.length - 1) [number, power] = [number / 1000, power + 1];
  return (power ? number.toPrecision(3) : String(number)) + (units[power] || (unit && " ")) + unit;
}

/** An SVG as an element. It is parsed as XML, so that no script runs. */
export function svg(text, description) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  parsed.querySelectorAll("script, foreignObject").forEach((one) => one.remove());
  parsed.querySelectorAll("g > title").forEach((one) => one.remove()); // node names of Graphviz
  parsed.setAttribute("role", "img");
  if (description) parsed.setAttribute("aria-label", description);
  return document.importNode(parsed, true);
}

export const views = { picture, cost, plan, rewrites, torch: source, triton: source };

function picture(into, answer, { overlay, choose }) {
  const options = [["", "the diagram"], ["plan", "the plan: regions by implementation"], ["cost", "the cost: share of the work by step"]];
  const select = el("select", { id: "overlay", change: (event) => choose(event.target.value) });
  for (const [value, words] of options) select.append(new Option(words, value, false, value === overlay));
  into.append(el("p", { class: "choice" }, el("label", {}, "Show ", select)), svg(answer.svg, answer.description));
}

const COLUMNS = [
  ["MACs", "macs", ""], ["FLOPs", "flops", ""], ["elementwise", "elementwise", ""],
  ["moved", "bytes", "B"], ["live", "live_bytes", "B"], ["saved", "saved_floats", ""],
];

function cost(into, answer) {
  for (const [words, one] of [["as written", answer.written], ["as planned", answer.planned]]) {
    if (!one) continue;
    const table = el("table", { "data-cost": words }, el("tr", {}, el("th", {}, words), ...COLUMNS.map(([head]) => el("th", { class: "number" }, head))));
    for (const row of [...one.steps, { ...one.total, step: "total", fused: [] }]) {
      const name = row.fused.length ? `${row.step} (with ${row.fused.join(", ")})` : row.step;
      const cells = COLUMNS.map(([, key, unit]) => el("td", { class: "number" }, human(row[key], unit)));
      table.append(el("tr", row.step === "total" ? { class: "total" } : {}, el("td", {}, name), ...cells));
    }
    into.append(table, el("p", { class: "pale" }, `MACs of one sequence: ${one.formula}`));
  }
  const state = answer.decoding_state === null ? "no decoding cache" : `decoding cache of ${human(answer.decoding_state)} floats`;
  into.append(
    el("p", {}, `${human(answer.written.parameters)} parameters; ${state}.`),
    el("p", { class: "pale" }, "Float32, one sequence. moved: bytes read and written; live: bytes in memory during the step, and the peak in total; saved: floats saved for the backward."),
  );
}

/** A selector of the workload. */
function workloads(into, { workload, plan }) {
  const select = el("select", { id: "workload", change: (event) => plan(event.target.value) });
  for (const name of ["training", "prefill", "decoding"]) select.append(new Option(name, name, false, name === workload));
  into.append(el("p", { class: "choice" }, el("label", {}, "Plan for ", select)));
}

function plan(into, { plan: found }, choices) {
  workloads(into, choices);
  const lengths = Object.entries(found.lengths).map(([leg, size]) => `${leg} = ${size}`).join(", ");
  into.append(el("p", {}, `Planned for ${found.workload} on ${found.device}, at ${lengths || "the sizes of the design"}.`));
  for (const region of found.regions) {
    const refused = region.refused.flatMap((one) => one.against.map((reason) => el("p", { class: "pale" }, `not ${one.name}: ${reason}`)));
    const steps = region.steps.join(", ");
    into.append(
      el("div", { class: "region" }, el("p", {}, el("strong", {}, region.name), `: ${region.chosen}`),
        steps === region.name ? null : el("p", { class: "pale" }, `steps: ${steps}`),
        region.cost ? el("p", {}, `predicted: ${region.cost}`) : null, ...refused),
    );
  }
}

function rewrites(into, { rewrites: found }) {
  if (!found.length) return into.append(el("p", {}, "No rewrite applies."));
  const words = el("span"), body = el("div");
  const show = (index) => {
    const one = found[index];
    into.dataset.step = index;
    words.textContent = `${index + 1} of ${found.length}`;
    back.disabled = index === 0;
    on.disabled = index === found.length - 1;
    const names = Object.entries(one.names).map(([key, name]) => `${key} = ${name}`).join(", ");
    const lines = [...one.removed.map((line) => el("span", { class: "removed" }, `- ${line}`)), ...one.added.map((line) => el("span", { class: "added" }, `+ ${line}`))];
    body.replaceChildren(
      el("h2", {}, `${one.step}: ${one.rule}`), el("p", { class: "pale" }, `${one.group}: ${one.about}`),
      el("pre", { class: "lines" }, one.algebra), names ? el("p", { class: "pale" }, names) : "",
      el("pre", { class: "lines" }, ...lines), one.svg ? svg(one.svg) : "",
    );
  };
  const move = (by) => () => show(Number(into.dataset.step) + by);
  const back = el("button", { type: "button", click: move(-1) }, "Back");
  const on = el("button", { type: "button", click: move(1) }, "Next");
  into.append(el("div", { class: "rewrite" }, back, on, words), body);
  show(0);
}

function source(into, answer, choices) {
  workloads(into, choices);
  const code = el("div");
  into.append(code);
  listing(code, answer.source, choices.dark);
}
