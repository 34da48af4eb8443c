# SPDX-License-Identifier: Apache-2.0
"""The API reference: a page for each public class, and a page for each module.

The text comes from the docstrings, with sections in Google's style: Args, Attributes, Returns, Raises,
Yields. Functions and constants are on the page of their module; each function of ``bmq`` has a page. Every
type in a signature is a link to its page.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from types import ModuleType
from typing import Any

__all__ = ["Reference"]

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")
#: A role, or a name of the package as code: both become links.
_REFERENCE = re.compile(_ROLE.pattern + r"|`{1,2}(bmq\.[\w.]+(?:\(\))?)`{1,2}")
_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields")
_ITEM = re.compile(r"^    (\*{0,2}[\w., ]+?): (.*)$")
_NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_][\w.]*")
#: The longest signature on a single line.
_ONE_LINE = 72


class Reference:
    """The pages of the reference, by path.

    Args:
        modules: the modules with the public names, by module name; the first is ``bmq``.
        first: for each module, the names at the head of its list.
        sources: for the name of a ``TypedDict`` of arguments, the classes with the defaults and texts.
        notes: for some classes, a text below the docstring.
    """

    def __init__(
        self,
        modules: Mapping[str, ModuleType],
        *,
        first: Mapping[str, Sequence[str]],
        sources: Mapping[str, Sequence[Any]],
        notes: Mapping[type, str],
    ) -> None:
        self._modules = dict(modules)
        self._sources = dict(sources)
        self._notes = dict(notes)
        self._names: dict[str, dict[str, Any]] = {}
        self._links: dict[Any, str] = {}
        self._by_name: dict[str, str] = {}
        errors = self._modules["bmq.errors"]
        for module, found in self._modules.items():
            names = self._names[module] = {}
            for name in [
                *first.get(module, ()),
                *(n for n in found.__all__ if n not in first.get(module, ())),
            ]:
                value = getattr(found, name)
                elsewhere = name in errors.__all__ if module == "bmq" else self._is_taken(name, value)
                if name.startswith("_") or inspect.ismodule(value) or elsewhere:
                    continue
                names[name] = value
                self._by_name.setdefault(name, self._place(module, name, value))
                if inspect.isclass(value) or inspect.isroutine(value):
                    self._links.setdefault(value, self._place(module, name, value))

    def _is_taken(self, name: str, value: Any) -> bool:
        """Whether an earlier module has the name."""
        if inspect.isclass(value) or inspect.isroutine(value):
            return value in self._links
        return name in self._names["bmq"]

    def _place(self, module: str, name: str, value: Any) -> str:
        """The address of a name below ``api/``, without suffix."""
        if inspect.isclass(value) or (inspect.isroutine(value) and module == "bmq"):
            short = module in ("bmq", "bmq.errors") or getattr(self._modules["bmq"], name, None) is value
            return name if short else f"{module.removeprefix('bmq.')}.{name}"
        return f"{_page_of(module)}#{name.lower()}"

    def pages(self) -> dict[str, str]:
        """Return every page as Markdown, by path."""
        found = {}
        for module, names in self._names.items():
            found[f"api/{_page_of(module)}.md"] = self._module(module)
            for name, value in names.items():
                place = self._place(module, name, value)
                if "#" not in place:
                    found[f"api/{place}.md"] = self._own_page(module, name, value)
        return found

    def page_of(self, value: Any) -> str:
        """Return the page of a class, or of a function of ``bmq``."""
        for module, names in self._names.items():
            for name, each in names.items():
                if each is value:
                    return self._own_page(module, name, value)
        raise LookupError(f"{value!r} is no public name")

    def navigation(self) -> list[dict[str, list[dict[str, str]]]]:
        """Return the entries of the site's navigation: a section for each module."""
        sections = []
        for module, names in self._names.items():
            places = {name: self._place(module, name, value) for name, value in names.items()}
            entries = [{name: f"api/{place}.md"} for name, place in places.items() if "#" not in place]
            sections.append({module: [{module: f"api/{_page_of(module)}.md"}, *entries]})
        return sections

    def index(self, module: str, prefix: str = "../api/") -> str:
        """Return a table of a module's names, for a page in a folder beside ``api``."""
        lines = ["| name | purpose |", "| --- | --- |"]
        for name, value in self._names[module].items():
            place, _, anchor = self._place(module, name, value).partition("#")
            link = f"{prefix}{place}.md" + (f"#{anchor}" if anchor else "")
            doc = (inspect.getdoc(value) or "") if callable(value) else self._constant(module, name)[1]
            text = _plain_text(doc.partition("\n\n")[0]).replace("|", "\\|")
            lines.append(f"| [`{name}`]({link}) | {text} |")
        return "\n".join(lines)

    # ---- pages

    def _module(self, module: str) -> str:
        names = self._names[module]
        parts = [f"# {module}", self._render(inspect.getdoc(self._modules[module]) or "")]
        parts.append(self.index(module, prefix=""))
        for name, value in names.items():
            if "#" not in self._place(module, name, value):
                continue
            parts.append(f"## {name}")
            if inspect.isroutine(value):
                parts += [self._signature(name, value), self._render(inspect.getdoc(value) or "", value)]
            else:
                text, doc = self._constant(module, name)
                parts += [
                    f'<pre class="signature"><code>{self._linked(text, {})}</code></pre>' if text else ""
                ]
                parts.append(self._render(doc))
        return "\n\n".join(filter(None, parts))

    def _own_page(self, module: str, name: str, value: Any) -> str:
        kind = "class" if inspect.isclass(value) and name[0].isupper() else "function"
        if inspect.isclass(value) and issubclass(value, BaseException):
            kind = "error" if not issubclass(value, Warning) else "warning"
        parts = [f"# {name}", f"*{kind} of [`{module}`]({_page_of(module)}.md)*"]
        if not inspect.isclass(value) or not _is_plain(value):
            parts.append(self._signature(name, value))
        if inspect.isclass(value):
            bases = [each for each in value.__bases__ if self._is_shown(each)]
            if bases and not typing.is_typeddict(value):
                parts.append("Bases: " + ", ".join(map(self._link, bases)))
        parts.append(self._render(inspect.getdoc(value) or "", value))
        parts.append(self._options(value))
        parts.append(self._notes.get(value, ""))
        if inspect.isclass(value):
            if issubclass(value, enum.Enum):
                rows = [f"| `{member.name}` | `{member.value!r}` |" for member in value]
                parts.append("\n".join(["| member | value |", "| --- | --- |", *rows]))
            else:
                parts += self._members(name, value)
        return "\n\n".join(filter(None, parts))

    def _is_shown(self, base: type) -> bool:
        private = base.__module__.startswith("bmq") and base not in self._links
        return not private and base not in (object, typing.Generic)

    def _members(self, name: str, cls: type) -> Iterator[str]:
        own = dict(_documented(cls))
        for base in cls.__mro__[1:]:
            if base not in self._links and base.__module__.startswith("bmq"):
                for attribute, member in _documented(base):
                    own.setdefault(attribute, member)
        if len(own) > 3:
            anchors = [(attribute, _anchor(name, attribute)) for attribute in own]
            yield "**Members**: " + ", ".join(f"[`{attribute}`](#{anchor})" for attribute, anchor in anchors)
        for attribute, member in own.items():
            yield from self._member(cls, attribute, member)
        inherited = []
        own |= _items(inspect.getdoc(cls) or "", "Attributes")
        for base in cls.__mro__[1:]:
            if not base.__module__.startswith("bmq"):
                continue
            texts = _items(inspect.getdoc(base) or "", "Attributes")
            texts |= {attribute: inspect.getdoc(member) or "" for attribute, member in _documented(base)}
            for attribute, text in texts.items():
                if attribute not in own and not attribute.startswith("_"):
                    own[attribute] = text
                    inherited.append(self._row(base, attribute, _first(text)))
        if inherited:
            table = ["| member | from | purpose |", "| --- | --- | --- |", *inherited]
            yield "## Inherited members\n\n" + "\n".join(table)

    def _row(self, base: type, attribute: str, text: str) -> str:
        """A row of the table of inherited members."""
        if base not in self._links:
            return f"| `{attribute}` | | {text} |"
        anchor = f"#{_anchor(base.__name__, attribute)}" if attribute in dict(_documented(base)) else ""
        return f"| [`{attribute}`]({self._links[base]}.md{anchor}) | {self._link(base)} | {text} |"

    def _member(self, cls: type, name: str, member: Any) -> Iterator[str]:
        if isinstance(member, property):
            yield f"## {cls.__name__}.{name}"
            returns = _annotations(member.fget).get("return", "")
            if returns:
                linked = self._linked(returns, _globals(member.fget))
                yield f'<pre class="signature"><code>{name}: {linked}</code></pre>'
            yield self._render(inspect.getdoc(member) or "", member.fget, cls)
            return
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        yield f"## {cls.__name__}.{name}()"
        yield self._signature(name, function)
        yield self._render(inspect.getdoc(member) or "", function, cls)
        yield self._options(function)

    def _options(self, thing: Any) -> str:
        """The keyword arguments behind a ``TypedDict``, with their texts."""
        found: dict[str, str] = {}
        kind = self._unpacked(thing)
        annotations = inspect.get_annotations(kind) if kind else {}
        for source in self._sources_of(kind) if kind else ():
            doc, scope = inspect.getdoc(source) or "", vars(sys.modules[source.__module__])
            for name, text in {**_items(doc, "Attributes"), **_items(doc, "Args")}.items():
                if name in annotations and name not in found:
                    shown = self._referring(text, source)
                    found[name] = self._item(name, shown, _text_of(annotations[name]), scope)
        return "**Options**\n\n" + "\n".join(found.values()) if found else ""

    def _sources_of(self, kind: type) -> Sequence[Any]:
        return self._sources.get(kind.__name__, [kind])

    def _unpacked(self, thing: Any) -> type | None:
        function = thing.__init__ if inspect.isclass(thing) else thing
        for annotation in _annotations(function).values():
            if match := re.fullmatch(r"(?:typing\.)?Unpack\[(\w+)\]", annotation):
                # Some are imported for type checkers only.
                return _globals(function).get(match[1]) or self._value_at(match[1])
        return None

    # ---- signatures

    def _signature(self, name: str, thing: Any) -> str:
        try:
            signature = inspect.signature(thing)
        except (TypeError, ValueError):
            return ""
        function = thing.__init__ if inspect.isclass(thing) else thing
        scope = _globals(function) or vars(sys.modules[thing.__module__])
        parts = []
        keyword_only = False
        for parameter in signature.parameters.values():
            if parameter.name in ("self", "cls"):
                continue
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
                keyword_only = True
                parts.append("*")
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and (unpacked := self._unpacked(thing)):
                parts += self._spelled_out(unpacked)
            else:
                parts.append(self._parameter(parameter, scope))
        returns = ""
        if not inspect.isclass(thing) and signature.return_annotation is not inspect.Signature.empty:
            returns = " -> " + self._linked(_text_of(signature.return_annotation), scope)
        prefix = "await " if inspect.iscoroutinefunction(thing) else ""
        line = ", ".join(parts)
        if len(re.sub(r"<[^>]+>", "", f"{prefix}{name}({line}){returns}")) > _ONE_LINE:
            line = "\n" + "".join(f"    {part},\n" for part in parts)
        return f'<pre class="signature"><code>{prefix}<b>{name}</b>({line}){returns}</code></pre>'

    def _spelled_out(self, kind: type) -> Iterator[str]:
        """The options of a ``TypedDict`` as parameters, with defaults."""
        scope = vars(sys.modules[kind.__module__])
        defaults: dict[str, str] = {}
        for source in self._sources_of(kind):
            if source is not kind:
                for name, parameter in inspect.signature(source).parameters.items():
                    defaults.setdefault(name, _default(parameter.default))
        for name, annotation in inspect.get_annotations(kind).items():
            yield f"{name}: {self._linked(_text_of(annotation), scope)} = {escape(defaults.get(name, '...'))}"

    def _parameter(self, parameter: inspect.Parameter, scope: Mapping[str, Any]) -> str:
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        text = stars.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not inspect.Parameter.empty:
            text += ": " + self._linked(_text_of(parameter.annotation), scope)
        if parameter.default is not inspect.Parameter.empty:
            equals = " = " if parameter.annotation is not inspect.Parameter.empty else "="
            text += equals + escape(_default(parameter.default))
        return text

    def _linked(self, annotation: str, scope: Mapping[str, Any]) -> str:
        """An annotation as HTML, each public name a link."""
        parts, end = [], 0
        for match in _NAME.finditer(annotation):
            parts.append(escape(annotation[end : match.start()]))
            end = match.end()
            place = self._place_of(match[0], scope)
            if place:
                page, _, anchor = place.partition("#")
                href = f"{page}.html" + (f"#{anchor}" if anchor else "")
                parts.append(f'<a href="{href}">{match[0]}</a>')
            else:
                parts.append(escape(match[0]))
        return "".join(parts) + escape(annotation[end:])

    def _place_of(self, name: str, scope: Mapping[str, Any]) -> str:
        first, *rest = name.split(".")
        value = scope.get(first, self)
        for each in rest:
            value = getattr(value, each, self)
        try:
            if value in self._links:
                return self._links[value]
        except TypeError:  # not hashable, so neither a class nor a function
            pass
        # Names of unions, and names imported for type checkers only: found by name.
        known = value is self or not inspect.isclass(value)
        return self._by_name.get(name.split(".")[-1], "") if known else ""

    def _link(self, cls: type) -> str:
        return f"[`{cls.__name__}`]({self._links[cls]}.md)" if cls in self._links else f"`{cls.__name__}`"

    # ---- docstrings

    def _render(self, doc: str, thing: Any = None, owner: type | None = None) -> str:
        """Return a docstring as Markdown, with the types of arguments and attributes."""
        owner = thing if inspect.isclass(thing) else owner
        annotations: dict[str, str] = {}
        scope: Mapping[str, Any] = {}
        if inspect.isclass(thing):
            scope = vars(sys.modules[thing.__module__])
            for base in reversed(thing.__mro__):
                annotations |= {k: _text_of(v) for k, v in inspect.get_annotations(base).items()}
            annotations |= _annotations(thing.__init__)
        elif thing is not None:
            annotations, scope = _annotations(thing), _globals(thing)
        blocks: list[str] = []
        section, in_code = "", False
        for line in self._referring(doc, owner).split("\n"):
            if in_code and line and not line.startswith("    "):
                while not blocks[-1]:
                    blocks.pop()
                blocks += ["```", ""]
                in_code = False
            if in_code:
                if line or blocks[-1] != "```python":
                    blocks.append(line.removeprefix("    "))
            elif line.rstrip(":") in _SECTIONS and line.endswith(":"):
                section = line
                blocks.append(f"\n**{line[:-1]}**\n")
            elif section and line.startswith("    ") and line.strip():
                item = _ITEM.match(line)
                if item and section == "Raises:":
                    names = ", ".join(self._error(name.strip()) for name in item[1].split(","))
                    blocks.append(f"- {names}: {item[2]}")
                elif item:
                    blocks.append(self._item(item[1], item[2], annotations.get(item[1], ""), scope))
                elif line.startswith("        ") and blocks[-1].startswith("- "):
                    blocks[-1] += " " + line.strip()
                else:
                    blocks.append(line.strip())
            elif line.endswith("::"):
                blocks += [line[:-1] if line.strip() != "::" else "", "```python"]
                in_code = True
            else:
                section = section if not line else ""
                blocks.append(line)
        if in_code:
            blocks.append("```")
        return "\n".join(blocks).strip()

    def _item(self, name: str, text: str, annotation: str, scope: Mapping[str, Any]) -> str:
        kind = ""
        if annotation and not annotation.startswith("Unpack["):
            kind = f' <code class="type">{self._linked(annotation, scope)}</code>'
        return f"- `{name}`{kind}: {text}"

    def _error(self, name: str) -> str:
        place = self._by_name.get(name, "")
        return f"[`{name}`]({place}.md)" if place and "#" not in place else f"`{name}`"

    def _referring(self, doc: str, owner: type | None) -> str:
        """A docstring with each reference as a link."""
        linked = _REFERENCE.sub(lambda match: self._reference(match[1] or match[2], owner), doc)
        return linked.replace("``", "`")

    def _reference(self, target: str, owner: type | None) -> str:
        """A name as a link, if the name has a page; otherwise as code."""
        shown = target.removesuffix("()")
        code = f"`{target}`"
        if shown in self._modules:
            return f"[{code}]({_page_of(shown)}.md)"
        path, _, last = shown.rpartition(".")
        value = self._value(shown)
        if value is not None:
            place = self._links.get(value, "") if callable(value) else self._by_name.get(last, "")
            return f"[{code}]({_markdown_address(place)})" if place else code
        cls = self._value(path) if path else owner
        if inspect.isclass(cls) and cls in self._links:
            for base in cls.__mro__:
                if last in dict(_documented(base)):
                    return f"[{code}]({self._links[cls]}.md#{_anchor(cls.__name__, last)})"
            return f"[{code}]({self._links[cls]}.md)" if path else code
        return code

    def _value(self, name: str) -> Any:
        """The public object of a name: ``bmq.Queue``, ``bmq.workers.Failure``, or ``Queue``."""
        path, _, last = name.rpartition(".")
        if path in self._modules:
            return getattr(self._modules[path], last, None)
        return None if path or not name[:1].isupper() else self._value_at(name)

    def _value_at(self, name: str) -> Any:
        return next((names[name] for names in self._names.values() if name in names), None)

    def _constant(self, module: str, name: str) -> tuple[str, str]:
        """A constant's value, and the text at the definition."""
        found = _constants(module).get(name)
        if found is None:
            return "", inspect.getdoc(type(getattr(self._modules[module], name))) or ""
        return found


def _markdown_address(place: str) -> str:
    page, _, anchor = place.partition("#")
    return f"{page}.md" + (f"#{anchor}" if anchor else "")


def _page_of(module: str) -> str:
    return module.removeprefix("bmq.")


def _anchor(owner: str, name: str) -> str:
    """The anchor of a member's heading."""
    return f"{owner}{name}".lower()


@cache
def _constants(package: str) -> dict[str, tuple[str, str]]:
    """All annotated names at the top of a package's modules: value and text."""
    found = {}
    for module in [m for n, m in sys.modules.items() if n.startswith(package)]:
        text = inspect.getsource(module)
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.AnnAssign) and node.value:
                target, value = node.target, node.value
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            else:
                continue
            comment: list[str] = []
            while lines[node.lineno - 2 - len(comment)].startswith("#:"):
                comment.insert(0, lines[node.lineno - 2 - len(comment)].removeprefix("#:").strip())
            after = re.match(r'"""(.*?)"""', "\n".join(lines[node.end_lineno or 0 :]), re.DOTALL)
            doc = after[1] if after else " ".join(comment)
            if isinstance(node, ast.AnnAssign) or doc:
                found[ast.unparse(target)] = ast.unparse(value), doc
    return found


def _is_plain(cls: type) -> bool:
    """Whether programs never call the class: enumerations, errors, and results of other calls."""
    made_elsewhere = (inspect.getdoc(cls) or "").find("Created by") >= 0
    return issubclass(cls, enum.Enum | BaseException) or made_elsewhere


def _documented(cls: type) -> Iterator[tuple[str, Any]]:
    """The public members of a class with a docstring, in the order of the source."""
    for name, member in vars(cls).items():
        documented = isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)
        if not name.startswith("_") and documented and inspect.getdoc(member):
            yield name, member


def _annotations(function: Any) -> dict[str, str]:
    found = getattr(function, "__annotations__", {})
    return {name: _text_of(value) for name, value in found.items()}


def _globals(function: Any) -> Mapping[str, Any]:
    return getattr(inspect.unwrap(function), "__globals__", {}) if callable(function) else {}


def _text_of(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation.replace("ssl_module.", "ssl.")
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    if inspect.isclass(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:_}"
    if callable(value):
        name = getattr(value, "__name__", "...")
        return "..." if name == "<lambda>" else name
    return "..." if " object at 0x" in repr(value) or repr(value).startswith("<") else repr(value)


def _items(doc: str, section: str) -> dict[str, str]:
    """The items of a docstring's section: names and texts."""
    found: dict[str, str] = {}
    inside, name = False, ""
    for line in doc.split("\n"):
        if line == f"{section}:":
            inside = True
        elif inside and line and not line.startswith("    "):
            break
        elif inside and (item := _ITEM.match(line)):
            name = item[1]
            found[name] = item[2]
        elif inside and name and line.strip():
            found[name] += " " + line.strip()
    return found


def _plain_text(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`").replace("\n", " ")


def _first(doc: str) -> str:
    return _plain_text(doc.partition("\n\n")[0]).replace("|", "\\|")
