# SPDX-License-Identifier: Apache-2.0
"""No code path requires Linux: all features work without the names missing on other systems.

On other systems, the tests remove names missing on Windows and macOS, and raise errors that occur only
    there.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.testing import FaultProxy, _proxy

ROOT = Path(__file__).parent.parent
#: `bmq run --processes` ends with an error on other systems, before these modules do anything.
POSIX = {"child.py", "processes.py"}
PACKAGE = sorted(
    path for path in (ROOT / "bmq").rglob("*.py") if path.parent.name != "cli" or path.name not in POSIX
)
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))

#: Modules, attributes and methods of POSIX systems, or of Linux, only.
MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
ATTRIBUTES = {
    *("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "setsid", "killpg", "mkfifo", "sendfile"),
    *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
    *("AF_UNIX", "SO_REUSEPORT", "TCP_KEEPIDLE", "TCP_QUICKACK", "TCP_USER_TIMEOUT", "MSG_NOSIGNAL"),
    *("add_signal_handler", "remove_signal_handler", "add_reader", "add_writer"),
    *("open_unix_connection", "create_unix_server", "create_unix_connection", "start_unix_server"),
}
#: Further modules, which no library needs in the programs that run without these names.
FURTHER_MODULES = {"curses", "posix", "readline", "uvloop"}
FURTHER_ATTRIBUTES = {
    *("getgid", "getegid", "getgroups", "getpgid", "setpgid", "setuid", "setgid", "initgroups", "uname"),
    *("getloadavg", "nice", "getpriority", "setpriority", "sched_getaffinity", "sched_setaffinity"),
    *("sched_yield", "wait3", "wait4", "waitid", "WNOHANG", "posix_spawn", "EX_OK", "ttyname", "openpty"),
    *("pipe2", "chown", "fchown", "lchown", "fchmod", "mknod", "statvfs", "fstatvfs", "sysconf", "confstr"),
    *("pread", "pwrite", "readv", "writev", "preadv", "pwritev", "fdatasync", "sync", "lockf", "fchdir"),
    *(
        "posix_fadvise",
        "posix_fallocate",
        "memfd_create",
        "eventfd",
        "splice",
        "copy_file_range",
        "getrandom",
    ),
    *("O_CLOEXEC", "O_DIRECTORY", "O_DSYNC", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "O_TMPFILE"),
    *("sigwait", "sigpending", "pthread_kill", "pthread_sigmask", "setitimer", "siginterrupt"),
    *("sendmsg", "recvmsg", "recvmsg_into", "send_fds", "recv_fds", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"),
    *("MSG_DONTWAIT", "SO_PEERCRED", "SO_BINDTODEVICE", "TCP_CORK", "TCP_DEFER_ACCEPT", "TCP_INFO"),
    *("epoll", "kqueue", "devpoll", "EpollSelector", "PollSelector", "KqueueSelector", "tzset"),
    *("clock_gettime", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME", "get_child_watcher", "SelectorEventLoop"),
    *("remove_reader", "remove_writer", "connect_read_pipe", "connect_write_pipe"),
}
#: Signals of Windows.
SIGNALS = {"SIGABRT", "SIGBREAK", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}
#: Arguments of subprocesses without an effect on Windows, or an error there.
ARGUMENTS = {"preexec_fn", "pass_fds", "process_group", "start_new_session", "extra_groups", "umask"}
#: Names in a test for the system, or for a name that a system may lack.
GUARDS = {"hasattr", "os.name", "sys.platform", "_POSIX", "_WINDOWS"}
#: A file without these texts has no such call, and is not parsed: parsing takes most of the time.
CALLS = re.compile(
    r"(?<!def )\b(?:fd)?open\([^)\s]|(?:text|universal_newlines)=True|(?:read|write)_text\(|\.renames?\("
    r"|\bos\.kill\(|strftime\(|shlex|NamedTemporaryFile|get_context|set_start_method|x1b|signal\.SIG"
    r"|[\"']/(?:proc|sys|dev|tmp|etc)/"
)
NAMES = MODULES | ATTRIBUTES | FURTHER_MODULES | FURTHER_ATTRIBUTES | ARGUMENTS


def test_code_uses_only_portable_functions() -> None:
    assert [f"{path}:{each}" for path in PACKAGE for each in found_in(path.read_text(encoding="utf-8"))] == []


def test_examples_write_and_read_text_with_an_encoding() -> None:
    for path in EXAMPLES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                assert not _without_encoding(node), f"{path}:{node.lineno}"


def found_in(text: str) -> list[str]:
    """Return the line and the reason of each call that Windows or macOS lacks, or understands differently."""
    if NAMES.isdisjoint(re.findall(r"\w+", text)) and not CALLS.search(text):
        return []
    nodes = list(ast.walk(ast.parse(text)))
    guarded = {
        node
        for block in nodes
        if isinstance(block, ast.Try) or (isinstance(block, ast.If) and _is_guard(block.test))
        for node in ast.walk(block)
    }  # names with a fallback
    for function in nodes:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = list(ast.walk(function))
            if any(isinstance(each, ast.If | ast.IfExp) and _is_guard(each.test) for each in inside):
                guarded |= {each for each in inside if _dotted(each) in ("os.kill", "shlex.split")}
    return [
        f"{node.lineno}: {reason}"  # type: ignore[attr-defined]
        for node in nodes
        if (reason := _reason(node, node in guarded))
    ]


def _is_guard(test: ast.expr) -> bool:
    return any(_dotted(each) in GUARDS for each in ast.walk(test))


def _dotted(node: ast.AST) -> str:
    """Return the name that an expression consists of, of a call the function's; "" for another expression."""
    match node:
        case ast.Call(func=function):
            return _dotted(function)
        case ast.Attribute(value=ast.Name(id=first), attr=second):
            return f"{first}.{second}"
        case ast.Name(id=name):
            return name
    return ""


def _reason(node: ast.AST, guarded: bool) -> str | None:
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names) if not guarded:
            named = {alias.name.partition(".")[0] for alias in names} | {getattr(node, "module", None)}
            if missing := named & (MODULES | FURTHER_MODULES):
                return f"a module of POSIX systems: {missing}"
        case ast.Attribute(attr=name, value=value) if not guarded:
            if name in ATTRIBUTES | FURTHER_ATTRIBUTES:
                return f"a name of POSIX systems: {name}"
            if (
                isinstance(value, ast.Name)
                and value.id == "signal"
                and re.match("SIG[A-Z]", name)
                and name not in SIGNALS
            ):
                return f"a signal of POSIX systems: {name}"
        case ast.Constant(value=str(text)) if not guarded:
            if re.match(r"/(proc|sys|dev|tmp|etc)/", text):
                return f"a path of POSIX systems: {text}"
            if text.startswith("\x1b["):
                return "colours without a test of the terminal"
        case ast.Call():
            return _reason_of_call(node, guarded)
    return None


def _reason_of_call(node: ast.Call, guarded: bool) -> str | None:
    keywords = {each.arg for each in node.keywords}
    if _dotted(node) == "os.kill" and not guarded:
        return "os.kill ends the process on Windows, whatever the signal"
    if _is_call_of(node, "rename") or _is_call_of(node, "renames"):
        return "rename fails on Windows if the file exists: replace does not"
    if _without_encoding(node):
        return "text without an encoding: Windows has another default"
    if missing := keywords & ARGUMENTS:
        return f"arguments of POSIX systems: {missing}"
    if _dotted(node) == "shlex.split" and not guarded:
        return "shlex removes the backslashes of paths"
    if _is_call_of(node, "strftime") and re.search(r"%[-sPkl]", ast.unparse(node)):
        return "a format of POSIX systems"
    if _is_call_of(node, "NamedTemporaryFile") and "delete" not in keywords:
        return "Windows cannot open a temporary file again before it is closed"
    if _is_call_of(node, "get_context") or _is_call_of(node, "set_start_method"):
        return "a way to start processes that another system lacks"
    return None


def _is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and (
        (isinstance(node.func, ast.Attribute) and node.func.attr == name)
        or (isinstance(node.func, ast.Name) and node.func.id == name)
    )


def _is_true(value: ast.AST | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _without_encoding(node: ast.Call) -> bool:
    keywords = {each.arg: each.value for each in node.keywords}
    if "encoding" in keywords:
        return False
    if _is_call_of(node, "read_text"):
        return not node.args
    if _is_call_of(node, "write_text"):
        return len(node.args) < 2
    if _is_true(keywords.get("text")) or _is_true(keywords.get("universal_newlines")):
        return True
    modes = [each.value for each in (*node.args, keywords.get("mode")) if isinstance(each, ast.Constant)]
    modes = [each for each in modes if isinstance(each, str) and re.fullmatch("[rwxab+t]{1,3}", each)]
    if isinstance(node.func, ast.Name) and node.func.id == "open":
        return not any("b" in mode for mode in modes)
    if _is_call_of(node, "open") or _is_call_of(node, "fdopen"):
        return bool(modes) and not any("b" in mode for mode in modes)
    return False


#: Runs a program without the names missing on Windows.
ELSEWHERE = """
import asyncio, os, runpy, signal, socket, sys, time, warnings

for name in {modules}:
    sys.modules[name] = None
sys.modules["uvloop"] = None
for home in (os, signal, socket):
    for name in {attributes}:
        if hasattr(home, name) and name not in ("AF_UNIX", "SIGCHLD"):  # asyncio's own needs these here
            delattr(home, name)

def missing(*args, **kwargs):
    raise NotImplementedError

class Loop(asyncio.SelectorEventLoop):
    add_signal_handler = remove_signal_handler = create_unix_server = create_unix_connection = missing
    add_reader = add_writer = missing

exact = time.monotonic
time.monotonic = lambda: int(exact() * 64) / 64  # how finely Windows tells the time
asyncio.new_event_loop = Loop
with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # from Python 3.14 on
    asyncio.DefaultEventLoopPolicy._loop_factory = Loop
sys.argv = sys.argv[1:]
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> list[str]:
    program = tmp_path / "elsewhere.py"
    program.write_text(ELSEWHERE.format(modules=sorted(MODULES), attributes=sorted(ATTRIBUTES)), "utf-8")
    return [sys.executable, str(program)]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "BMQ_BROKER_URI"} | {"PYTHONPATH": str(ROOT)}


def test_demo_runs_without_posix_only_modules(elsewhere: list[str]) -> None:
    run = subprocess.run(
        [*elsewhere, str(ROOT / "examples" / "demo.py"), "--fast", "--count", "600"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "nothing was lost" in run.stdout


def test_broker_and_command_line_run_without_posix_only_modules(elsewhere: list[str]) -> None:
    queue = "bmq://bmq.test.mem.priority/elsewhere"
    with subprocess.Popen(
        [*elsewhere, "-m", "bmq", "broker", "--port", "0"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as broker:  # fmt: skip
        try:
            assert broker.stdout is not None
            uri = broker.stdout.readline().split()[-1]

            def verb(*arguments: str) -> str:
                run = subprocess.run(
                    [*elsewhere, "-m", "bmq", *arguments, "--broker", uri],
                    env=environment(), capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert run.returncode == 0, run.stderr
                return run.stdout

            verb("doctor", queue)
            verb("post", queue, "hello")
            assert "hello" in verb("tail", queue, "--confirm", "--count", "1")
        finally:
            broker.terminate()
        assert broker.wait(30) == 0
        assert broker.stderr is not None
        assert broker.stderr.read() == ""


class Closed:
    """A socket in the state of macOS after its peer has closed the connection."""

    def setsockopt(self, *args: Any) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


async def test_options_of_a_closed_socket_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    monkeypatch.setattr("asyncio.trsock.TransportSocket.setsockopt", Closed.setsockopt)
    async with (
        bmq.broker.Broker() as broker,
        FaultProxy(broker.uri) as proxy,
        bmq.connect(proxy.uri) as session,
    ):
        queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True, write=True)
        proxy.cut(reset=True)
        await queue.post(b"1", timeout=30)
        assert (await queue.receive(timeout=30)).data == b"1"


async def test_a_port_is_kept_and_taken_again_without_address_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    monkeypatch.setattr(_proxy, "_POSIX", False)
    monkeypatch.setattr(_proxy, "_linger", lambda posix: struct.pack("ii", 1, 0))  # the kernel's here
    async with bmq.broker.Broker() as broker, FaultProxy(broker.uri) as proxy:
        proxy.refuse()
        with pytest.raises(bmq.ConnectionFailed):
            await bmq.connect(proxy.uri)
        await proxy.accept()
        async with bmq.connect(proxy.uri):
            pass
