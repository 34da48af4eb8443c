# SPDX-License-Identifier: Apache-2.0
"""``bmq contexts``: named brokers, with credentials in the keyring of the system or in a private file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import bmq
from bmq.cli.completion import complete_contexts
from bmq.cli.consoles import out, table
from bmq.cli.output import BadInput, ExitStatus, emit, note
from bmq.cli.records import Form, Records
from bmq.cli.target import (
    Context,
    Contexts,
    call_keyring,
    contexts_file,
    edit_contexts,
    given_password,
    read_contexts,
    tls_of,
    why_no_keyring,
)
from bmq.cli.verb import OUTPUT, argument, option, verb
from bmq.client.address import parse_addresses

#: Fields of the records of ``list`` and ``show``.
FIELDS: Final = (
    *("name", "current", "address", "domain", "user", "password", "ca", "cert", "key", "server_name"),
    "mechanism",
)
_COLUMNS: Final = ("name", "address", "domain", "user", "password")
_LEGAL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_NAME = Annotated[str, argument("NAME", "Name of the context.", autocompletion=complete_contexts)]


@verb("contexts list", broker=False)
def list_contexts(output: OUTPUT = Form.TABLE) -> None:
    """List the contexts. An asterisk marks the one in use.

    [bold]Examples[/]

    $ bmq contexts list
    $ bmq contexts list --output json | jq -r .name
    """
    contexts = read_contexts()
    chosen = os.environ.get("BMQ_CONTEXT") or contexts.current
    records = [_record(name, entry, chosen) for name, entry in sorted(contexts.entries.items())]
    if writer := Records.of(output, FIELDS):
        for record in records:
            writer.write(record)
        return
    # Spaces between the addresses: a narrow terminal breaks the line there, not within a name.
    shown = [each | {"address": each["address"].replace(",", ", ")} for each in records]
    rows = [["*" if each["current"] else "", *(each[name] or "" for name in _COLUMNS)] for each in shown]
    if rows:
        out().print(table(["", *_COLUMNS], rows))
    else:
        note("no contexts; for example: bmq contexts add local tcp://localhost:30114")
    if os.environ.get("BMQ_CONTEXT"):
        note(f"BMQ_CONTEXT chooses {chosen!r}")
    elif os.environ.get("BMQ_BROKER_URI"):
        note(f"BMQ_BROKER_URI chooses {os.environ['BMQ_BROKER_URI']}, before a context")


def _record(name: str, entry: Context, current: str) -> dict[str, Any]:
    """Return a context without its secrets: only where the password is."""
    own = ("domain", "user", "ca", "cert", "key", "server_name", "mechanism")
    return {
        "name": name,
        "current": name == current,
        "address": entry.uri,
        "password": _place(entry),
        **{member: getattr(entry, member) for member in own},
    }


def _place(entry: Context) -> str | None:
    if entry.password_file:
        return f"the file {entry.password_file}"
    if entry.password_command is not None:
        return "a command"
    if entry.password is not None:
        return "the file of the contexts"
    if entry.password_store is not None:
        return "the keyring"
    if entry.user is not None:
        return f"the variable {entry.password_env or 'BMQ_PASSWORD'}, or a prompt"
    return None


@verb("contexts show", broker=False)
def show(
    name: str | None = argument(
        "[NAME]", "Name of the context; by default the one in use.", autocompletion=complete_contexts
    ),
    output: OUTPUT = Form.TABLE,
) -> None:
    """Show one context, without its password.

    [bold]Examples[/]

    $ bmq contexts show prod
    """
    contexts = read_contexts()
    current = os.environ.get("BMQ_CONTEXT") or contexts.current
    wanted = current if name is None else name
    if not wanted:
        raise BadInput("no context is in use: give a name, or choose one with bmq contexts use NAME")
    record = _record(wanted, contexts.find(wanted), current)
    if writer := Records.of(output, FIELDS):
        writer.write(record)
        return
    for field in FIELDS:
        value = record[field]
        if value not in (None, ""):
            shown = ("yes" if value else "no") if isinstance(value, bool) else value
            emit(f"{field.replace('_', ' '):<12} {shown}")


@verb("contexts add", broker=False)
def add(
    name: str = argument("NAME", "Name of the context."),
    address: str = argument("ADDRESS", "tcp://HOST:PORT, or tcps:// for TLS; several addresses with commas."),
    domain: str | None = option("--domain -d DOMAIN", "Domain of queues that are given by name alone."),
    user: str | None = option("--user NAME", "User name."),
    store: str | None = option(
        "--store keyring|file",
        "Where to store the password; by default the keyring, and the file without a keyring.",
    ),
    password_stdin: bool = option("--password-stdin", "Read the password to store from standard input."),
    password_file: str | None = option(
        "--password-file FILE", "Store no password: read this file at each use."
    ),
    password_env: str | None = option("--password-env NAME", "Store no password: use this variable."),
    password_command: str | None = option(
        "--password-command COMMAND", "Store no password: run this command at each use."
    ),
    ca: str | None = option("--ca FILE", "Trusted certificates."),
    cert: str | None = option("--cert FILE", "This client's certificate."),
    key: str | None = option("--key FILE", "Key of the certificate."),
    server_name: str | None = option("--server-name NAME", "Name in the broker's certificate."),
    use: bool = option("--use", "Use the context from now on."),
    replace: bool = option("--replace", "Replace a context of the same name."),
) -> None:
    """Add a context: a name for a broker with its credentials.

    The password comes from a prompt, from BMQ_PASSWORD, or from --password-stdin, and goes into the keyring
    of the system, or into a file that only its owner may read. The command connects to no broker: bmq
    doctor --context NAME does.

    [bold]Examples[/]

    $ bmq contexts add local tcp://localhost:30114 --use
    $ bmq contexts add prod tcps://node1.example.com,tcps://node2.example.com --user operator
    $ bmq contexts add ci tcps://bmq1.example.com --user ci --password-env CI_PASSWORD
    """
    if not _LEGAL.fullmatch(name):
        raise BadInput(
            "the name of a context has up to 64 letters, digits, '.', '_' and '-', and begins with a letter, "
            f"a digit or '_'; {name!r} does not"
        )
    places = {
        "--password-file": password_file,
        "--password-env": password_env,
        "--password-command": password_command,
    }
    texts = {**places, "--ca": ca, "--cert": cert, "--key": key, "--server-name": server_name}
    for flag, text in texts.items():
        if text is not None and not text.strip():
            raise BadInput(f"{flag} must not be empty: give a value, or leave the option out")
    named = [flag for flag, value in places.items() if value is not None]
    if len(named) + password_stdin > 1:
        raise BadInput("give one of --password-stdin, --password-file, --password-env and --password-command")
    if store not in (None, "keyring", "file"):
        raise BadInput(f"--store must be keyring or file, not {store!r}")
    if store is not None and named:
        raise BadInput(f"--store {store} stores a password, and {named[0]} does not")
    if user is None and (named or store or password_stdin):
        raise BadInput("a password needs a user: --user NAME")
    if user is not None and (not user or ":" in user):
        raise BadInput("--user must be a name without a colon")
    files = {"password_file": password_file, "ca": ca, "cert": cert, "key": key}
    entry = Context(
        address,
        domain=domain,
        user=user,
        password_env=password_env,
        password_command=password_command,
        server_name=server_name,
        # For use from every directory.
        **{member: str(Path(file).expanduser().absolute()) for member, file in files.items() if file},
    )
    # A wrong address, certificate or domain is refused now, and not at the first use.
    parse_addresses(address)
    tls_of(entry)
    if domain is not None:
        try:
            bmq.QueueUri.parse(f"bmq://{domain}/queue")
        except bmq.InvalidURI as error:
            raise BadInput(f"--domain must be the name of a domain, not {domain!r}: {error}") from None
    _check_free(read_contexts(), name, replace=replace)  # before anybody writes a password
    password = _password(user, stdin=password_stdin) if user is not None and not named else None
    if password is not None and store is None and (reason := why_no_keyring()):
        store = "file"
        note(f"bmq contexts: {reason}; the password goes into {contexts_file()}, which only you may read")
    with edit_contexts() as contexts:
        _check_free(contexts, name, replace=replace)
        before = contexts.entries.get(name)
        if store == "file":
            entry.password = password
        elif password is not None:
            call_keyring("set_password", name, user or "", password)
            entry.password_store = "keyring"
        contexts.entries[name] = entry
        if use:
            contexts.current = name
    if before is not None and (before.user, before.password_store) != (entry.user, entry.password_store):
        _forget(name, before)
    note(f"context {name} added" + (", and in use from now on" if use else ""))


def _check_free(contexts: Contexts, name: str, *, replace: bool) -> None:
    if name in contexts.entries and not replace:
        raise BadInput(f"the context {name} exists: --replace replaces it")


def _password(user: str, *, stdin: bool) -> str:
    if stdin:
        password = sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise BadInput("--password-stdin: standard input has no password")
        return password
    instead = "or give --password-stdin, --password-file, --password-env or --password-command"
    return given_password(user, "BMQ_PASSWORD", instead)


@verb("contexts use", broker=False)
def use(
    name: str | None = argument("[NAME]", "Name of the context.", autocompletion=complete_contexts),
    none: bool = option("--none", "Use no context."),
) -> None:
    """Use a context for all commands without --context, --broker, BMQ_CONTEXT and BMQ_BROKER_URI.

    [bold]Examples[/]

    $ bmq contexts use prod
    $ bmq contexts use --none
    """
    if (name is None) is not none:
        raise BadInput("give the name of a context, or --none")
    with edit_contexts() as contexts:
        if name is not None:
            contexts.find(name)
        contexts.current = name or ""
    note(f"the context {name} is in use" if name else "no context is in use")
    for variable in ("BMQ_CONTEXT", "BMQ_BROKER_URI"):
        if os.environ.get(variable):
            note(f"bmq contexts: {variable} has precedence while it is set")
            break


@verb("contexts remove", broker=False)
def remove(name: _NAME) -> int:
    """Remove a context, and its password in the keyring.

    [bold]Examples[/]

    $ bmq contexts remove prod
    """
    with edit_contexts() as contexts:
        entry = contexts.find(name)
        del contexts.entries[name]
        was_current = contexts.current == name
        if was_current:
            contexts.current = ""
    note(f"context {name} removed" + ("; no context is in use now" if was_current else ""))
    return _forget(name, entry)


def _forget(name: str, entry: Context) -> int:
    """Delete the password in the keyring; FAILED if the keyring keeps the password."""
    if entry.password_store is not None:
        try:
            call_keyring("delete_password", name, entry.user or "")
        except BadInput as error:
            note(f"bmq contexts: the keyring keeps the old password of {entry.user} (bmq:{name}): {error}")
            return ExitStatus.FAILED
    return ExitStatus.OK


#: The actions: function and purpose.
SUBCOMMANDS: Final = {
    "list": (list_contexts, "List the contexts."),
    "add": (add, "Add a context."),
    "use": (use, "Choose the context that is used without an option."),
    "show": (show, "Show one context, without its password."),
    "remove": (remove, "Remove a context and its password."),
}


def contexts() -> None:
    """Name brokers, with their addresses, TLS options, credentials and default domain.

    A context is chosen by --context, by BMQ_CONTEXT, or by bmq contexts use. Passwords are in the keyring of
    the system or in a file that only its owner may read, and are never printed.

    [bold]Examples[/]

    $ bmq contexts add prod tcps://bmq1.example.com --user operator --use
    $ bmq contexts list
    $ bmq queues --context prod
    """
