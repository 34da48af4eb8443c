// SPDX-License-Identifier: Apache-2.0
// Dead letters, which can be posted again, and delayed messages, which can be cancelled.
"use strict";

const propertyOf = (content, name) => (content.properties.find((each) => each.name === name) || { value: "" }).value;
const shortName = (uri) => uri.slice(uri.lastIndexOf("/") + 1);

function ahead(milliseconds) {
  const left = (milliseconds - Date.now()) / 1000;
  return left > 0 ? `in ${lasting(left)}` : `since ${lasting(-left)}`;
}

// One line about a message: why it is dead, or when it is due.
function aboutLetter(content) {
  const from = propertyOf(content, "bmq_dead_queue");
  if (from) return `from ${shortName(from)}: ${propertyOf(content, "bmq_dead_error") || "no error text"}`;
  const due = propertyOf(content, "bmq_due");
  return due ? `due ${ahead(Number(due))}` : "";
}

function letterActions(detail, content) {
  const from = propertyOf(content, "bmq_dead_queue");
  const due = propertyOf(content, "bmq_due");
  if (from) {
    const attempts = propertyOf(content, "bmq_dead_attempts");
    const whole = content.size !== null && atob(content.payload).length === content.size;
    return h("div", { className: "letter" },
      h("p", {}, h("b", {}, `Dead letter from ${from}`), attempts ? `, given up after ${several(Number(attempts), "attempt")}` : ""),
      h("p", {}, propertyOf(content, "bmq_dead_error")),
      known.readOnly ? null : h("p", { className: "buttons" },
        h("button", { type: "button", className: "again", onclick: () => postAgain(detail, content, from) }, "Post again"), " ",
        h("button", { type: "button", className: "edit", disabled: !whole, onclick: () => editAgain(detail, content, from) }, "Edit and post again")));
  }
  if (!due) return null;
  const to = propertyOf(content, "bmq_destination");
  return h("div", { className: "letter" },
    h("p", {}, h("b", {}, `Delayed message, due ${ahead(Number(due))}`), ` (${new Date(Number(due)).toISOString().slice(0, 19).replace("T", " ")} UTC)`, to ? `, to ${to}` : ""),
    known.readOnly ? null : h("p", {}, h("button", { type: "button", className: "danger cancel", onclick: () => cancelDelayed(detail, content, due) }, "Cancel this message")));
}

function postAgain(detail, content, from) {
  askFirst("Post this message again?",
    `The message goes to ${from.replace(/\?id=.*$/, "")} on ${known.broker}. The dead letter is deleted after the broker has accepted the message.`,
    "Post again", async () => {
      const done = await askJson("api/again", { uri: detail.uri, guid: content.guid, first: propertyOf(content, "bmq_dead_guid") });
      tell(detail.lookResult, `Accepted by ${done.uri} as ${done.guid}; the dead letter is deleted`, true);
      detail.update();
    });
}

function editAgain(detail, content, from) {
  const bytes = Uint8Array.from(atob(content.payload), (letter) => letter.charCodeAt(0));
  let text = content.payload;
  let kind = "base64";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    kind = "text";
  } catch {
    // no text: the form shows base64
  }
  openPosting(from, {
    text, kind,
    properties: content.properties.filter(({ name }) => !name.startsWith("bmq_dead_")),
    request: { path: "api/again", more: { uri: detail.uri, guid: content.guid, first: propertyOf(content, "bmq_dead_guid") } },
    done: () => detail.update(),
  });
}

function cancelDelayed(detail, content, due) {
  askFirst("Cancel this delayed message?",
    `Message ${content.guid} in ${detail.uri} on ${known.broker} is deleted and never passed on. The deletion cannot be undone.`,
    "Cancel the message", async () => {
      await askJson("api/cancel", { uri: detail.uri, guid: content.guid, due });
      tell(detail.lookResult, `Message ${content.guid} is cancelled`, true);
      detail.update();
    });
}

// What can be done with all messages of a queue: nothing, posting dead letters again, or cancelling delayed messages.
const WHOLE = {
  again: {
    path: "api/again", key: "bmq_dead_guid", name: "first", button: "Post all again", what: "dead letter", missing: "is no dead letter",
    done: "posted again", text: "Each message goes to the queue that its dead letter names. A dead letter is deleted after the broker has accepted its message.",
  },
  cancel: {
    path: "api/cancel", key: "bmq_due", name: "due", button: "Cancel all", what: "delayed message", missing: "is no delayed message",
    done: "cancelled", text: "The messages are deleted and never passed on. The deletion cannot be undone.",
  },
};
const BATCH = 50; // messages whose content is asked for at once

function wholeKind(detail) {
  const contents = [...detail.contents.values()];
  const live = known.queues.get(detail.uri);
  const finding = live && live.now.finding ? [live.now.finding, ...live.now.others] : [];
  if (/\.dead$/.test(detail.uri) || finding.some(({ kind }) => kind === "dead") || contents.some((each) => propertyOf(each, "bmq_dead_queue"))) return WHOLE.again;
  return /\.delayed$/.test(detail.uri) || contents.some((each) => propertyOf(each, "bmq_due")) ? WHOLE.cancel : null;
}

// One message after the other, as many as the queue has now. The first failure ends the work: the others stay as they are.
function doWhole(detail, kind) {
  const { total } = detail.page;
  const taken = known.looksInside ? "" : " The console takes the messages as a consumer to read them, and the queue must have no readers.";
  askFirst(`${kind.button}: ${several(total, kind.what)}?`,
    `${kind.text} The work ends at the first failure, and can be stopped: the other messages then stay in ${detail.uri} on ${known.broker}.${taken}`,
    kind.button, async (dialog) => {
      const result = $(".result", dialog);
      let done = 0;
      let at = "";
      try {
        while (done < total && dialog.open) {
          const page = await askJson(`api/messages?${query({ uri: detail.uri, app: "", offset: 0, count: BATCH })}`);
          if (!page.messages.length) break;
          const found = await askJson("api/contents", { uri: detail.uri, app: "", guids: page.messages.map(({ guid }) => guid) });
          if (!found.messages.length) throw new Error("no message could be read: a reader holds the messages, or they are gone");
          for (const content of found.messages) {
            if (done >= total || !dialog.open) break;
            at = content.guid;
            const value = propertyOf(content, kind.key);
            if (!value) throw new Error(`the message ${kind.missing}`);
            await askJson(kind.path, { uri: detail.uri, guid: content.guid, [kind.name]: value });
            done += 1;
            at = "";
            tell(result, `${count(done)} of ${count(total)} ${kind.done} …`);
          }
        }
      } catch (error) {
        const where = at ? `message ${count(done + 1)} of ${count(total)} (${at})` : `message ${count(done + 1)} of ${count(total)}`;
        const text = `Stopped at ${where}: ${error.message.replace(/[.]?$/, ".")} ${several(done, kind.what)} ${kind.done} before; the others are unchanged.`;
        tell(detail.lookResult, text, false);
        throw new Error(text);
      } finally {
        detail.update();
      }
      tell(detail.lookResult, done < total && !dialog.open ? `Stopped: ${count(done)} of ${count(total)} ${kind.done}; the others are unchanged` :
        `${several(done, kind.what)} ${kind.done}`, true);
    });
}

// The members of a consumer group with their buckets.
function groupTable(group) {
  return h("div", { id: "group" }, h("h3", {}, `Consumer group: ${several(group.members.length, "member")}, ${several(group.size, "bucket")}`),
    group.free.length ? h("p", { className: "badge warning" }, `▲ Warning: no member has the buckets ${ranges(group.free)}`) : null,
    table(["Member", "Buckets>", "Which"], group.members.map(({ name, buckets }) => [name, count(buckets.length), ranges(buckets)])));
}

function ranges(numbers) {
  const parts = [];
  for (const number of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}
