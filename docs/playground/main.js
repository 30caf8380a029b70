// The page: an editor on the left, views of the design on the right, and a worker that runs Python.
import { editor } from "./editor.js";
import { read, written } from "./share.js";
import { el, views } from "./views.js";

const PAUSE = 120; // debounce delay in milliseconds
const IDLE = 800;
const DEFAULT = "thsa";
const LENGTHS = Array.from({ length: 18 }, (_, power) => 2 ** power);
const SIZES = LENGTHS.slice(0, 14);
const find = (selector) => document.querySelector(selector);

const [designs, schema] = await Promise.all(["designs.json", "schema.json"].map(async (file) => (await fetch(file)).json()));
const texts = new Map(designs.map((one) => [one.name, one.text]));
const shared = await read(location.hash).catch(() => ({ sizes: {} }));
const state = {
  sizes: shared.sizes, // by slider: n, m, and legs whose size differs from the file
  tab: shared.tab in views ? shared.tab : "picture",
  written: {}, // the size of each leg in the file
  overlay: "",
  workload: "training",
};

// -- Python in a worker ------------------------------------------------------------------------------------------------
const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
let asked = 0;
const ask = (request) => new Promise((resolve) => {
  waiting.set(++asked, resolve);
  worker.postMessage({ id: asked, request });
});
worker.onmessage = ({ data: { id, answer, percent, words, failed } }) => {
  if (id) {
    waiting.get(id)(answer);
    waiting.delete(id);
  } else if (failed) {
    say(`Python did not start: ${failed}. Reload the page.`);
  } else {
    find("#bar").value = percent;
    find("#bar").classList.toggle("done", percent === 100);
    say(words);
  }
};
worker.onerror = (event) => say(`The worker did not start: ${event.message ?? "see the console"}.`);
const say = (words) => (find("#status").textContent = words);

// -- updates: one at a time, always with the newest state ----------------------------------------------------------------
let busy = false, again = false, timer, later;
const soon = (pause = PAUSE) => {
  clearTimeout(timer);
  clearTimeout(later);
  timer = setTimeout(update, pause);
};

async function update() {
  if (busy) return void (again = true);
  busy = true;
  const began = performance.now();
  await look().catch((error) => say(String(error)));
  document.body.dataset.updated = Math.round(performance.now() - began); // milliseconds, for tests
  busy = false;
  if (again) {
    again = false;
    update();
  } else later = setTimeout(lookFurther, IDLE);
}

/** Checks `contains` when typing pauses, because this takes as long as all other checks together. */
async function lookFurther() {
  const own = text.text();
  const { problems: found } = await ask({ want: "contains", text: own, legs: legsOnly() });
  if (found && text.text() === own) problems(found);
}

async function look() {
  const { n, m } = state.sizes;
  const request = { text: text.text(), legs: legsOnly(), theme: dark() ? "dark" : "light", n, m, workload: state.workload };
  const overlay = state.tab === "picture" && state.overlay ? { overlay: state.overlay } : {};
  const checked = await ask({ want: "check", ...request, ...overlay });
  problems(checked.problems ?? [], checked.error);
  const view = find("#view");
  view.classList.toggle("stale", !checked.svg);
  if (!checked.svg) {
    if (view.dataset.tab !== state.tab) view.replaceChildren(el("p", {}, "Fix the problems of the design to see this view."));
    return;
  }
  sliders(checked.legs);
  const wants = { torch: { want: "source", backend: "torch" }, triton: { want: "source", backend: "triton" } };
  const found = state.tab === "picture" ? checked : await ask({ ...(wants[state.tab] ?? { want: state.tab }), ...request });
  if (found.problems && state.tab !== "picture") return problems(found.problems);
  show(found);
}

function legsOnly() {
  const { n, m, ...legs } = state.sizes;
  return legs;
}

function show(found) {
  const into = el("div");
  if (found.error) into.append(el("pre", { class: "lines" }, found.error));
  else views[state.tab](into, found, choices());
  find("#view").replaceChildren(into);
  find("#view").dataset.tab = state.tab;
}

const chosen = (name) => (value) => {
  state[name] = value;
  soon(0);
};
const choices = () => ({ ...state, dark: dark(), choose: chosen("overlay"), plan: chosen("workload") });

function problems(found, error) {
  text.mark(found.filter((one) => one.line));
  const shown = found.map((one) => el("pre", { class: one.severity, click: () => text.go(one) }, one.text));
  if (error) shown.push(el("pre", {}, error));
  find("#problems").replaceChildren(...shown);
}

// -- sliders -----------------------------------------------------------------------------------------------------------
function sliders(found) {
  // Keep the file's size of a leg that a slider has set; otherwise, the next answer would end a drag.
  for (const { name, size } of found) if (!(name in state.sizes)) state.written[name] = size;
  const legs = found.map((one) => ({ ...one, size: state.written[one.name] }));
  const same = JSON.stringify(legs);
  const panel = find("#sliders");
  if (panel.dataset.legs === same) return;
  panel.dataset.legs = same;
  panel.replaceChildren(...legs.map(slider));
}

function slider({ name, leg, size, most, sequence }) {
  const steps = [...new Set([...(sequence ? LENGTHS : SIZES), ...(size ? [size] : []), ...(most ? [most] : [])])]
    .filter((step) => !most || step <= most).sort((a, b) => a - b);
  const nearest = (value) => steps.findLastIndex((step) => step <= value);
  const own = size ?? Math.min(1024, most ?? 1024);
  const start = state.sizes[name] ?? own;
  const output = el("output", {}, name === "m" && !state.sizes.m ? "= n" : String(start));
  const input = el("input", {
    type: "range", min: 0, max: steps.length - 1, value: nearest(start), "data-leg": name,
    input: () => {
      const chosen = steps[input.value];
      if (chosen === size) delete state.sizes[name];
      else state.sizes[name] = chosen;
      output.textContent = chosen;
      soon(30);
    },
    dblclick: () => {
      delete state.sizes[name];
      input.value = nearest(own);
      output.textContent = name === "m" ? "= n" : String(own);
      soon(0);
    },
  });
  const words = sequence ? `Length of the ${name === "n" ? "query" : "key"} leg '${leg}'` : `Size of leg '${leg}'`;
  return el("label", { title: `${words}. Double-click to reset.` }, el("span", {}, sequence && leg !== name ? `${name} (${leg})` : leg), input, output);
}

// -- the header --------------------------------------------------------------------------------------------------------
const preferred = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (find("#theme").value === "auto" ? preferred.matches : find("#theme").value === "dark");
function themed() {
  document.documentElement.dataset.theme = dark() ? "dark" : "light";
  text.dark(dark());
  soon(0);
}

const families = Map.groupBy ? Map.groupBy(designs, (one) => one.family) : new Map([["designs", designs]]);
find("#designs").append(new Option("your own", ""));
for (const [family, members] of families)
  find("#designs").append(el("optgroup", { label: family }, ...members.map(({ name, about }) => el("option", { value: name, title: about }, name))));
find("#designs").onchange = ({ target }) => {
  if (!target.value) return;
  state.sizes = {};
  delete find("#sliders").dataset.legs;
  text.set(texts.get(target.value));
  history.replaceState(null, "", location.pathname);
};
find("#theme").onchange = themed;
preferred.onchange = themed;
find("#share").onclick = async () => {
  const own = text.text();
  const design = designs.find((one) => one.text === own)?.name;
  history.replaceState(null, "", await written({ design, text: own, tab: state.tab, sizes: state.sizes }));
  const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  say(copied ? "The address is copied to the clipboard." : "The address bar contains the design.");
};
window.onhashchange = () => location.reload(); // the address has another design
const tabs = [...document.querySelectorAll("[role=tab]")];
function tab(name) {
  state.tab = name;
  for (const one of tabs) one.setAttribute("aria-selected", one.dataset.tab === name);
  soon(0);
}
for (const one of tabs) one.onclick = () => tab(one.dataset.tab);

// -- the first paint needs no Python -----------------------------------------------------------------------------------
const first = shared.text ?? texts.get(shared.design) ?? texts.get(DEFAULT);
const named = (own) => (find("#designs").value = designs.find((one) => one.text === own)?.name ?? "");
const text = editor(find("#editor"), {
  text: first, schema, dark: dark(),
  changed: (own) => {
    named(own);
    soon();
  },
});
named(first);
document.documentElement.dataset.theme = dark() ? "dark" : "light";
tab(state.tab);
