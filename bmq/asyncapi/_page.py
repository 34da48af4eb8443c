# SPDX-License-Identifier: Apache-2.0
"""The page about an app: one file of HTML without scripts and without requests to other hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from bmq.asyncapi._document import document
from bmq.asyncapi._values import is_array, is_object
from bmq.workers import App

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2128; --dim: #57606a; --line: #d8dee4;
  --card: #f6f8fa; --link: #3544a8; --receive: #1a6b37; --send: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --text: #e2e6eb; --dim: #9aa4af;
  --line: #343b44; --card: #1c2128; --link: #9fb0ff; --receive: #6fd08c; --send: #f0b060; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; background: var(--back);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.8rem; } h2 { margin: 2.5rem 0 .5rem; font-size: 1.3rem; }
h3 { margin: 0; font-size: 1.05rem; } h4 { margin: 1rem 0 .25rem; font-size: .95rem; }
h1, h2, h3 { overflow-wrap: anywhere; }
a { color: var(--link); } p { margin: .4rem 0; white-space: pre-line; } .dim { color: var(--dim); }
code, pre { font: .88em ui-monospace, monospace; overflow-wrap: anywhere; }
nav ul { margin: .5rem 0; padding-left: 1.2rem; } .address { margin: 0 0 .75rem; color: var(--dim); }
article { margin: .75rem 0; padding: .9rem 1rem; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--card); }
.action { margin-right: .5rem; font-size: .75rem; text-transform: uppercase; letter-spacing: .04em; }
.receive { color: var(--receive); } .send { color: var(--send); }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .15rem 1rem;
  margin: .6rem 0 0; }
dt { color: var(--dim); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
td code { overflow-wrap: normal; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .93em; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; } th { color: var(--dim); font-weight: 500; }
details { margin-top: 2.5rem; } summary { cursor: pointer; color: var(--link); }
pre { padding: 1rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--card);
  white-space: pre-wrap; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
#: Members of ``x-bmq``, in the order of the page.
_LABELS = {
    "role": "Role",
    "expressions": "Expression",
    "priority": "Priority",
    "key": "Ordering key",
    "concurrency": "Concurrency",
    "batches": "Batches",
    "ack": "Confirmed",
    "timeout": "Timeout",
    "rate": "Rate",
    "discard_unmatched": "Unmatched messages",
    "max_unconfirmed_messages": "Unconfirmed messages",
    "max_unconfirmed_bytes": "Unconfirmed bytes",
    "retry": "Retries",
    "quarantine": "Quarantine",
}
#: Members of a schema that restrict a value, shown behind the type.
_LIMITS = (
    *("format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength"),
    *("maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "default"),
)


def page(app: App[Any], *, title: str = "bmq", version: str = "0.1.0", description: str | None = None) -> str:
    """Return a page about an app, with the content of :func:`document`, as one file of HTML.

    The page needs no other file and no network, contains no script, and follows the browser's choice of light
    or dark.

    Args:
        app: the app; may be running.
        title: title of the page.
        version: version of the application.
        description: description of the application; shown as plain text.

    Raises:
        UsageError: an argument has another type.
    """
    return _Page(document(app, title=title, version=version, description=description)).html()


class _Page:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        components = document.get("components", {})
        self._schemas: dict[str, Any] = components.get("schemas", {})
        self._messages: dict[str, Any] = components.get("messages", {})
        self._channels: dict[str, Any] = document.get("channels", {})
        self._operations: dict[str, Any] = document.get("operations", {})

    def html(self) -> str:
        """Return the page."""
        title = escape(self._document["info"]["title"])
        return "\n".join(
            [
                '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{_STYLE}</style>\n</head>',
                "<body>",
                *self._head(),
                *(part for name in self._channels for part in self._channel(name)),
                *self._all_messages(),
                *self._all_schemas(),
                "<details><summary>AsyncAPI document</summary>",
                f"<pre>{escape(json.dumps(self._document, indent=2, ensure_ascii=False))}</pre></details>",
                "</body>\n</html>\n",
            ]
        )

    def _head(self) -> Iterator[str]:
        info = self._document["info"]
        yield f'<header><h1>{escape(info["title"])}</h1><p class="dim">Version {escape(info["version"])}</p>'
        if "description" in info:
            yield f"<p>{escape(info['description'])}</p>"
        servers = [
            f"<code>{escape(_address(each))}</code>" for each in self._document.get("servers", {}).values()
        ]
        if servers:
            yield f'<p><span class="dim">Broker</span> {", ".join(servers)}</p>'
        yield "</header><nav><h2>Queues</h2><ul>"
        for name, channel in self._channels.items():
            yield f'<li><a href="#{_anchor("queue", name)}">{escape(channel["title"])}</a></li>'
        yield "</ul></nav><main>" if self._channels else "<li>No queue</li></ul></nav><main>"

    def _channel(self, name: str) -> Iterator[str]:
        channel = self._channels[name]
        yield f'<section><h2 id="{_anchor("queue", name)}">{escape(channel["title"])}</h2>'
        address = channel["address"]
        shown = "The requester chooses the queue." if address is None else f"<code>{escape(address)}</code>"
        brokers = [_address(self._document["servers"][_last(each)]) for each in channel.get("servers", ())]
        where = f" at {escape(', '.join(brokers))}" if len(self._document.get("servers", {})) > 1 else ""
        yield f'<p class="address">{shown}{where}</p>'
        used = [each for each in self._operations.values() if _last(each["channel"]) == name]
        for operation in used:
            yield from self._operation(operation)
        if not used and channel["messages"]:
            yield f"<p>Messages: {self._links(channel['messages'].values())}</p>"
        yield "</section>"

    def _operation(self, operation: Mapping[str, Any]) -> Iterator[str]:
        action = operation["action"]
        word = "receives" if action == "receive" else "sends"
        yield f'<article><h3><span class="action {action}">{word}</span>{escape(operation["title"])}</h3>'
        for member in ("summary", "description"):
            if member in operation:
                yield f"<p>{escape(operation[member])}</p>"
        rows: list[tuple[str, str]] = []
        if "messages" in operation:
            rows.append(("Messages", self._links(operation["messages"])))
        if "reply" in operation:
            rows.append(("Reply", self._links(operation["reply"]["messages"])))
        details = operation.get("x-bmq", {})
        rows += [(label, _shown(name, details[name])) for name, label in _LABELS.items() if name in details]
        yield (
            "<dl>" + "".join(f"<dt>{label}</dt><dd>{value}</dd>" for label, value in rows) + "</dl></article>"
        )

    def _links(self, references: Any) -> str:
        names = [_last(each) for each in references]
        return ", ".join(
            f'<a href="#{_anchor("message", name)}">{escape(self._messages[name]["title"])}</a>'
            for name in names
        )

    def _all_messages(self) -> Iterator[str]:
        if self._messages:
            yield "<h2>Messages</h2>"
        for name, message in self._messages.items():
            yield f'<article id="{_anchor("message", name)}"><h3>{escape(message["title"])}</h3>'
            if "summary" in message:
                yield f"<p>{escape(message['summary'])}</p>"
            yield f"<dl><dt>Content type</dt><dd><code>{escape(message['contentType'])}</code></dd>"
            if "payload" in message:
                yield f"<dt>Payload</dt><dd>{self._type(message['payload'])}</dd>"
            yield "</dl>"
            if "headers" in message:
                yield "<h4>Properties</h4>"
                yield from self._fields(message["headers"])
            yield "</article>"

    def _all_schemas(self) -> Iterator[str]:
        if self._schemas:
            yield "<h2>Schemas</h2>"
        for name, schema in self._schemas.items():
            yield f'<article id="{_anchor("schema", name)}"><h3>{escape(name)}</h3>'
            if "description" in schema:
                yield f"<p>{escape(schema['description'])}</p>"
            if schema.get("properties"):
                yield from self._fields(schema)
            else:
                yield f"<p>{self._type(schema)}</p>"
            yield "</article>"
        yield "</main>"

    def _fields(self, schema: Mapping[str, Any]) -> Iterator[str]:
        required = schema.get("required", ())
        yield '<div class="wide"><table><tr><th>Name</th><th>Type</th><th></th></tr>'
        for name, field in schema["properties"].items():
            notes = ["required"] if name in required else []
            notes += [
                f"{limit} {json.dumps(field[limit])}"
                for limit in _LIMITS
                if is_object(field) and limit in field
            ]
            text = escape(", ".join(notes))
            if is_object(field) and "description" in field:
                text += f"<br>{escape(field['description'])}" if text else escape(field["description"])
            yield f"<tr><td><code>{escape(name)}</code></td><td>{self._type(field)}</td><td>{text}</td></tr>"
        yield "</table></div>"

    def _type(self, schema: Any) -> str:
        """The type of a schema in words, with links to the schemas of classes."""
        if not is_object(schema):
            return "anything" if schema is not False else "nothing"
        if "$ref" in schema:
            name = _last(schema)
            return f'<a href="#{_anchor("schema", name)}">{escape(name)}</a>'
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema:
                return (" and " if word == "allOf" else " or ").join(map(self._type, schema[word]))
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            return " or ".join(
                f"<code>{escape(json.dumps(each, ensure_ascii=False))}</code>" for each in values
            )
        kind = schema.get("type")
        if kind == "array":
            items = schema.get("items")
            if is_array(items):
                return f"array of ({', '.join(map(self._type, items))})"
            return "array" if items is None else f"array of {self._type(items)}"
        if kind == "object" and is_object(schema.get("additionalProperties")):
            return f"object with values of {self._type(schema['additionalProperties'])}"
        return " or ".join(kind) if is_array(kind) else escape(kind or "anything")


def _shown(name: str, value: Any) -> str:
    """A member of ``x-bmq`` in words."""
    match name:
        case "expressions":
            return "<br>".join(f"<code>{escape(each)}</code>" for each in value)
        case "batches":
            return f"at most {value['max_messages']} messages, or after {value['max_wait']:g} s"
        case "timeout":
            return f"{value:g} s"
        case "rate":
            return f"{value:g} messages a second"
        case "discard_unmatched":
            return "discarded"
        case "max_unconfirmed_messages" | "max_unconfirmed_bytes":
            return f"at most {value:,}"
        case "quarantine":
            return f"<code>{escape(value['queue'])}</code>, after {value['after']} ended processes"
        case "retry":
            return _retries(value)
        case _:
            return escape(str(value))


def _retries(retry: Mapping[str, Any]) -> str:
    options = {name: value for name, value in retry.items() if name not in ("policy", "then")}
    match retry["policy"]:
        case "NoRetry":
            parts = ["no retry"]
        case "Backoff":
            parts = [_in_words(name, value) for name, value in options.items()]
        case policy:
            parts = [policy, *(f"{name} {value}" for name, value in options.items())]
    then, end = retry["then"], "; then "
    if is_object(then):
        return escape("; ".join(parts) + end) + f"dead letters to <code>{escape(then['dead_letters'])}</code>"
    known = {"discard": "discarded", "skip": "skipped", "leave": "left unconfirmed"}
    return escape("; ".join(parts) + end + known.get(str(then), str(then)))


def _in_words(name: str, value: Any) -> str:
    """An option of :class:`bmq.Backoff` in words."""
    match name:
        case "every":
            return f"after {value:g} s"
        case "retries":
            return "no limit" if value is None else f"{value} {'retry' if value == 1 else 'retries'}"
        case "factor":
            return f"each pause {value:g} times as long"
        case "cap":
            return f"pauses of at most {value:g} s"
        case "give_up_after":
            return f"up to an age of {value:g} s"
        case "blocks":
            return "newer messages wait"
        case "no_retry":
            return f"not after {', '.join(value)}"
        case _:
            return "durable" if name == "durable" else f"{name} {value}"


def _address(server: Mapping[str, Any]) -> str:
    return f"{'tcps' if server['protocol'] == 'bmqs' else 'tcp'}://{server['host']}"


def _last(reference: Mapping[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _anchor(kind: str, name: str) -> str:
    return escape(f"{kind}-{name}")
