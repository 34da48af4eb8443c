// SPDX-License-Identifier: Apache-2.0
// Python in a worker: the café of the playground (cafe.py), or the desk of the programs (desk.py). Virtual time
// passes as fast as the page asks. Every message of the worker is {loading}, {failed} or {state}.
import { loadPyodide } from "./pyodide.mjs";

const SLICES = { cafe: 0.05, desk: 0.02 };
const TURN = 50; // milliseconds between two states

let python;
let world;
let slice;
let speed = 1;
let owed = 0;
let last;
let timer;
let ready;

async function start(what) {
  slice = SLICES[what];
  postMessage({ loading: "Python" });
  const library = fetch(new URL("bmq.zip", import.meta.url)).then((answer) => answer.arrayBuffer());
  python = await loadPyodide({ indexURL: new URL(".", import.meta.url).href });
  postMessage({ loading: "bmq" });
  python.unpackArchive(await library, "zip", { extractDir: "/bmq" });
  world = python.runPython(`
import asyncio, sys, warnings
asyncio._set_running_loop(None)  # Pyodide's own loop; each process of the simulation has another
sys.path.insert(0, "/bmq")
warnings.simplefilter("ignore")  # google_crc32c warns about its own speed
from ${what} import ${what === "cafe" ? "Cafe as World" : "Desk as World"}
World()
`);
  last = performance.now();
  turn();
}

function turn() {
  try {
    const now = performance.now();
    owed = Math.min(owed + ((now - last) / 1000) * speed, 20 * slice * Math.max(speed, 1));
    last = now;
    const due = Math.floor(owed / slice);
    if (due > 0) {
      owed -= due * slice;
      postMessage({ state: JSON.parse(world.advance(due)) });
    }
  } catch (error) {
    postMessage({ failed: String(error) });
    return;
  }
  timer = setTimeout(turn, TURN);
}

onmessage = async ({ data }) => {
  try {
    if (data.start) {
      ready = start(data.start);
    }
    await ready;
    if ("speed" in data) {
      speed = data.speed;
    } else if (data.call) {
      world[data.call](...data.arguments.map((each) => python.toPy(each)));
      clearTimeout(timer);
      turn();
    }
  } catch (error) {
    postMessage({ failed: String(error) });
  }
};
