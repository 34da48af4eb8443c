// SPDX-License-Identifier: Apache-2.0
// The console's page. What comes from the broker is put into the page as text, never as markup.
"use strict";

const KEPT = 300; // looks at the broker
const ROWS = 100; // of the list of queues
const PAGE = 25; // messages
const TYPES = ["string", "int64", "int32", "short", "bool", "binary", "char"];
const SORTS = ["state", "uri", "messages", "bytes", "posted", "confirmed", "producers", "consumers"];
const LABELS = { messages: "messages", bytes: "bytes", posted: "posted/s", confirmed: "confirmed/s", producers: "producers", consumers: "consumers" };
const HEX_SHOWN = 16 * 1024;

const $ = (selector, root = document) => root.querySelector(selector);

function h(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name === "className" ? "class" : name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) =>
    (typeof child === "string" ? visible(child) : child)));
  return node;
}

// Characters that turn the direction of writing or are not seen, as escapes: text of brokers and messages may have any.
function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (letter) =>
    (letter === "\n" || letter === "\t" ? letter : `\\u{${letter.codePointAt(0).toString(16)}}`));
}

function s(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// ---- text

const count = (value) => Math.round(value).toLocaleString("en");
const rate = (value) => (value < 10 && !Number.isInteger(value) ? value.toFixed(1) : count(value));

const several = (value, what) => `${count(value)} ${what}${value === 1 ? "" : "s"}`;

function size(value) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} GiB`;
}

function age(moment) {
  const seconds = Math.max(0, (Date.now() - Date.parse(moment)) / 1000);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= length) return `${(seconds / length).toFixed(1)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

// ---- the server

const token = (() => {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem("bmq-token", given[1]);
    history.replaceState(null, "", location.pathname + "#/");
  }
  return sessionStorage.getItem("bmq-token") || "";
})();

async function ask(path, body) {
  const headers = {};
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) {
    let why = `${response.status} ${response.statusText}`;
    try {
      why = (await response.json()).error || why;
    } catch {
      // it was no JSON
    }
    throw new Error(why);
  }
  return response;
}

const askJson = async (path, body) => (await ask(path, body)).json();
const query = (values) => new URLSearchParams(values).toString();

// ---- what is known

const known = { queues: new Map(), error: "", gap: "", refused: false, unasked: 0, oldest: 0, link: "connecting", broker: "", time: 0, readOnly: false, looksInside: true, interval: 1 };

function learn(state) {
  known.error = state.error;
  known.refused = state.refused;
  known.gap = state.gap;
  known.unasked = state.unasked;
  known.oldest = state.oldest;
  known.link = "";
  known.broker = state.broker;
  known.readOnly = state.read_only;
  known.looksInside = state.looks_inside;
  known.interval = state.interval;
  known.time = state.time;
  const before = known.queues;
  known.queues = new Map();
  for (const { history: past, ...now } of state.queues) {
    const queue = before.get(now.uri) || { past: { messages: [], posted: [], confirmed: [] } };
    queue.now = now;
    if (past) {
      queue.past = past;
    } else if (!state.error) {
      for (const [name, values] of Object.entries(queue.past)) {
        values.push(now[name]);
        if (values.length > KEPT) values.shift();
      }
    }
    known.queues.set(now.uri, queue);
  }
}

async function follow() {
  for (;;) {
    try {
      const reader = (await ask("api/live")).body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const lines = text.split("\n");
        text = lines.pop();
        if (lines.length) {
          for (const line of lines) learn(JSON.parse(line));
          show();
        }
      }
      known.link = "the console has ended";
    } catch (error) {
      known.link = error instanceof TypeError ? "the console does not answer" : error.message;
    }
    show();
    await new Promise((done) => setTimeout(done, 1000));
  }
}

// ---- plots

function points(values, top, width, height) {
  const step = width / (KEPT - 1);
  const left = width - (values.length - 1) * step;
  return values.map((value, index) => [left + index * step, height - 1 - (value / top) * (height - 3)]);
}

function drawn(values, top, width, height) {
  if (!values.length) return ["", ""];
  const found = points(values, top, width, height);
  const line = "M" + found.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
  return [line, `${line}L${width} ${height}L${found[0][0].toFixed(1)} ${height}Z`];
}

// The end of a scale: 1, 2 or 5 times a power of ten. It grows at once, and shrinks only where a fifth of it is enough.
function scale(values, before) {
  let most = 1;
  for (const value of values) if (value > most) most = value;
  const power = 10 ** Math.floor(Math.log10(most));
  const end = [1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= most);
  return before && end <= before && end * 5 > before ? before : end;
}

// A line over time, small, without axes.
class Spark {
  constructor(kind) {
    this.area = s("path", { class: `area ${kind}` });
    this.line = s("path", { class: `line ${kind}` });
    this.node = s("svg", { class: "spark", viewBox: "0 0 112 26", preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.line);
  }

  show(values) {
    const shown = values.slice(-60);
    this.end = scale(shown, this.end);
    // The last minute over the whole width.
    const stretched = drawn(shown, this.end, (112 * (KEPT - 1)) / 59, 26);
    this.line.setAttribute("d", stretched[0]);
    this.area.setAttribute("d", stretched[1]);
    this.node.setAttribute("viewBox", `${(112 * (KEPT - 1)) / 59 - 112} 0 112 26`);
  }
}

// One or several lines over the time that is kept, with the highest value and what is under the pointer.
class Chart {
  constructor(title, kinds) {
    this.kinds = kinds;
    this.values = {};
    this.paths = {};
    this.told = {};
    const keys = kinds.map(([kind, name]) => {
      this.told[kind] = h("b", {});
      return h("span", { className: `key ${kind}` }, h("span", {}, `${name} `, this.told[kind]));
    });
    this.svg = s("svg", { viewBox: "0 0 600 144", preserveAspectRatio: "none", role: "img", "aria-label": title });
    for (const y of [1, 72]) this.svg.append(s("line", { class: "grid", x1: 0, x2: 600, y1: y, y2: y }));
    for (const [kind] of kinds) {
      this.paths[kind] = [s("path", { class: `area ${kind}` }), s("path", { class: `line ${kind}` })];
      this.svg.append(...this.paths[kind]);
    }
    this.cursor = s("line", { class: "cursor", y1: 0, y2: 144, visibility: "hidden" });
    this.svg.append(this.cursor);
    this.top = h("span", { className: "top" });
    this.middle = h("span", { className: "top middle" });
    this.from = h("span", {});
    this.at = h("span", {}, "now");
    this.node = h("figure", { className: "chart" }, h("figcaption", {}, title, ...keys),
      h("div", { className: "plotting" }, this.svg, this.top, this.middle), h("div", { className: "axis" }, this.from, this.at));
    this.pointer = null;
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      this.pointer = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      this.tell();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.tell();
    });
  }

  show(values) {
    this.values = values;
    this.end = scale(Object.values(values).flat(), this.end);
    const top = this.end;
    put(this.top, count(top));
    put(this.middle, rate(top / 2));
    this.from.textContent = `${Math.round((KEPT * known.interval) / 60)} min ago`;
    for (const [kind] of this.kinds) {
      const [line, area] = drawn(values[kind], top, 600, 144);
      this.paths[kind][0].setAttribute("d", area);
      this.paths[kind][1].setAttribute("d", line);
    }
    this.tell();
  }

  tell() {
    const back = this.pointer === null ? 0 : Math.round((1 - this.pointer) * (KEPT - 1));
    for (const [kind] of this.kinds) {
      const values = this.values[kind] || [];
      const value = values[values.length - 1 - back];
      this.told[kind].textContent = value === undefined ? "–" : rate(value);
    }
    this.at.textContent = back ? `${Math.round(back * known.interval)} s ago` : "now";
    this.cursor.setAttribute("visibility", this.pointer === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, (this.pointer || 0) * 600);
  }
}

// ---- all queues

const overview = { rows: new Map(), sort: "state", descending: false, only: "", words: "" };

// The address of the list with what is chosen, to be shared as a link.
function listHash() {
  const values = {};
  if (overview.words) values.q = overview.words;
  if (overview.only) values.only = overview.only;
  if (overview.sort !== "state") values.sort = overview.sort;
  if (overview.descending) values.down = "1";
  const text = query(values);
  return text ? `#/?${text}` : "#/";
}

function choose(values) {
  Object.assign(overview, values);
  history.replaceState(null, "", listHash());
  showOverview();
}

function readList(parameters) {
  const sort = parameters.get("sort");
  overview.words = parameters.get("q") || "";
  overview.only = Object.hasOwn(SHORT, parameters.get("only") || "") ? parameters.get("only") : "";
  overview.sort = SORTS.includes(sort) ? sort : "state";
  overview.descending = parameters.get("down") === "1";
  if (document.activeElement !== $("#filter")) $("#filter").value = overview.words;
}

function row(uri) {
  const { domain } = known.queues.get(uri).now;
  const link = h("a", { href: `#/queue/${encodeURIComponent(uri)}` }, uri.slice(`bmq://${domain}/`.length));
  const problem = h("span", { className: "problem" });
  const cells = Object.fromEntries(["messages", "bytes", "posted", "confirmed", "producers", "consumers"].map((name) =>
    [name, h("td", { className: ["messages", "posted", "confirmed"].includes(name) ? "n" : "n wide", "data-label": LABELS[name] })]));
  const sparks = { messages: new Spark("depth"), posted: new Spark("posted"), confirmed: new Spark("confirmed") };
  const node = h("tr", { onclick: (event) => event.target.closest("a") || link.click() },
    h("td", {}, link, h("span", { className: "domain" }, domain), problem),
    cells.messages, h("td", { className: "plot" }, sparks.messages.node), cells.bytes,
    cells.posted, h("td", { className: "plot wide vast" }, sparks.posted.node),
    cells.confirmed, h("td", { className: "plot wide vast" }, sparks.confirmed.node), cells.producers, cells.consumers);
  return { node, cells, sparks, problem, told: "" };
}

function put(cell, text) {
  const shown = visible(text);
  if (cell.textContent !== shown) cell.textContent = shown;
}

function showOverview() {
  const wanted = overview.words.toLowerCase().split(/\s+/).filter(Boolean);
  const { sort, descending, only } = overview;
  const all = [...known.queues.values()];
  showProblems(all.map(({ now }) => now));
  showAge();
  const found = all.filter(({ now }) => {
    const problem = now.finding ? [now.finding, ...now.others] : [];
    if (only && !problem.some(({ kind }) => kind === only)) return false;
    if (!wanted.length) return true;
    const text = `${now.uri} ${problem.map(({ title }) => title).join(" ")}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
  const byName = (a, b) => (a.now.uri < b.now.uri ? -1 : a.now.uri > b.now.uri ? 1 : 0);
  const key = sort === "state" ? ({ now }) => rankOf(now.finding) : sort === "uri" ? () => 0 : ({ now }) => now[sort];
  found.sort((a, b) => (key(a) - key(b) || byName(a, b)) * (descending ? -1 : 1));
  const body = $("#queues tbody");
  const shown = found.slice(0, ROWS).map(({ now, past }) => {
    const each = overview.rows.get(now.uri) || row(now.uri);
    overview.rows.set(now.uri, each);
    put(each.cells.messages, count(now.messages));
    put(each.cells.bytes, size(now.bytes));
    put(each.cells.posted, rate(now.posted));
    put(each.cells.confirmed, rate(now.confirmed));
    put(each.cells.producers, count(now.producers));
    put(each.cells.consumers, count(now.consumers));
    const problem = now.finding ? [now.finding, ...now.others] : [];
    const told = problem.map(({ level, title }) => `${level} ${title}`).join();
    if (told !== each.told) {
      each.told = told;
      each.problem.replaceChildren(...problem.flatMap((one) => [mark(one), " "]), ...(now.finding ? [h("span", { className: "since" })] : []));
      each.node.className = now.finding ? now.finding.level : "";
    }
    if (now.finding) put($(".since", each.problem), ` for ${lasting(known.time - now.finding.since)}`);
    for (const [name, spark] of Object.entries(each.sparks)) spark.show(past[name]);
    return each.node;
  });
  if (shown.length !== body.children.length || shown.some((node, index) => node !== body.children[index])) {
    body.replaceChildren(...shown);
  }
  for (const uri of overview.rows.keys()) if (!known.queues.has(uri)) overview.rows.delete(uri);
  for (const head of document.querySelectorAll("#queues th")) {
    const button = $(`button[data-sort="${sort}"]`, head);
    for (const each of head.querySelectorAll("button")) each.classList.toggle("sorted", each === button);
    if (button) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  const rest = found.length - shown.length;
  const nothing = $("#nothing");
  nothing.hidden = !(rest || !shown.length);
  put(nothing, rest ? `${count(rest)} more: search by name` : known.queues.size ? "No queue matches this search." :
    known.link || known.error ? "" : "This broker has no queues yet. A queue is created when a client opens it.");
}

// ---- properties to be typed in

function propertyEditor() {
  const list = h("div", {});
  const add = () => {
    const line = h("div", { className: "property" },
      h("input", { "aria-label": "Name", placeholder: "name", spellcheck: "false" }),
      h("select", { "aria-label": "Type" }, ...TYPES.map((type) => h("option", {}, type))),
      h("input", { "aria-label": "Value", placeholder: "value", spellcheck: "false" }),
      h("button", { type: "button", className: "quiet", title: "Remove", onclick: () => line.remove() }, "✕"));
    list.append(line);
    return line;
  };
  return {
    node: h("div", {}, list, h("button", { type: "button", onclick: () => $("input", add()).focus() }, "Add a property")),
    fill: (properties) => {
      for (const { name, type, value } of properties) {
        const line = add();
        const [first, second] = line.querySelectorAll("input");
        first.value = name;
        second.value = value;
        $("select", line).value = type;
      }
    },
    read: () => [...list.children].map((line) => {
      const [name, value] = line.querySelectorAll("input");
      return { name: name.value, type: $("select", line).value, value: value.value };
    }).filter(({ name }) => name),
  };
}

// ---- what is in a message

// Lines and indents around the tokens as they are: a number of JavaScript is not one of JSON.
function indented(text) {
  let out = "";
  let depth = 0;
  const newline = () => "\n" + "  ".repeat(depth);
  for (const [piece] of text.matchAll(/"(?:[^"\\]|\\.)*"|[^\s",:[\]{}]+|[,:[\]{}]/g)) {
    if (piece === "{" || piece === "[") {
      depth += 1;
      out += piece + newline();
    } else if (piece === "}" || piece === "]") {
      depth -= 1;
      out = /[{[]\s*$/.test(out) ? out.trimEnd() + piece : out + newline() + piece;
    } else if (piece === ",") out += piece + newline();
    else out += piece === ":" ? ": " : piece;
  }
  return out;
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_SHOWN); at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    const letters = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits} ${letters}`);
  }
  return lines.join("\n");
}

function inside(content, chosen, detail) {
  const bytes = Uint8Array.from(atob(content.payload), (letter) => letter.charCodeAt(0));
  const cut = content.size === null || bytes.length < content.size;
  const ways = { hex: () => hex(bytes) };
  let text = null;
  try {
    text = new TextDecoder("utf-8", { fatal: !cut }).decode(bytes);
    ways.text = () => text;
    JSON.parse(text);
    ways.JSON = () => indented(text);
  } catch {
    // no text, or no JSON
  }
  const body = h("pre", {});
  const buttons = ["text", "JSON", "hex"].map((way) => h("button", {
    type: "button", disabled: !ways[way], onclick: () => use(way),
  }, way));
  const use = (way) => {
    chosen.way = way;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === way));
    body.className = way === "hex" ? "hex" : "";
    body.textContent = visible(ways[way]());
  };
  use(ways[chosen.way] ? chosen.way : ways.JSON ? "JSON" : ways.text ? "text" : "hex");
  const parts = content.properties.flatMap(({ name, type, value }) =>
    [h("dt", {}, name), h("dd", { className: "muted" }, type), h("dd", { className: "mono" }, value)]);
  return h("div", { className: "inside" }, letterActions(detail, content),
    content.error ? h("p", { className: "result bad" }, `This message cannot be read: ${content.error}`) :
      parts.length ? h("dl", {}, ...parts) : h("p", { className: "muted" }, "No properties."),
    h("div", {}, h("span", { className: "segments", role: "group", "aria-label": "Payload as" }, ...buttons),
      h("span", { className: "muted" }, content.size === null ? ` the first ${size(bytes.length)}` :
        ` ${size(content.size)}${cut ? `, the first ${size(bytes.length)} of it` : ""}`)),
    body);
}

// ---- one queue

class Detail {
  constructor(uri, parameters) {
    this.uri = uri;
    this.app = parameters.get("app") || "";
    this.offset = Math.max(0, Number.parseInt(parameters.get("offset") || "0", 10) || 0);
    this.looked = false;
    this.told = {};
    this.contents = new Map();
    this.ways = new Map();
    this.open = new Set();
    this.agreed = false;
    this.asking = false;
    this.build();
  }

  build() {
    const name = this.uri.slice(this.uri.indexOf("/", 6) + 1);
    this.domain = h("span", { className: "muted" });
    this.mode = h("span", { className: "chip" });
    const tiles = ["Messages", "Bytes", "Posted/s", "Confirmed/s", "Producers", "Consumers"].map((label) => {
      this.told[label] = h("b", {}, "–");
      return h("div", { className: "tile" }, this.told[label], h("span", {}, label));
    });
    this.depth = new Chart("Messages", [["depth", "held"]]);
    this.rates = new Chart("Messages a second", [["posted", "posted"], ["confirmed", "confirmed"]]);
    this.head = h("div", { className: "head", role: "status" });
    this.words = h("div", { className: "card words" });
    this.apps = h("div", { className: "segments", role: "group", "aria-label": "Application" });
    this.appBar = h("div", { className: "bar" }, h("span", { className: "muted" }, "Application"), this.apps);
    this.routing = h("div", {});
    this.group = h("div", {});
    this.clients = h("div", {});
    this.list = h("div", {});
    this.pager = h("div", { className: "pager" });
    this.lookButton = h("button", { type: "button", id: "look", disabled: true, onclick: () => this.look() }, "Look inside");
    this.wholeButton = h("button", { type: "button", id: "whole", className: "danger", hidden: true, onclick: () => doWhole(this, wholeKind(this)) });
    this.lookResult = h("p", { className: "result", role: "status" });
    this.postButton = h("button", { type: "button", className: "primary", id: "post", onclick: () => openPosting(this.uri) }, "Post a message");
    this.purgeButton = h("button", { type: "button", className: "danger", id: "purge", onclick: () => this.purge() }, "Purge");
    const editor = propertyEditor();
    this.verdicts = h("div", { className: "verdicts" });
    this.node = h("div", {},
      h("div", { className: "bar" },
        h("div", { className: "title" }, h("a", { href: listHash() }, "← Queues"), h("h1", {}, name), this.domain, " ", this.mode),
        h("div", { className: "buttons" }, this.postButton, this.purgeButton)),
      this.head,
      h("div", { className: "tiles" }, ...tiles),
      h("div", { className: "card" }, h("div", { className: "charts" }, this.depth.node, this.rates.node)),
      this.words, this.appBar,
      h("div", { className: "columns" },
        h("section", { className: "card", id: "routing" }, h("h2", {}, "Subscriptions, in the order they are tried"), this.group, this.routing,
          h("h3", {}, "Who would get a message with these properties?"), editor.node,
          h("p", {}, h("button", { type: "button", id: "try", onclick: () => this.route(editor.read()) }, "Try")), this.verdicts),
        h("section", { className: "card", id: "clients" }, h("h2", {}, "Clients"), this.clients)),
      h("section", { className: "card", id: "messages" },
        h("div", { className: "bar" }, h("h2", {}, "Messages"), h("div", { className: "buttons" }, this.wholeButton, this.lookButton)),
        this.lookResult, this.list, this.pager));
  }

  show() {
    const queue = known.queues.get(this.uri);
    if (queue) {
      const { now, past } = queue;
      put(this.told.Messages, count(now.messages));
      put(this.told.Bytes, size(now.bytes));
      put(this.told["Posted/s"], rate(now.posted));
      put(this.told["Confirmed/s"], rate(now.confirmed));
      this.depth.show({ depth: past.messages });
      this.rates.show({ posted: past.posted, confirmed: past.confirmed });
    }
    this.showHead();
    this.postButton.hidden = this.purgeButton.hidden = known.readOnly;
    this.lookButton.hidden = known.readOnly && !known.looksInside;
    for (const [cell, moment] of this.ages || []) put(cell, age(moment));
    this.update();
  }

  // The headline: what the figures show, and what the subscriptions show.
  showHead() {
    const queue = known.queues.get(this.uri);
    if (!queue || !this.findings) return;
    const live = queue.now.finding;
    const seen = live ? [live, ...queue.now.others] : [];
    const findings = [...seen, ...this.findings.filter((each) => !seen.some(({ kind }) => kind === each.kind))];
    const text = JSON.stringify([findings, live ? lasting(known.time - live.since) : ""]);
    if (text === this.headTold) return;
    this.headTold = text;
    this.head.replaceChildren(headline(findings, live, queue.now.messages ? "No problem found" : "No problem found: the queue is empty"));
  }

  link() {
    const values = {};
    if (this.fanoutApp()) values.app = this.app;
    if (this.offset) values.offset = String(this.offset);
    const text = query(values);
    history.replaceState(null, "", `#/queue/${encodeURIComponent(this.uri)}${text ? `?${text}` : ""}`);
  }

  // Asks for the rest; one question at a time, however slow the broker is.
  async update() {
    if (this.asking) return;
    this.asking = true;
    try {
      const facts = await askJson(`api/queue?${query({ uri: this.uri })}`);
      this.changed("facts", facts, () => this.showFacts(facts));
      const page = await askJson(`api/messages?${query({ uri: this.uri, app: this.fanoutApp(), offset: this.offset, count: PAGE })}`);
      if (this.offset && this.offset >= page.total) this.offset = Math.floor(Math.max(0, page.total - 1) / PAGE) * PAGE;
      this.changed("page", page, () => this.showPage(page));
      this.failed = "";
    } catch (error) {
      this.failed = error.message;
      if (!known.error && !known.link) this.words.replaceChildren(h("p", {}, error.message));
      this.last = {};
    } finally {
      this.asking = false;
    }
  }

  changed(name, value, action) {
    this.last = this.last || {};
    const text = JSON.stringify(value);
    if (this.last[name] === text) return;
    this.last[name] = text;
    action();
  }

  fanoutApp() {
    return this.app === "__default" ? "" : this.app;
  }

  choose(app) {
    this.app = app;
    this.offset = 0;
    this.link();
    this.last = {};
    this.verdicts.replaceChildren();
    this.update();
  }

  showFacts(facts) {
    this.findings = facts.findings;
    this.showHead();
    this.domain.textContent = visible(facts.domain);
    this.mode.textContent = facts.mode || "forwarded";
    const names = facts.apps.map(({ app }) => app);
    if (!names.includes(this.app)) this.app = names[0] || "";
    this.appBar.hidden = names.length < 2;
    this.apps.replaceChildren(...facts.apps.map(({ app, messages }) => h("button", {
      type: "button", "aria-pressed": String(app === this.app), onclick: () => this.choose(app),
    }, `${app} (${count(messages)})`)));
    const sum = (name) => facts.clients.reduce((total, client) => total + client[name], 0);
    put(this.told.Producers, count(sum("writers")));
    put(this.told.Consumers, count(sum("readers")));
    const app = facts.apps.find((each) => each.app === this.app);
    this.words.replaceChildren(...[...facts.words, ...(app ? app.words : [])].map((text) => h("p", {}, text)));
    const readers = app ? app.readers : [];
    this.group.replaceChildren(...(app && app.group ? [groupTable(app.group)] : []));
    this.routing.replaceChildren(readers.length ? table(["Priority>", "Expression", "Unconfirmed", "Subscription"],
      readers.map((reader) => [String(reader.priority), h("code", {}, reader.expression),
        reader.full ? h("span", { className: "chip full" }, reader.use) : reader.use, reader.name])) :
      h("p", { className: "muted" }, "No consumers."));
    this.clients.replaceChildren(facts.clients.length ? table(["Client", "Writes>", "Reads>", "Subscriptions>", "Unconfirmed>"],
      facts.clients.map((client) => [client.description, ...["writers", "readers", "subscriptions", "unconfirmed"].map((name) => count(client[name]))])) :
      h("p", { className: "muted" }, "No client has the queue open."));
  }

  showPage(page) {
    this.page = page;
    this.ages = [];
    const rows = page.messages.flatMap((message, index) => {
      const cell = h("td", { className: "n" }, age(message.arrival));
      this.ages.push([cell, message.arrival]);
      const content = this.contents.get(message.guid);
      const toggle = h("button", { type: "button", className: "quiet", "aria-label": `Content of message ${page.offset + index}`, "aria-expanded": String(this.open.has(message.guid)),
        onclick: () => {
          if (!this.open.delete(message.guid)) this.open.add(message.guid);
          this.showPage(page);
        } }, this.open.has(message.guid) ? "▾" : "▸");
      const line = h("tr", {}, h("td", {}, content ? toggle : ""), h("td", { className: "n" }, count(page.offset + index)),
        h("td", { className: "mono guid" }, message.guid, content && aboutLetter(content) ? h("span", { className: "about" }, aboutLetter(content)) : null), h("td", { className: "n" }, size(message.size)), cell,
        h("td", { className: "wide" }, new Date(message.arrival).toISOString().slice(0, 19).replace("T", " ")));
      if (!content || !this.open.has(message.guid)) return [line];
      if (!this.ways.has(message.guid)) this.ways.set(message.guid, {});
      return [line, h("tr", {}, h("td", { colSpan: 6 }, inside(content, this.ways.get(message.guid), this)))];
    });
    const heads = [["Content", "unseen-head"], ["#", "n"], ["GUID", ""], ["Size", "n"], ["Age", "n"], ["Arrival (UTC)", "wide"]];
    this.list.replaceChildren(rows.length ? h("table", {}, h("thead", {}, h("tr", {}, ...heads.map(([name, kind]) =>
      h("th", { className: kind }, name)))), h("tbody", {}, ...rows)) : h("p", { className: "muted" }, "No messages."));
    const move = (offset) => () => {
      this.offset = offset;
      this.link();
      this.last.page = "";
      this.update();
    };
    const end = page.offset + page.messages.length;
    this.pager.replaceChildren(
      h("span", { className: "muted" }, rows.length ? `${count(page.offset)} – ${count(end - 1)} of ${count(page.total)}` : ""),
      h("button", { type: "button", disabled: this.offset === 0, onclick: move(Math.max(0, this.offset - PAGE)) }, "Older"),
      h("button", { type: "button", disabled: end >= page.total, onclick: move(this.offset + PAGE) }, "Newer"));
    this.pager.hidden = page.total <= PAGE;
    this.lookButton.disabled = !page.messages.length;
    const whole = wholeKind(this);
    this.wholeButton.hidden = known.readOnly || !whole || page.total < 2 || Boolean(this.fanoutApp());
    if (whole) put(this.wholeButton, `${whole.button} (${count(page.total)})`);
    if (!this.looked && known.looksInside && page.messages.length && /\.(dead|delayed)$/.test(this.uri)) {
      this.looked = true;
      this.fetchContents(false).catch(() => {});
    }
  }

  async look() {
    if (!this.agreed && !known.looksInside) {
      askFirst("Take these messages for a moment?",
        "This broker shows the content of a message to consumers only. The console takes the messages as a consumer, confirms none " +
        "of them, and returns them: later deliveries are marked as redelivered. If a returned message matches none of the " +
        "expressions of later consumers, the broker delivers no later messages until a consumer takes the returned message.",
        "Look inside", async () => {
          this.agreed = true;
          await this.fetchContents();
        });
      return;
    }
    await this.fetchContents().catch(() => {});
  }

  async fetchContents(expand = true) {
    this.lookButton.disabled = true;
    tell(this.lookResult, "loading …");
    try {
      const guids = this.page.messages.map(({ guid }) => guid);
      const found = await askJson("api/contents", { uri: this.uri, app: this.fanoutApp(), guids });
      for (const content of found.messages) {
        this.contents.set(content.guid, content);
        if (expand) this.open.add(content.guid);
      }
      const missing = guids.length - found.messages.length;
      tell(this.lookResult, found.left_out.length ? `${count(found.left_out.length)} were left out: they are too large for one answer` : missing ? `${count(missing)} were not reached: they have gone, somebody has them, or there are more than ${count(found.most_held || 0)} before them` : "");
      this.showPage(this.page);
    } catch (error) {
      tell(this.lookResult, error.message, false);
      throw error;
    } finally {
      this.lookButton.disabled = false;
    }
  }

  async route(properties) {
    try {
      const found = await askJson("api/route", { uri: this.uri, app: this.app, properties });
      this.verdicts.replaceChildren(h("p", {}, h("b", {}, found.summary)), table(["Priority>", "Expression", "Subscriptions", "Verdict"],
        found.steps.map((step) => [String(step.priority), h("code", {}, step.expression), step.names.join(", "),
          h("span", { className: step.matches ? "yes" : "" }, step.verdict)])));
    } catch (error) {
      this.verdicts.replaceChildren(h("p", { className: "result bad" }, error.message));
    }
  }

  purge() {
    const queue = known.queues.get(this.uri);
    const facts = JSON.parse((this.last && this.last.facts) || '{"apps":[]}');
    const app = facts.apps.find((each) => each.app === this.app);
    const one = this.fanoutApp();
    const held = one && app ? app.messages : queue ? queue.now.messages : 0;
    askFirst(`Delete ${several(held, "message")}?`,
      `All messages of ${this.uri}${one ? ` for the application ${one}` : ""} on ${known.broker} are deleted. The deletion cannot be undone.`,
      "Delete them", async () => {
        const done = await askJson("api/purge", { uri: this.uri, app: one });
        tell(this.lookResult, `${count(done.messages)} deleted`, true);
        this.update();
      });
  }
}

function table(heads, rows) {
  const kinds = heads.map((head) => (head.endsWith(">") ? "n" : ""));
  return h("table", {}, h("thead", {}, h("tr", {}, ...heads.map((head, index) => h("th", { className: kinds[index] }, head.replace(">", ""))))),
    h("tbody", {}, ...rows.map((cells) => h("tr", {}, ...cells.map((cell, index) => h("td", { className: kinds[index], "data-label": heads[index].replace(">", "") }, cell))))));
}

function tell(node, text, good) {
  node.textContent = visible(text);
  node.className = `result${good === true ? " good" : good === false ? " bad" : ""}`;
}

// ---- dialogs

let action = null;

function askFirst(title, text, button, run) {
  const dialog = $("#asking");
  $("h2", dialog).textContent = title;
  $(".text", dialog).textContent = text;
  $(".danger", dialog).textContent = button;
  tell($(".result", dialog), "");
  action = run;
  dialog.showModal();
}

$("#asking form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const dialog = $("#asking");
  const button = $(".danger", dialog);
  button.disabled = true;
  try {
    await action(dialog);
    dialog.close();
  } catch (error) {
    tell($(".result", dialog), error.message, false);
  } finally {
    button.disabled = false;
  }
});

let posting = null;

function openPosting(uri, again = null) {
  const dialog = $("#posting");
  if (again || !posting || posting.uri !== uri || posting.again) {
    posting = { uri, editor: propertyEditor(), again };
    $(".properties", dialog).replaceChildren(posting.editor.node);
    const { elements } = $("form", dialog);
    elements.payload.value = again ? again.text : "";
    elements.kind.value = again ? again.kind : "text";
    if (again) posting.editor.fill(again.properties);
  }
  put($("h2", dialog), again ? "Edit the message and post it again" : "Post a message");
  $(".uri", dialog).textContent = uri;
  tell($(".result", dialog), "");
  dialog.showModal();
}

$("#posting form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const result = $(".result", form);
  const button = $(".primary", form);
  const payload = form.elements.payload.value;
  const kind = form.elements.kind.value;
  const body = { uri: posting.uri, properties: posting.editor.read() };
  button.disabled = true;
  try {
    if (kind === "json") JSON.parse(payload);
    body[kind === "base64" ? "base64" : "text"] = payload;
    tell(result, "posting …");
    const { again } = posting;
    const { guid } = again ? await askJson(again.request.path, { ...body, ...again.request.more }) : await askJson("api/post", body);
    tell(result, `Accepted: ${guid}${again ? "; the dead letter is deleted" : ""}`, true);
    if (again) again.done();
  } catch (error) {
    tell(result, error instanceof SyntaxError ? `This is not JSON: ${error.message}` : error.message, false);
  } finally {
    button.disabled = false;
  }
});

for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}

// ---- the page

let detail = null;
let clusters = null;

function address() {
  const at = location.hash.indexOf("?");
  return at < 0 ? [location.hash, new URLSearchParams()] : [location.hash.slice(0, at), new URLSearchParams(location.hash.slice(at + 1))];
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a link cut off within an escape
  }
}

function moved() {
  const [path, parameters] = address();
  if (path === "#/" || !path) readList(parameters);
  show();
}

function show() {
  const trouble = known.link || known.error;
  $("#status").className = `status ${trouble ? "down" : "up"}`;
  put($("#broker"), known.broker || "connecting");
  const banner = $("#banner");
  banner.hidden = !(trouble || known.gap) || trouble === "connecting";
  put(banner, known.link ? `${known.link}; trying again` : known.error ? `${known.refused ? "The broker refuses the console" : "No answer from the broker"}, trying again: ${known.error}` : known.gap);
  const all = [...known.queues.values()].map(({ now }) => now);
  const total = (name) => all.reduce((sum, each) => sum + each[name], 0);
  put($("#totals"), all.length ? `${several(all.length, "queue")} · ${several(total("messages"), "message")} · ${rate(total("posted"))} posted/s · ${rate(total("confirmed"))} confirmed/s` : "");
  const [path, parameters] = address();
  const uri = path.startsWith("#/queue/") ? decoded(path.slice("#/queue/".length)) : "";
  const onClusters = path === "#/clusters";
  if (!uri) detail = null;
  else if (!detail || detail.uri !== uri) {
    detail = new Detail(uri, parameters);
    $("#detail").replaceChildren(detail.node);
    scrollTo(0, 0);
  }
  if (!onClusters) clusters = null;
  else if (!clusters) {
    clusters = new Clusters();
    $("#clusters-page").replaceChildren(clusters.node);
  }
  $("#overview").hidden = Boolean(uri) || onClusters;
  $("#detail").hidden = !uri;
  $("#clusters-page").hidden = !onClusters;
  for (const link of document.querySelectorAll("[data-page]")) {
    if ((link.dataset.page === "clusters") === onClusters) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = visible(uri ? `${uri.slice(uri.lastIndexOf("/") + 1)} – bmq console` : onClusters ? "Clusters – bmq console" : "bmq console");
  if (clusters) clusters.update();
  if (detail) detail.show();
  else if (!clusters) showOverview();
}

const themes = ["auto", "light", "dark"];

function useTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  $("#theme").textContent = `Theme: ${theme}`;
  localStorage.setItem("bmq-theme", theme);
}

$("#theme").addEventListener("click", () => {
  useTheme(themes[(themes.indexOf(localStorage.getItem("bmq-theme")) + 1) % themes.length]);
});
useTheme(themes.includes(localStorage.getItem("bmq-theme")) ? localStorage.getItem("bmq-theme") : "auto");
$("#filter").addEventListener("input", () => choose({ words: $("#filter").value.trim() }));
for (const button of document.querySelectorAll("[data-sort]")) {
  button.addEventListener("click", () => {
    const { sort } = button.dataset;
    choose({ sort, descending: overview.sort === sort ? !overview.descending : sort !== "uri" && sort !== "state" });
  });
}
addEventListener("hashchange", moved);
moved();
follow();
