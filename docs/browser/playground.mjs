// SPDX-License-Identifier: Apache-2.0
// The playground: draws the café of cafe.py, and sends it the clicks.

const NAMES = { shop: "shop", bar: "bar", kitchen: "kitchen" };
const STATES = { STARTING: "connecting", STARTED: "connected", RECONNECTING: "reconnecting", DRAINING: "closing" };
const BOOKS = [
  ["posted", "orders posted by the shop"],
  ["acknowledged", "stored by the broker, and the shop knows it"],
  ["stored", "in the broker now: waiting, or held by a consumer"],
  ["handled", "prepared and confirmed by the bar or the kitchen"],
  ["twice", "prepared twice: a consumer was cut off or killed before its confirmation arrived"],
  ["lost", "acknowledged, and gone"],
];
const MOST_LINES = 200;
const DOTS = 4; // at most, for each link and state

const place = document.getElementById("playground");
const narrow = matchMedia("(max-width: 46em)");
const still = matchMedia("(prefers-reduced-motion: reduce)");
let worker;
let before;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function button(text, action) {
  const made = element("button", { type: "button", className: "md-button", textContent: text });
  made.addEventListener("click", action);
  return made;
}

const tell = (verb, name, value) => worker.postMessage({ call: "command", arguments: [verb, name, value] });

/** A box for the broker or a program, with a button that kills it or starts it. */
function box(name, title) {
  const state = element("p", { className: "state" });
  const detail = element("p", { className: "detail" });
  const kill = button("Kill", () => tell("kill", name, kill.dataset.up === "true"));
  const root = element("section", { className: "box" }, element("h3", { textContent: title }), state, detail, kill);
  root.setAttribute("aria-label", title);
  return {
    root,
    draw(up, text, more) {
      root.dataset.state = up ? text : "stopped";
      state.textContent = up ? text : "stopped";
      detail.textContent = more;
      kill.dataset.up = String(up);
      kill.textContent = up ? "Kill" : "Start";
      kill.setAttribute("aria-label", `${up ? "Kill" : "Start"} the ${title}`);
    },
  };
}

/** The link between a program and the broker; a click cuts or repairs it. */
function link(name) {
  const label = element("span", { className: "label" });
  const root = element("button", { type: "button", className: "link" }, label);
  root.addEventListener("click", () => tell("cut", name, root.getAttribute("aria-pressed") !== "true"));
  return {
    root,
    draw(cut) {
      root.setAttribute("aria-pressed", String(cut));
      label.textContent = cut ? "repair" : "cut";
      root.setAttribute("aria-label", `${cut ? "repair" : "cut"} the link of the ${NAMES[name]}`);
    },
    send(number) {
      for (let each = 0; each < Math.min(number, DOTS) && !still.matches; each++) {
        const dot = element("i");
        root.append(dot);
        const side = narrow.matches ? "top" : "left";
        const moves = [{ [side]: "0%" }, { [side]: "100%" }];
        dot.animate(moves, { duration: 500, delay: each * 60, fill: "backwards" }).finished.then(() => dot.remove());
      }
    },
  };
}

/** The expression of a consumer, its speed, and its window. */
function consumer(name) {
  const part = box(name, NAMES[name]);
  const input = element("input", { spellcheck: false });
  input.setAttribute("aria-label", `expression of the ${name}`);
  input.addEventListener("change", () => tell("expression", name, input.value));
  const error = element("pre", { className: "error" });
  error.setAttribute("role", "alert");
  const slow = element("input", { type: "checkbox" });
  slow.addEventListener("change", () => tell("slow", name, slow.checked));
  part.root.append(element("label", {}, "takes ", input), error, element("label", {}, slow, " slow"));
  return {
    ...part,
    draw(program, state) {
      const held = `${state.handled} prepared, holds ${state.held} of at most ${state.window}`;
      part.draw(program.up, STATES[program.session] ?? "", held);
      if (document.activeElement !== input && !state.error) {
        input.value = state.expression;
      }
      error.textContent = state.error;
    },
  };
}

function build() {
  const parts = {
    shop: box("shop", "shop"),
    broker: box("broker", "broker"),
    bar: consumer("bar"),
    kitchen: consumer("kitchen"),
    links: { shop: link("shop"), bar: link("bar"), kitchen: link("kitchen") },
  };
  const scene = element("div", { className: "scene" });
  for (const [area, part] of [
    ["shop", parts.shop],
    ["l1", parts.links.shop],
    ["broker", parts.broker],
    ["l2", parts.links.bar],
    ["bar", parts.bar],
    ["l3", parts.links.kitchen],
    ["kitchen", parts.kitchen],
  ]) {
    part.root.style.gridArea = area;
    scene.append(part.root);
  }
  const post = element("input", { type: "checkbox", checked: true });
  post.addEventListener("change", () => tell("post", "", post.checked));
  const rate = element("input", { type: "range", min: 1, max: 50, value: 6 });
  const shown = element("output", { textContent: "6" });
  rate.addEventListener("input", () => {
    shown.textContent = rate.value;
    tell("rate", "", Number(rate.value));
  });
  const speed = element("select");
  for (const [value, text] of [[0, "stopped"], [0.25, "a quarter"], [1, "normal"], [4, "four times"]]) {
    speed.append(element("option", { value, textContent: text, selected: value === 1 }));
  }
  speed.addEventListener("change", () => worker.postMessage({ speed: Number(speed.value) }));
  const clock = element("span", { className: "clock" });
  const controls = element(
    "div",
    { className: "controls" },
    element("label", {}, post, " the shop posts"),
    element("label", {}, rate, " ", shown, " orders a second"),
    element("label", {}, "time: ", speed),
    clock,
  );
  const books = element("table", { className: "books" });
  const cells = {};
  for (const [name, meaning] of BOOKS) {
    cells[name] = element("td");
    const row = element("tr", {}, element("th", { scope: "row", textContent: name }), cells[name]);
    row.append(element("td", { textContent: meaning }));
    books.append(row);
  }
  const verdict = element("p", { className: "verdict" });
  verdict.setAttribute("role", "status");
  const log = element("pre", { className: "log", tabIndex: 0 });
  log.setAttribute("aria-label", "log of the programs");
  place.replaceChildren(scene, controls, books, verdict, log);
  return { parts, clock, cells, verdict, log, lines: [] };
}

function draw(page, state) {
  const { parts } = page;
  const { books } = state;
  const shop = state.programs.shop;
  const waiting = books.posted - books.acknowledged;
  parts.shop.draw(shop.up, STATES[shop.session] ?? "", `${books.posted} posted, ${waiting} not yet acknowledged`);
  parts.broker.draw(state.broker, "running", `${books.stored} orders`);
  for (const name of ["bar", "kitchen"]) {
    parts[name].draw(state.programs[name], state.consumers[name]);
  }
  for (const [name, each] of Object.entries(parts.links)) {
    each.draw(state.cut.includes(name));
  }
  if (before !== undefined) {
    parts.links.shop.send(books.acknowledged - before.books.acknowledged);
    for (const name of ["bar", "kitchen"]) {
      parts.links[name].send(state.consumers[name].handled - before.consumers[name].handled);
    }
  }
  before = state;
  page.clock.textContent = `${state.now.toFixed(1)} s`;
  for (const [name] of BOOKS) {
    page.cells[name].textContent = books[name];
  }
  page.verdict.textContent = verdict(state);
  if (state.lines.length > 0) {
    page.lines = [...page.lines, ...state.lines].slice(-MOST_LINES);
    page.log.textContent = page.lines.join("\n");
    page.log.scrollTop = page.log.scrollHeight;
  }
}

function verdict({ books, posting }) {
  if (books.lost > 0) {
    return `${books.lost} orders are lost.`;
  }
  if (books.balanced) {
    return `The books are balanced: ${books.posted} orders posted, ${books.handled} prepared, none lost.`;
  }
  return posting
    ? "Nothing is lost so far. Stop the shop's posts, and the books are balanced when the queue is empty."
    : "The shop no longer posts. The books are balanced when every order is prepared.";
}

function begin() {
  place.replaceChildren(element("p", { textContent: "loading…" }));
  place.firstChild.setAttribute("role", "status");
  worker = new Worker(new URL("worker.mjs", import.meta.url), { type: "module" });
  let page;
  const failed = (text) => place.replaceChildren(element("pre", { className: "error", textContent: text }));
  worker.onerror = (event) => failed(event.message || "This browser cannot run Python in the page.");
  worker.onmessage = ({ data }) => {
    if (data.failed) {
      failed(data.failed);
    } else if (data.loading) {
      place.firstChild.textContent = `loading ${data.loading}…`;
    } else {
      page ??= build();
      draw(page, data.state);
    }
  };
  worker.postMessage({ start: "cafe" });
}

place.replaceChildren(button("Open the café", begin));
