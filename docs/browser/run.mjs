// SPDX-License-Identifier: Apache-2.0
// Run buttons: below each program of a page that needs bmq and the standard library alone. Python is loaded by the
// first click. The programs of a page share a broker at tcp://localhost:30114, as if it ran in another terminal.

const RUNS = /\b(?:bmq|asyncio)\.run\(/;
const IMPORT = /^(?:from|import) +([\w.]+)/gm;
const KNOWN = new Set(
  ("__future__ argparse asyncio collections contextlib dataclasses datetime enum functools itertools json logging " +
    "math operator random re secrets statistics string sys time typing uuid bmq").split(" "),
);
const ABSENT = /bmq\.(?:blocking|spark|arrow|admin|console|inbox|otel)|BMQ_BROKER|(?:post|write)_table|uvloop/;
const MOST_TEXT = 20000; // characters of output that stay visible

let worker;
let failure;
const desks = new Map();

/** The programs of the page: their text, file name and place. */
function programs() {
  const found = [];
  for (const block of document.querySelectorAll(".md-typeset .language-python.highlight")) {
    const code = block.querySelector("code");
    const title = block.querySelector(".filename")?.textContent ?? "program.py";
    if (code !== null) {
      found.push({ block, title, text: code.textContent });
    }
  }
  return found;
}

/** The files that a program imports, by name; undefined if one of them is not on the page. */
function needs(text, files) {
  const needed = {};
  for (const [, path] of text.matchAll(IMPORT)) {
    const name = path.split(".")[0];
    if (KNOWN.has(name)) {
      continue;
    }
    const file = files.get(`${name}.py`);
    const further = file === undefined ? undefined : needs(file, files);
    if (further === undefined) {
      return undefined;
    }
    Object.assign(needed, further, { [`${name}.py`]: file });
  }
  return ABSENT.test(text) ? undefined : needed;
}

/** The arguments that the page gives a program in its first command line. */
function usual(title) {
  for (const code of document.querySelectorAll(".md-typeset .language-console code")) {
    const match = code.textContent.match(new RegExp(`^\\$ python ${title.replace(".", "\\.")}(.*)$`, "m"));
    if (match) {
      return match[1].trim();
    }
  }
  return "";
}

function send(message) {
  if (worker === undefined) {
    worker = new Worker(new URL("worker.mjs", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => hear(data);
    worker.onerror = (event) => hear({ failed: event.message || "the browser cannot run Python here" });
    worker.postMessage({ start: "desk" });
  }
  worker.postMessage(message);
}

function hear(data) {
  for (const [key, desk] of desks) {
    if (data.loading && desk.wanted) {
      desk.status.textContent = `loading ${data.loading}…`;
    } else if (data.failed) {
      failure = data.failed;
      desk.status.textContent = "";
      desk.show(`${failure}\n`);
    } else if (data.state?.[key]) {
      const { text, running } = data.state[key];
      if (desk.wanted) {
        desk.show(text);
        desk.status.textContent = running ? "running" : "ended";
        desk.button.textContent = running ? "Stop" : "Run again";
        desk.running = running;
      }
    }
  }
}

function add({ block, title, text }, key, files) {
  const bar = document.createElement("div");
  bar.className = "bmq-run";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "md-button";
  button.textContent = "Run";
  button.title = `Run ${title} in this page, beside an embedded broker`;
  const status = document.createElement("span");
  status.setAttribute("role", "status");
  bar.append(button);
  let line;
  if (/sys\.argv|argparse/.test(text)) {
    line = document.createElement("input");
    line.value = usual(title);
    line.setAttribute("aria-label", `arguments of ${title}`);
    bar.append(line);
  }
  bar.append(status);
  const output = document.createElement("pre");
  output.hidden = true;
  output.tabIndex = 0;
  output.setAttribute("aria-label", `output of ${title}`);
  block.append(bar, output);
  const desk = {
    button,
    status,
    wanted: false,
    running: false,
    show(more) {
      if (more) {
        const down = output.scrollTop + output.clientHeight >= output.scrollHeight - 4;
        output.textContent = (output.textContent + more).slice(-MOST_TEXT);
        if (down) {
          output.scrollTop = output.scrollHeight;
        }
      }
    },
  };
  desks.set(key, desk);
  button.addEventListener("click", () => {
    if (desk.running) {
      send({ call: "stop", arguments: [key] });
      return;
    }
    if (failure !== undefined) {
      worker?.terminate();
      worker = failure = undefined;
    }
    desk.wanted = true;
    output.hidden = false;
    output.textContent = "";
    status.textContent = "loading…";
    send({ call: "run", arguments: [key, text, title, line?.value ?? "", files] });
  });
}

const all = programs();
const texts = new Map(all.filter(({ title }) => title !== "program.py").map(({ title, text }) => [title, text]));
all.forEach((program, number) => {
  const files = RUNS.test(program.text) ? needs(program.text, texts) : undefined;
  if (files !== undefined) {
    add(program, `${number}`, files);
  }
});

if (document.getElementById("playground") !== null) {
  import("./playground.mjs");
}
