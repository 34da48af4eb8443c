// SPDX-License-Identifier: Apache-2.0
// The problems of queues: in words and by shape, so that no meaning depends on a colour.
"use strict";

const LEVELS = { critical: ["■", "Critical"], warning: ["▲", "Warning"], note: ["●", "Note"] };
const RANKS = Object.keys(LEVELS);
const SHORT = { full: "full", unmatched: "nothing matches", unread: "no readers", dead: "dead letters", near: "near the quota", limit: "readers at their limit", held: "messages held back", expired: "messages expired", unconfirmed: "confirmations missing", outranked: "higher priority takes everything" };

const rankOf = (finding) => (finding ? RANKS.indexOf(finding.level) : RANKS.length);

function lasting(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

const clock = (seconds) => `${new Date(seconds * 1000).toISOString().slice(11, 19)} UTC`;

function badge(finding) {
  const [shape, word] = LEVELS[finding.level];
  return h("span", { className: `badge ${finding.level}` }, h("span", { "aria-hidden": "true" }, `${shape} `), `${word}: ${finding.title}`);
}

// The same in a list, where the colour and the shape stand for the word.
function mark(finding) {
  const [shape, word] = LEVELS[finding.level];
  return h("span", { className: `badge ${finding.level}` }, h("span", { "aria-hidden": "true" }, `${shape} `), h("span", { className: "unseen" }, `${word}: `), finding.title);
}

// The most severe problem as a headline: what, since when, and what to do.
function headline(findings, live, fine) {
  if (!findings.length) return h("section", { className: "card headline fine" }, h("h2", {}, fine));
  const sorted = [...findings].sort((a, b) => rankOf(a) - rankOf(b));
  const [first, ...rest] = sorted;
  const since = live && live.kind === first.kind ? `Seen since ${clock(live.since)}, for ${lasting(known.time - live.since)}.` : "";
  return h("section", { className: `card headline ${first.level}` },
    h("h2", {}, h("span", { "aria-hidden": "true" }, `${LEVELS[first.level][0]} `), `${LEVELS[first.level][1]}: ${first.title}`),
    h("p", {}, first.text, " ", h("span", { className: "since" }, since)),
    h("p", {}, h("b", {}, "What to do: "), first.remedy),
    ...rest.map((each) => h("p", { className: "also" }, badge(each), ` ${each.text}`)));
}

// How old the oldest answer about subscriptions is: over thousands of queues, the page asks about a few at a time.
const OLD = 15;

function showAge() {
  const line = $("#asked");
  line.hidden = !(known.unasked || known.oldest > OLD) || Boolean(known.error);
  if (line.hidden) return;
  const parts = [];
  if (known.unasked) parts.push(`the subscriptions of ${several(known.unasked, "queue")} with messages are not checked yet`);
  if (known.oldest > OLD) parts.push(`the oldest check is ${lasting(known.oldest)} old`);
  put(line, `“Nothing matches”, “no readers” and readers at their limit may appear late: ${parts.join(", and ")}.`);
}

// One button for each kind of problem, with the number of queues.
const problems = { buttons: new Map() };

function showProblems(all) {
  const counted = new Map();
  for (const { finding, others } of all) {
    for (const { kind, level } of finding ? [finding, ...others] : []) counted.set(kind, [(counted.get(kind) || [0])[0] + 1, level]);
  }
  const bar = $("#problems");
  const kinds = Object.keys(SHORT).filter((kind) => counted.has(kind) || overview.only === kind);
  kinds.sort((a, b) => rankOf({ level: (counted.get(a) || [0, "note"])[1] }) - rankOf({ level: (counted.get(b) || [0, "note"])[1] }));
  const shown = kinds.map((kind) => {
    let button = problems.buttons.get(kind);
    if (!button) {
      button = h("button", { type: "button", onclick: () => choose({ only: overview.only === kind ? "" : kind }) });
      problems.buttons.set(kind, button);
    }
    const [number, level] = counted.get(kind) || [0, "note"];
    button.className = `badge ${level}`;
    button.setAttribute("aria-pressed", String(overview.only === kind));
    put(button, `${LEVELS[level][0]} ${count(number)} ${SHORT[kind]}`);
    return button;
  });
  if (shown.length !== bar.children.length || shown.some((node, index) => node !== bar.children[index])) bar.replaceChildren(...shown);
  bar.hidden = !shown.length;
}
