# SPDX-License-Identifier: Apache-2.0
"""The AsyncAPI 3 document of an app.

An app describes itself by its registrations. The words of AsyncAPI map to the words of BlazingMQ as follows:

- *server*: broker of an app, and of each included app;
- *channel*: queue, with its URI as the address. Replies have a channel without an address, because each
  requester names its own queue;
- *operation*: handler. The action is ``receive``; dead letters, quarantined messages and results have
  operations of the action ``send``;
- *message*: type of a handler's values, with the properties as headers; or, for a handler of raw messages,
  the message ``bytes`` without a schema.

AsyncAPI has no word for an expression, a retry policy or a dead-letter queue. These are members of the
extension ``x-bmq`` of operations and channels.

Names of operations, channels and schemas are unique in a document: a second object with the same name has
the suffix ``-2``. The order of registration decides, so equal programs have equal documents.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeGuard

from bmq import _checks
from bmq._dead_letters import DeadLetter
from bmq.client.address import parse_addresses
from bmq.codecs import Shape
from bmq.conventions import CANCEL, ERROR, REPLY_TO
from bmq.workers import AckPolicy, App, Responder, RetryPolicy

__all__ = ["document"]

_KINDS: Final[Mapping[type, dict[str, str]]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    bytes: {"type": "string", "format": "binary"},
}
#: Characters of a name in ``components``, and all others.
_OTHERS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_BYTES: Final = "bytes"
_PROBLEM: Final = "problem"
#: The failure of a request, as bmq.client.requests writes it.
_PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "title": _PROBLEM,
    "description": "A failed request, in the form of RFC 9457.",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "retryable": {"type": "boolean"},
    },
    "required": ["type", "detail"],
}
_PROBLEM_MESSAGE: Final[dict[str, Any]] = {
    "name": _PROBLEM,
    "title": _PROBLEM,
    "summary": "A failed request; bmq.RequestFailed at the requester",
    "contentType": "application/problem+json",
    "headers": {"type": "object", "properties": {ERROR: {"type": "string"}}, "required": [ERROR]},
    "payload": {"$ref": f"#/components/schemas/{_PROBLEM}"},
}
#: The subscription of each responder for cancelled requests.
_CANCELLED: Final = [f"exists({CANCEL})"]


def document(
    app: App[Any], *, title: str = "bmq", version: str = "0.1.0", description: str | None = None
) -> dict[str, Any]:
    """Return the AsyncAPI 3.0 document of an app, as a value for ``json.dumps``.

    The document has the queues of the app and of included routers and apps, a message for each type of
    values, and an operation for each handler. Expressions, retry policies, dead letters and further options
    are members of the extension ``x-bmq``. The function connects to no broker.

    Args:
        app: the app; may be running.
        title: title of the document.
        version: version of the application.
        description: description of the application, in Markdown.

    Raises:
        UsageError: an argument has another type.
    """
    return _Builder().document(
        _checks.choice("app", app, App),
        _checks.text("title", title),
        _checks.text("version", version),
        _checks.optional(_checks.text, "description", description),
    )


class _Builder:
    """Collects the parts of a document."""

    def __init__(self) -> None:
        self._servers: dict[str, dict[str, Any]] = {}
        self._channels: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._messages: dict[str, dict[str, Any]] = {}
        self._schemas: dict[str, dict[str, Any]] = {}
        # Definitions behind each schema, to tell classes with the same name apart.
        self._sources: dict[str, dict[str, Any]] = {}

    def document(self, app: App[Any], title: str, version: str, description: str | None) -> dict[str, Any]:
        """Return the document."""
        for each in _all(app):
            self._app(each)
        components = {"schemas": self._schemas, "messages": self._messages}
        return {
            "asyncapi": "3.0.0",
            "info": _given(title=title, version=version, description=description),
            "defaultContentType": "application/json",
            **_given(servers=self._servers, channels=self._channels, operations=self._operations),
            **_given(components=_given(**components)),
        }

    def _app(self, app: App[Any]) -> None:
        servers = self._brokers(app._broker)
        registry = app._registry
        for each in registry.handlers:
            options = each.options
            expressions = options.expressions
            if expressions == _CANCELLED:
                continue
            function: Any = each.handler
            responder = each.responder
            channel = self._channel(str(each.uri), servers)
            name = _named(function).rpartition("<locals>.")[2]
            message = self._message(channel, each.plan.shape, each.plan.properties, name)
            details: dict[str, Any] = _given(
                expressions=[text for text in expressions if text],
                priority=options.priority,
                concurrency=options.concurrency if options.concurrency != 1 else None,
                key=_named(options.key) if options.key is not None else None,
                ack=options.ack.value if options.ack is not AckPolicy.ON_SUCCESS else None,
                batches=None
                if options.batches is None
                else _fields(options.batches, "max_messages", "max_wait"),
                timeout=options.timeout,
                rate=options.rate,
                discard_unmatched=options.discard_unmatched or None,
                max_unconfirmed_messages=options.max_unconfirmed_messages,
                max_unconfirmed_bytes=options.max_unconfirmed_bytes,
                retry=_retry(options.policy) if responder is None else None,
                quarantine=_quarantine(options.quarantine, options.after),
            )
            operation = {
                "action": "receive",
                "channel": {"$ref": channel},
                "title": name,
                **_documented(function),
                "messages": [{"$ref": message}],
                **({"reply": self._reply(name, responder)} if responder is not None else {}),
                **_given(**{"x-bmq": details}),
            }
            key = _add(self._operations, name, operation)
            for role, letters in (("dead letters", options.policy.then), ("quarantine", options.quarantine)):
                if isinstance(letters, DeadLetter) and responder is None:
                    channel = self._channel(letters.uri, servers)
                    sent = [self._linked(channel, message.rpartition("/")[2])]
                    self._sending(f"{key}.{role.replace(' ', '-')}", channel, name, role, sent)
            for output, results in each.outputs:
                channel = self._channel(str(output.uri), servers)
                sent = self._messages_of(channel, results.kinds, name)
                self._sending(f"{key}.output", channel, name, "output", sent)
        for sweeper in registry.sweepers:
            what = "Messages without a matching subscription"
            self._housekeeping("sweep", "sweeper", sweeper.queue, what, servers)
        for uri in registry.waiting:
            what = "Delayed messages until they are due"
            self._housekeeping("move", "mover", str(uri), what, servers)

    def _brokers(self, broker: str | None) -> list[str]:
        """Add the brokers of an app; return references."""
        if broker is None:
            return []
        found: list[str] = []
        for address in parse_addresses(broker):
            host = f"[{address.host}]" if ":" in address.host else address.host
            server = {"host": f"{host}:{address.port}", "protocol": "bmqs" if address.tls else "bmq"}
            known = next((name for name, each in self._servers.items() if each == server), None)
            found.append(f"#/servers/{known or _add(self._servers, 'broker', server)}")
        return found

    def _channel(self, uri: str, servers: list[str]) -> str:
        """Add a queue; return its reference."""
        references = [{"$ref": each} for each in servers]
        for name, known in self._channels.items():
            if known["address"] == uri and known.get("servers", []) == references:
                return f"#/channels/{name}"
        path, _, application = uri.partition("?id=")
        name = ".".join(filter(None, (path.removeprefix("bmq://").replace("/", "."), application)))
        channel: dict[str, Any] = {
            "address": uri,
            "title": uri.rpartition("/")[2],
            **_given(servers=references),
            "messages": {},
        }
        return f"#/channels/{_add(self._channels, name, channel)}"

    def _message(
        self, channel: str, shape: Shape[Any] | None, properties: Mapping[str, type], handler: str
    ) -> str:
        """Add the messages of a handler to its queue; return the reference."""
        kinds = {**(shape.properties if shape is not None else {}), **properties}
        fields = {name: _KINDS[kind] for name, kind in kinds.items()}
        headers = {"headers": {"type": "object", "properties": fields}} if fields else {}
        if shape is None:
            message: dict[str, Any] = {
                "name": f"{handler}.{_BYTES}" if kinds else _BYTES,
                "title": _BYTES,
                "summary": "A payload that the handler decodes itself",
                "contentType": "application/octet-stream",
                **headers,
            }
        else:
            made = _title(shape)
            message = {
                "name": made,
                "title": shape.name,
                "contentType": shape.codec.content_type,
                **headers,
                **_given(payload=self._payload(shape)),
            }
        return self._linked(channel, _add(self._messages, message["name"], message))

    def _payload(self, shape: Shape[Any]) -> dict[str, Any]:
        """Add the schemas of a type; return the schema of its payload."""
        schema = {**shape.json_schema()}
        definitions: dict[str, Any] = {**schema.pop("$defs", {})}
        if "properties" in schema:  # pydantic has the outermost class instead of a reference
            title = schema.get("title", shape.name)
            definitions[title] = schema
            schema = {"$ref": f"#/$defs/{title}"}
        names: dict[str, str] = {}
        for old in definitions:
            source = _closure(old, definitions)
            names[old] = _add(self._sources, old, source)
        for old, definition in definitions.items():
            self._schemas[names[old]] = _rewritten(definition, names)
        made: dict[str, Any] = _rewritten(schema, names)
        return made

    def _reply(self, name: str, responder: Responder) -> dict[str, Any]:
        """Add the replies of a responder; return the member of the operation."""
        channel: dict[str, Any] = {"address": None, "title": f"Replies of {name}", "messages": {}}
        reference = f"#/channels/{_add(self._channels, f'{name}.replies', channel)}"
        replies = self._messages_of(reference, responder._results.kinds, name)
        self._schemas[_PROBLEM] = self._sources[_PROBLEM] = _PROBLEM_SCHEMA
        replies.append(self._linked(reference, _add(self._messages, _PROBLEM, _PROBLEM_MESSAGE)))
        return {
            "address": {"location": f"$message.header#/{REPLY_TO}", "description": "Queue of the requester"},
            "channel": {"$ref": reference},
            "messages": [{"$ref": each} for each in replies],
        }

    def _linked(self, channel: str, message: str) -> str:
        """Add a message to a queue; return the reference."""
        members = self._channels[channel.removeprefix("#/channels/")]["messages"]
        members[message] = {"$ref": f"#/components/messages/{message}"}
        return f"{channel}/messages/{message}"

    def _messages_of(self, channel: str, shapes: Iterable[Shape[Any] | None], handler: str) -> list[str]:
        """Add a message of each shape to a queue; return the references."""
        return [self._message(channel, shape, {}, handler) for shape in shapes]

    def _sending(self, key: str, channel: str, handler: str, role: str, messages: list[str]) -> None:
        """Add the operation of a handler that sends messages to a queue."""
        operation = {
            "action": "send",
            "channel": {"$ref": channel},
            "title": f"{handler}, {role}",
            "messages": [{"$ref": each} for each in messages],
            "x-bmq": {"role": role},
        }
        _add(self._operations, key, operation)

    def _housekeeping(self, verb: str, role: str, uri: str, summary: str, servers: list[str]) -> None:
        channel = self._channel(uri, servers)
        operation = {
            "action": "receive",
            "channel": {"$ref": channel},
            "title": f"{verb} {uri.rpartition('/')[2]}",
            "summary": summary,
            "x-bmq": {"role": role},
        }
        _add(self._operations, f"{verb}.{channel.rpartition('/')[2]}", operation)


def _all(app: App[Any]) -> Iterator[App[Any]]:
    """The app, and the apps that it includes."""
    yield app
    for part in app._parts:
        yield from _all(part)


def _given(**members: Any) -> dict[str, Any]:
    """Return the members that are neither None nor empty."""
    return {name: value for name, value in members.items() if value is not None and value not in ({}, [])}


def _add(parts: dict[str, Any], name: str, part: Any) -> str:
    """Add a part; return its name, with a suffix if another part has the name. Equal parts are one part."""
    wanted = _OTHERS.sub("-", name).strip("-") or "unnamed"
    name, number = wanted, 1
    while name in parts and parts[name] != part:
        number += 1
        name = f"{wanted}-{number}"
    parts[name] = part
    return name


def _closure(name: str, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition with all definitions that it needs, and its name under the empty name."""
    found: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found and current in definitions:
            found[current] = definitions[current]
            waiting += _referenced(definitions[current])
    return {"": name, **found}


def _referenced(schema: Any) -> Iterator[str]:
    if _is_object(schema):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix("#/$defs/")
        for each in schema.values():
            yield from _referenced(each)
    elif _is_array(schema):
        for each in schema:
            yield from _referenced(each)


def _rewritten(schema: Any, names: Mapping[str, str]) -> Any:
    """Return a schema in the dialect of AsyncAPI, with references to ``components``."""
    if _is_array(schema):
        return [_rewritten(each, names) for each in schema]
    if not _is_object(schema):
        return schema
    made: dict[str, Any] = {name: _rewritten(value, names) for name, value in schema.items()}
    reference = made.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        made["$ref"] = f"#/components/schemas/{names[reference.removeprefix('#/$defs/')]}"
    if _is_array(made.get("prefixItems")):  # JSON Schema of draft 7 has an array here
        made["items"] = made.pop("prefixItems")
    return made


def _title(shape: Shape[Any]) -> str:
    return _OTHERS.sub("-", shape.name).strip("-")


def _named(thing: object) -> str:
    """Return a text, or the name of a function or class."""
    return thing if isinstance(thing, str) else getattr(thing, "__qualname__", type(thing).__name__)


def _documented(function: object) -> dict[str, str]:
    """Return the docstring of a handler: the first paragraph, and the rest."""
    first, _, rest = (inspect.getdoc(function) or "").partition("\n\n")
    return _given(summary=" ".join(first.split()) or None, description=rest.strip() or None)


def _fields(thing: object, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def _retry(policy: RetryPolicy) -> dict[str, Any]:
    """Describe a retry policy: the class, its options that differ from the default, and the final action."""
    made: dict[str, Any] = {"policy": type(policy).__name__.lstrip("_")}
    of: Any = policy
    for field in dataclasses.fields(of) if dataclasses.is_dataclass(of) else ():
        value = getattr(of, field.name)
        if field.name == "then" or (value == field.default and field.name not in ("every", "retries")):
            continue
        if field.name == "no_retry":
            if getattr(value, "__module__", "").startswith("bmq."):
                continue  # the function of the default policy
            errors: list[object] = [*value] if isinstance(value, tuple) else [value]
            value = [_named(each) for each in errors]
        made[field.name] = value if isinstance(value, bool | int | float | list | None) else _named(value)
    then = policy.then
    return made | {"then": {"dead_letters": then.uri} if isinstance(then, DeadLetter) else then}


def _quarantine(quarantine: DeadLetter | None, after: int) -> dict[str, Any] | None:
    return None if quarantine is None else {"queue": quarantine.uri, "after": after}


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_array(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
