// SPDX-License-Identifier: Apache-2.0
// The page by keyboard: shortcuts, all listed by "?".
"use strict";

function moveRow(step) {
  const links = [...document.querySelectorAll("#queues tbody a")];
  const at = links.indexOf(document.activeElement);
  const next = links[Math.min(links.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  if (next) next.focus();
}

function firstButton(selector) {
  const button = $(selector);
  if (button && !button.hidden && !button.disabled) button.click();
}

const SHORTCUTS = {
  "/": ["Search the queues", () => { location.hash = listHash(); $("#filter").focus(); }],
  q: ["List of queues", () => { location.hash = listHash(); }],
  c: ["Clusters", () => { location.hash = "#/clusters"; }],
  j: ["Next queue", () => moveRow(1)],
  k: ["Previous queue", () => moveRow(-1)],
  i: ["Look inside the messages", () => firstButton("#look")],
  p: ["Post a message", () => firstButton("#post")],
  t: ["Light or dark", () => $("#theme").click()],
  "?": ["This list", () => $("#shortcuts").showModal()],
};

$("#shortcuts dl").append(...Object.entries(SHORTCUTS).flatMap(([key, [text]]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]),
  h("dt", {}, h("kbd", {}, "Esc")), h("dd", {}, "Close a dialog, or leave the search"));
$("#help").addEventListener("click", () => $("#shortcuts").showModal());

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const found = Object.hasOwn(SHORTCUTS, event.key) ? SHORTCUTS[event.key] : null;
  if (!found) return;
  event.preventDefault();
  found[1]();
});
