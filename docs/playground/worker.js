// Runs Python and Graphviz in a worker. Requests and answers are JSON.
import { Graphviz } from "@hpcc-js/wasm-graphviz";

let answer, graphviz;

/** The SVG of DOT text that contains all positions. */
const drawn = (dot) => graphviz.layout(dot, "svg", "nop2").replace(/^[\s\S]*?(?=<svg)/, "");

async function start() {
  const say = (percent, words) => postMessage({ percent, words });
  const bytes = async (file) => {
    const response = await fetch(new URL(file, self.location));
    if (!response.ok) throw new Error(`${file}: ${response.status} ${response.statusText}`);
    return new Uint8Array(await response.arrayBuffer());
  };
  const archives = Promise.all(["libraries.zip", "package.zip"].map(bytes)); // while Python starts
  const layouts = Graphviz.load();
  say(8, "Starting Python ...");
  const home = new URL("pyodide/", self.location).href;
  const { loadPyodide } = await import(new URL("pyodide/pyodide.mjs", self.location).href);
  const python = await loadPyodide({ indexURL: home });
  say(50, "Unpacking the package ...");
  const [libraries, own] = await archives;
  python.FS.mkdirTree("/site");
  python.FS.writeFile("/libraries.zip", libraries);
  python.unpackArchive(own, "zip", { extractDir: "/site" });
  say(65, "Importing the package ...");
  python.runPython('import sys; sys.dont_write_bytecode = True; sys.path[:0] = ["/site", "/libraries.zip"]');
  answer = python.pyimport("answers").answer;
  graphviz = await layouts;
  say(100, "");
  self.setTimeout(warm, 500, 0);
}

/** Imports the modules of the other tabs one at a time, so that requests are not delayed. */
function warm(part) {
  if (answered({ want: "warm", part }).left) self.setTimeout(warm, 50, part + 1);
}

function answered(request) {
  const found = JSON.parse(answer(JSON.stringify(request)));
  for (const one of [found, ...(found.rewrites ?? [])]) if (one.dot) one.svg = drawn(one.dot);
  return found;
}

const ready = start().catch((error) => postMessage({ failed: String(error) }));

onmessage = async ({ data: { id, request } }) => {
  await ready;
  if (!answer) return;
  try {
    postMessage({ id, answer: answered(request) });
  } catch (error) {
    postMessage({ id, answer: { error: `${error}` } }); // a bug in the package: its traceback
  }
};
