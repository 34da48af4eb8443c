# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m conformance``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from bmq.cli.app import flowing
from bmq.cli.consoles import out, table
from bmq.cli.output import BadInput, ExitStatus, emit, note
from bmq.cli.records import Form, Records
from bmq.cli.verb import OUTPUT, verb
from bmq.errors import UsageError
from conformance import (
    KINDS,
    Domains,
    Outcome,
    Report,
    Result,
    all_cases,
    attached,
    choose,
    client_cases,
    run_client_suite,
    run_suite,
    started,
)
from conformance.bench import Address
from conformance.case import Level, Mismatch
from conformance.client_suite import AT_ONCE as CLIENTS_AT_ONCE
from conformance.connection import ANSWER
from conformance.harness import serve_standard_input
from conformance.record import record
from conformance.replay import replay
from conformance.report import FIELDS, explanation, group_rows
from conformance.report import record as record_of
from conformance.run import AT_ONCE

__all__ = ["ACTIONS", "main"]

_NAME = "bmq conformance"

#: For a client that somebody else starts.
_START_ONE = (
    "bmq conformance: waiting for the client, once for each case. Give it the broker in its environment,\n"
    "  BMQ_BROKER_URI={uri}\n"
    "and connect its standard input and output to port {port}, for example in a loop of bash:\n"
    "  while sleep 0.2; do (exec 3<>/dev/tcp/127.0.0.1/{port} && ./harness <&3 >&3); done"
)

_ONLY = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="CASES",
        help="A group (5), a section (5.2), a case (5.2.1) or a level (must); may be repeated.",
        show_default=False,
    ),
]


@verb("conformance", broker=False)
async def broker(
    uri: Annotated[str, typer.Argument(metavar="URI", help="The broker's address, tcp://HOST:PORT.")],
    only: _ONLY = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            metavar="KIND=NAME",
            help="The name of the broker's domain of a kind, such as priority=orders; may be repeated.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            "--user",
            metavar="NAME",
            help="A user of the broker, for the cases of credentials; the password comes from BMQ_PASSWORD.",
            show_default=False,
        ),
    ] = "",
    slow: Annotated[bool, typer.Option("--slow", help="Also run cases that wait for minutes.")] = False,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=256, metavar="N", help="Cases at the same time.")
    ] = AT_ONCE,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail for differences in should and observed cases, too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not explain differences.")] = False,
    output: OUTPUT = Form.TABLE,
) -> int:
    """Test whether a broker conforms to the protocol, with numbered cases over raw bytes.

    The suite needs a broker that accepts anonymous sessions, and domains of several kinds. The usual names
    are the names of the embedded broker; --domain gives other names. A case without its domain is not tested.
    The suite creates queues of its own, and leaves messages in them: do not use a broker in production.

    The exit status is 0 if all tested must cases passed, 1 if one failed, the broker died, or the domain of
    kind priority, fanout or broadcast cannot be opened, 2 for wrong usage, and 3 without a broker.

    [bold]Examples[/]

    $ python -m conformance broker tcp://localhost:30114
    $ python -m conformance broker tcp://localhost:30114 --only 3 --only must
    $ python -m conformance broker tcp://localhost:30114 --domain durable=orders
    $ BMQ_PASSWORD=secret python -m conformance broker tcp://localhost:30114 --user alice --slow
    """
    address, cases = Address.parse(uri), choose(only or ())
    if not cases:
        raise BadInput(f"no case belongs to all of {', '.join(only or ())}: leave one of them out")
    names = Domains(_domains(domain or []))
    try:
        report = await run_suite(address, cases, domains=names, user=_user(user), slow=slow, at_once=at_once)
    except OSError as error:
        note(f"{_NAME}: {uri} accepts no connection ({error}): start the broker, or correct the address")
        return ExitStatus.UNREACHABLE
    except Mismatch as error:
        note(f"{_NAME}: {uri} does not negotiate: {error}")
        return ExitStatus.FAILED
    _print(report, output, quiet=quiet)
    different = report.count(Outcome.FAILED) if strict else 0
    return ExitStatus.OK if report.conforms and not different else ExitStatus.FAILED


@verb("conformance", broker=False)
def list_cases(only: _ONLY = None, output: OUTPUT = Form.TABLE) -> int:
    """List the cases: number, level, title.

    [bold]Examples[/]

    $ python -m conformance list
    $ python -m conformance list --only 3.1 --json
    """
    cases = choose(only or (), (*all_cases(), *client_cases()))
    if output is Form.TABLE:
        out().print(table(["case", "level", "title"], [(c.number, str(c.level), c.title) for c in cases]))
        return ExitStatus.OK
    writer = Records(output, ("number", "level", "title", "sends", "expects", "statement", "domains"))
    for case in cases:
        writer.write(
            {
                "number": case.number,
                "level": str(case.level),
                "title": case.title,
                "sends": case.sends,
                "expects": case.expects,
                "statement": case.statement,
                "domains": list(case.domains),
            }
        )
    return ExitStatus.OK


@verb("conformance", broker=False)
async def client(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- PROGRAM [ARGUMENT...]]",
            help="The client under test, with its arguments; without it, the client connects to --listen.",
            show_default=False,
        ),
    ] = None,
    only: _ONLY = None,
    listen: Annotated[
        int,
        typer.Option(
            "--listen",
            min=0,
            max=65534,
            metavar="PORT",
            help="The port of the scripted broker, for one case at a time; 0 for a free port for each case. "
            "Without a program, the commands are on the next port.",
        ),
    ] = 0,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=64, metavar="N", help="Cases at the same time.")
    ] = CLIENTS_AT_ONCE,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            min=0.01,
            max=600.0,
            metavar="SECONDS",
            help="The longest wait for a step of the client.",
        ),
    ] = ANSWER,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail for differences in should and observed cases, too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not explain differences.")] = False,
    output: OUTPUT = Form.TABLE,
) -> int:
    """Test whether a client conforms to the protocol, with a scripted broker.

    The suite starts the program once for each case, with the address of the scripted broker in the
    environment variable BMQ_BROKER_URI. The program reads commands from standard input and answers on
    standard output, one JSON object a line; conformance/clients.md has the commands.
    "python -m conformance harness" is the program for bmq. With --listen and without a program, the suite
    waits for a client started by hand: the client connects to the port after PORT, and reads and writes the
    same lines there.

    The exit status is 0 if all must cases passed, 1 if one failed, and 2 for wrong usage.

    [bold]Examples[/]

    $ python -m conformance client -- python -m conformance harness
    $ python -m conformance client --only 25 -- java -cp client.jar Harness
    $ python -m conformance client --listen 30200
    """
    if not program and not listen:
        raise BadInput(
            "a program or --listen PORT was expected, neither was given: "
            "give the harness after --, or a port where a client connects"
        )
    cases = choose(only or (), client_cases())
    if not cases:
        raise BadInput(f"no case belongs to all of {', '.join(only or ())}: leave one of them out")
    if program:
        start, name, on_result = started(program), " ".join(program), None
    else:
        start, name, on_result = attached(listen + 1), f"the client on port {listen}", _say
        note(_START_ONE.format(uri=f"tcp://127.0.0.1:{listen}", port=listen + 1))
    try:
        report = await run_client_suite(
            start,
            cases,
            name=name,
            port=listen,
            at_once=at_once,
            patience=patience,
            on_result=on_result,
        )
    except* OSError as errors:
        what = (
            f"{program[0]} cannot be started" if program else f"ports {listen} and {listen + 1} are not free"
        )
        raise BadInput(f"{what}: {errors.exceptions[0]}") from None
    _print(report, output, quiet=quiet, what="client")
    different = report.count(Outcome.FAILED) if strict else 0
    return ExitStatus.OK if report.conforms and not different else ExitStatus.FAILED


@verb("conformance", broker=False)
async def harness() -> int:
    """Be the client under test: commands on standard input, answers on standard output.

    [bold]Examples[/]

    $ python -m conformance client -- python -m conformance harness
    """
    uri = os.environ.get("BMQ_BROKER_URI")
    if not uri:
        raise BadInput(
            "BMQ_BROKER_URI is not set: the suite sets it, with "
            "python -m conformance client -- python -m conformance harness"
        )
    await serve_standard_input(uri)
    return ExitStatus.OK


def _user(name: str) -> bytes | None:
    if not name:
        return None
    if ":" in name:
        raise BadInput(f"--user needs the name of a user without a colon, not {name!r}")
    password = os.environ.get("BMQ_PASSWORD")
    if password is None:
        raise BadInput(f"--user needs a password: set BMQ_PASSWORD to the password of {name}")
    return f"{name}:{password}".encode()


def _say(result: Result) -> None:
    note(f"{result.case.number} {result.outcome} in {result.seconds:.1f} s")


def _domains(texts: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in texts:
        kind, equals, name = text.partition("=")
        if not equals or not name or kind not in KINDS:
            raise UsageError(
                f"--domain needs KIND=NAME with a kind among {', '.join(KINDS)}, not {text!r}: "
                "for example priority=orders"
            )
        names[kind] = name
    return names


def _print(report: Report, output: Form, *, quiet: bool, what: str = "broker") -> None:
    if output is not Form.TABLE:
        writer = Records(output, FIELDS)
        for each in report.results:
            writer.write(record_of(each))
        return
    version = f": {report.version}" if report.version else ""
    emit(f"{report.broker}{version}, {len(report.results)} cases in {report.seconds:.1f} s", "")
    columns = ["group", "", "passed>", "must>", "should>", "observed>", "not tested>"]
    rows = [tuple(map(str, row)) for row in group_rows(report)]
    out().print(table(columns, rows))
    for level in Level:
        for each in report.results:
            if each.outcome is Outcome.FAILED and each.case.level is level:
                _explain(each, quiet=quiet)
    reasons: dict[str, list[str]] = {}
    for each in report.results:
        if each.outcome is Outcome.NOT_TESTED:
            reasons.setdefault(each.reason, []).append(each.case.number)
    for reason, numbers in reasons.items():
        emit("", f"not tested: {reason}", f"  {' '.join(numbers)}")
    if report.died:
        emit("", report.died)
    emit("", f"the {what} {report.verdict}")


def _explain(result: Result, *, quiet: bool) -> None:
    word = "failed" if result.case.level is Level.MUST else "differs"
    emit("", f"{result.case.number} {result.case.level} {word}: {result.case.title}")
    if quiet:
        emit(f"  expected {result.expected}, received {result.received}")
        return
    for line in explanation(result):
        emit(f"  {line}")


#: The actions: function and purpose.
ACTIONS: Final = {
    "broker": (broker, "Test a broker."),
    "client": (client, "Test a client."),
    "list": (list_cases, "List the cases."),
    "harness": (harness, "Be the client under test, with bmq."),
    "record": (record, "Record the conversation of clients and a broker."),
    "replay": (replay, "Play one half of a recorded conversation."),
}

_DESCRIPTION = """Test whether an implementation conforms to the protocol of BlazingMQ, with numbered cases.

Every case states the input, the expected reaction, and the statement of the protocol. The level is must,
should, or observed: the behaviour of a real broker where the protocol permits other behaviour.

[bold]Examples[/]

$ python -m conformance broker tcp://localhost:30114
$ python -m conformance list --only 3
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the arguments without the program's name; those of the process by default.

    Returns:
        The process's exit status, as of ``bmq``.
    """
    app = typer.Typer(
        help=flowing(_DESCRIPTION),
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for action, (function, summary) in ACTIONS.items():
        app.command(action, short_help=summary, help=flowing(function.__doc__ or ""))(function)
    try:
        app(args=sys.argv[1:] if arguments is None else list(arguments), prog_name="python -m conformance")
    except SystemExit as end:
        if end.code == ExitStatus.NO_READER:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the end of the interpreter writes nothing more
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return ExitStatus.OK
