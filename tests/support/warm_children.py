"""Children that are forked from a process that has their imports already.

For tests of what commands, servers, engines and ranks compute and answer. A server and its engine
take five seconds of a processor to import what they need, and do the work of a test in a tenth of
one.

A child has what a started one has: it is a child of this process, with its own pipes, descriptors,
environment, command line and death signal. Servers and engines that are forked fork theirs in the
same way. Tests of how a process starts, or of what it costs, are marked `cold_start`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.rules.model.transformers_models import known_classes
from dovetail.processes import process
from dovetail.registry import discovery
from dovetail.registry.kinds import KINDS
from dovetail.registry.registry import default
from dovetail.server.launch.engine_start import METRICS_VARIABLE
from dovetail_kernels.cpu import library

RANK, ENGINE = "dovetail_plugins.ranks.rank_process", "dovetail.engine.process"
API = "dovetail.server.launch.api_process"
SERVER = "dovetail_plugins.commands._server_child"
SCRIPT = ".py"
PARENTS = ("dovetail", ENGINE, API, SERVER, SCRIPT)
"""The modules, and scripts, whose processes start some of CHILDREN."""
COMPILER = "dovetail.structured_output.compile_worker"
TEXTS = "dovetail.engine.client.text.text_worker"
PULLER = "dovetail_plugins.gateway.manage.pull_child"
QUANTIZER = "dovetail_plugins.gateway.manage.quantize_child"
TRIALS = ("dovetail_plugins.inspect.trial_child", "dovetail_plugins.tune.trial_child")
CHILDREN = (RANK, ENGINE, API, COMPILER, SERVER, TEXTS, PULLER, QUANTIZER, *TRIALS)
IMPORTS = (
    *("torch", "transformers", "transformers.modeling_utils", "fastapi", "uvicorn", RANK, ENGINE),
    *("dovetail.cli.main", "dovetail.config.resolve"),
    *("dovetail.engine.loop", "dovetail.engine.client.async_engine"),
    *("dovetail_plugins.commands.serve", "dovetail_plugins.models._media", "llguidance"),
    "dovetail_plugins.device_workers.device_worker",
    *("dovetail_plugins.gateway.server", "huggingface_hub.constants"),
    *("dovetail.runner.model_runner", "dovetail_plugins.workers.cpu", COMPILER),
    *("uvicorn.protocols.http.httptools_impl", "uvloop", "tokenizers", "uvicorn.lifespan.off"),
    *("anyio._backends._asyncio", "pydantic.v1", "encodings.idna", "encodings.unicode_escape"),
    *("dovetail.cli.parser", "dovetail.config.rules.one_model", "dovetail.engine.kv.paged"),
    *("dovetail_plugins.attention._native_step", "dovetail_plugins.load_formats._shards"),
    *("dovetail_plugins.model_types._other_names", "dovetail_plugins.tokenizers._fast"),
    *("dovetail_plugins.workers._engine_imports", "dovetail_plugins.device_workers.sleep"),
)
SERVERS_IMPORTS = (
    *("dovetail.server.launch.lifecycle", "dovetail.server.launch.settings"),
    *("dovetail.server.launch.settings", "dovetail_plugins.gates._door"),
)
SERVERS_KINDS = ("api", "stat_logger")
"""Modules, and the kinds of plugins, that import NOT_YET."""
NOT_YET = "prometheus_client"
"""A package that reads its variable when it is imported. A server of several processes sets it
before, so that it starts without the plugins of SERVERS_KINDS."""
SEVERAL_PROCESSES = re.compile(r"\bapi[-_]server[-_]count\b")
"""What the command line of such a server has, or the file of a gateway that starts one."""
FILE_FLAGS = ("--config", "--models")
COMMANDS = ("serve", "run", "run-batch")
"""Commands that start engines. Others are light, and some tests look at what they import."""
AT_START = ("sitecustomize", "usercustomize")
"""Modules that Python imports by itself."""
PR_SET_CHILD_SUBREAPER = 36
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""What engines set for their children, once they are there."""
PATH = "PYTHONPATH"
ROOTS = {str(Path(__file__).parents[2] / part) for part in ("core", "plugins", "kernels")}
READ_AGAIN = (
    *("HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN"),
    *("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET"),
)
"""Variables that one import reads, which a fork then makes once more."""
READER = "huggingface_hub.constants"
NOT_IMPORTED = (
    *("PYTEST_CURRENT_TEST", "TOKENIZERS_PARALLELISM", "XDG_STATE_HOME", "DOVETAIL_"),
    *("XDG_DATA_HOME", "OLLAMA_", "VLLM_", "PROMETHEUS_", *WAITING, *READ_AGAIN),
    *("TORCHINDUCTOR_CACHE_DIR", "TERM", "TMPDIR", "CUDA_VISIBLE_DEVICES"),
)
"""How variables begin that no import reads, or that are set for all."""
PARAMETERS = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
"""What a Popen starts a child with; its beginning and its end are the same for a fork."""
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
LENGTH = struct.Struct(">I")
DONE = b"."
"""The process between has ended."""
MOST_DESCRIPTORS = 64
OUT_OF_THE_WAY = 500
"""Descriptors that come are moved here before they get the numbers that they shall have."""
ROOM = "-" * 4096
"""A last argument, whose place in memory the command lines of children take."""
ARG_START, ARG_END = 45, 46
"""Fields of /proc/PID/stat after the name: where a process has its command line."""


class Forks:
    """A process with imports that forks children, at the other end of a socket."""

    _lock = threading.Lock()
    """Of all of them: whether this process adopts orphans is one switch."""

    def __init__(self, end: socket.socket, environment: Mapping[str, str]) -> None:
        self._end = end
        self.environment = _imported(environment)

    def start(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a child, which gets descriptors of this process under the numbers that the order
        lists, and return its id. It becomes this process's own when the process between them ends,
        because this one adopts orphans meanwhile."""
        text = json.dumps(order).encode()
        with self._lock, _adopting():
            socket.send_fds(self._end, [LENGTH.pack(len(text))], list(descriptors))
            self._end.sendall(text)
            (pid,) = LENGTH.unpack(self._end.recv(LENGTH.size, socket.MSG_WAITALL))
            self._end.recv(len(DONE))
        return int(pid)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


@cache
def started() -> tuple[Forks, Forks, Forks]:
    """Return a process that has IMPORTS, one that has what servers import as well, and one that has
    it for servers of several processes. They end with this one."""
    pairs = [socket.socketpair() for _ in range(3)]
    numbers = [theirs.fileno() for _, theirs in pairs]
    environment = process.child_environment() | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    started_process = subprocess.Popen(
        [sys.executable, "-P", "-m", "support.warm_children", *map(str, numbers), ROOM],
        stdin=subprocess.DEVNULL,
        env=environment | WAITING,
        pass_fds=numbers,
    )
    for _, theirs in pairs:
        theirs.close()

    def end() -> None:
        for ours, _ in pairs:
            ours.close()
        started_process.wait(60)

    atexit.register(end)
    first, second, third = (Forks(ours, environment) for ours, _ in pairs)
    return first, second, third


def forked() -> Forks:
    """Return a fork of this process, which has IMPORTS and one thread; it ends with this one."""
    ours, theirs = socket.socketpair()
    _serve_from_a_fork(theirs)
    return Forks(ours, os.environ)


def _serve_from_a_fork(orders: socket.socket) -> None:
    """Fork a process that forks a child for every order; close the socket in this one."""
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it comes to the whole group
        _only_keep(orders.fileno())
        _serve(orders)
        os._exit(0)
    orders.close()


def _only_keep(number: int) -> None:
    """Close all descriptors but one and standard error."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.closerange(3, number)
    os.closerange(number + 1, 2 * OUT_OF_THE_WAY)


USUAL = subprocess.Popen


class WarmPopen(subprocess.Popen[Any]):
    """A Popen whose process is a fork where it runs one of the modules that have IMPORTS. One that
    shall have other variables than the process with the imports has is started as usual, and so is
    one with settings that a fork cannot have."""

    source: Forks | None = None

    def _execute_child(self, *values: Any) -> None:
        wanted = dict(zip(PARAMETERS, values, strict=True))
        is_warm = _is_warm(wanted["args"]) and _is_plain(wanted)
        source = (self.source or _source_for(wanted["args"])) if is_warm else None
        if source is not None and source.environment == _imported(wanted["env"] or os.environ):
            self._fork(source, wanted)
        else:
            super()._execute_child(*values)  # type: ignore[misc]

    def _fork(self, source: Forks, wanted: dict[str, Any]) -> None:
        ends = [wanted[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        usual = [end if end >= 0 else number for number, end in enumerate(ends)]
        order = {
            "words": [str(word) for word in wanted["args"]],
            "environment": dict(wanted["env"] or os.environ),
            "numbers": [0, 1, 2, *wanted["pass_fds"]],
            "folder": str(wanted["cwd"] or Path.cwd()),
            "group": wanted["process_group"],
            "parent": os.getpid(),
        }
        self.pid = source.start(order, [*usual, *wanted["pass_fds"]])
        self._child_created = True
        self._close_pipe_fds(*(wanted[name] for name in PIPES))  # type: ignore[attr-defined]


def _source_for(words: Sequence[str]) -> Forks:
    """Return the process with the most imports that a command may have."""
    imports, one_server, several = started()
    pairs = list(itertools.pairwise(map(str, words)))
    if any(SEVERAL_PROCESSES.search(flag) and count != "1" for flag, count in pairs):
        return several
    files = (Path(file) for flag, file in pairs if flag in FILE_FLAGS)
    told = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    is_alone = not any(map(SEVERAL_PROCESSES.search, told))
    return one_server if is_alone and _module_of(words) == PARENTS[0] else imports


def _is_warm(words: Any) -> bool:
    module = _module_of(words)
    is_light = module == PARENTS[0] and not set(COMMANDS).intersection(words)
    return module in (*CHILDREN, *PARENTS) and not is_light


def _is_plain(wanted: Mapping[str, Any]) -> bool:
    return not (wanted["preexec_fn"] or wanted["start_new_session"] or wanted["shell"])


def _module_of(words: Any) -> str | None:
    """Return the module that a command line runs, or SCRIPT. `process` runs the one after it."""
    if not isinstance(words, list) or words[0] != sys.executable:
        return None
    if str(words[1]).endswith(SCRIPT):
        return SCRIPT
    rest = words[2:] if words[1] == "-P" else words[1:]
    if rest[0] != "-m":
        return None
    return str(rest[2] if rest[1] == process.__name__ else rest[1])


@contextlib.contextmanager
def cold_children() -> Iterator[None]:
    """Start processes as users do while the with block runs, inside one of `warm_children`."""
    warm = subprocess.Popen
    subprocess.Popen = USUAL  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = warm  # type: ignore[misc]


@contextlib.contextmanager
def warm_children() -> Iterator[None]:
    """Fork commands, servers, engines and ranks while the with block runs. The imports are made
    when the first starts."""
    assert threading.current_thread() is threading.main_thread(), "children end with this thread"
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = USUAL  # type: ignore[misc]


def _imported(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what imports may read of an environment: of its paths, those that this process has
    not, and that have something that it has."""
    found = {name: text for name, text in environment.items() if not name.startswith(NOT_IMPORTED)}
    paths = [os.path.realpath(path) for path in found.pop(PATH, "").split(os.pathsep) if path]
    known = {os.path.realpath(path) for path in sys.path}
    new = [path for path in paths if path not in known and _shadows(Path(path))]
    return found | {PATH: os.pathsep.join(new)}


def _shadows(folder: Path) -> bool:
    """Return whether a folder on the path may change what is imported from others."""
    if not folder.is_dir():
        return folder.exists()
    names = {file.name.partition(".")[0] for file in folder.iterdir()} - {"", "__pycache__"}
    return any(name in AT_START or importlib.util.find_spec(name) for name in names)


def _serve(orders: socket.socket) -> None:
    """Fork a child for every order that comes; end with the socket."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(orders, LENGTH.size, MOST_DESCRIPTORS)
        if not head:
            return
        (size,) = LENGTH.unpack(head)
        order = json.loads(orders.recv(size, socket.MSG_WAITALL))
        between = os.fork()
        if between == 0:
            between = os.getpid()
            child = os.fork()
            if child == 0:
                _become(order, descriptors, between)
            os._exit(0 if orders.send(LENGTH.pack(child)) else 1)
        os.waitpid(between, 0)
        orders.sendall(DONE)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(order: dict[str, Any], descriptors: Sequence[int], between: int) -> None:
    """Be the child that is ordered, and end as it ends; at once if its parent has died meanwhile.
    `between` is the process that forked this one, and ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, OUT_OF_THE_WAY) for one in descriptors]
    os.closerange(3, OUT_OF_THE_WAY)
    for one, number in zip(moved, order["numbers"], strict=True):
        os.dup2(one, number)
        os.close(one)
    while os.getppid() == between:
        time.sleep(0.001)
    if os.getppid() != order["parent"]:
        os._exit(1)
    if order["group"] is not None and order["group"] >= 0:
        os.setpgid(0, order["group"])
    os.chdir(order["folder"])
    _change_environment(order["environment"])
    paths = [path for path in os.environ.get(PATH, "").split(os.pathsep) if path]
    if not set(paths).issubset(sys.path):
        discovery.forget()
    sys.path[:] = dict.fromkeys([*paths, *sys.path])
    words = order["words"]
    if _module_of(words) in PARENTS:
        WarmPopen.source = forked()
        subprocess.Popen = WarmPopen  # type: ignore[misc]
    _write_command_line(words)
    os._exit(_status_of(words))


def _change_environment(environment: Mapping[str, str]) -> None:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)

    def is_other(*names: str) -> bool:
        return any(before.get(name) != os.environ.get(name) for name in names)

    if is_other(*READ_AGAIN):
        importlib.reload(sys.modules[READER])
    if is_other("TMPDIR"):
        tempfile.tempdir = None
    if is_other(library.ISA_VARIABLE):
        library._attempt.cache_clear()
    if is_other(discovery.ALLOW_VARIABLE, discovery.FOREIGN_VARIABLE):
        discovery.forget()


def _write_command_line(words: Sequence[str]) -> None:
    """Let the system list this process by its own command line."""
    text = "\0".join(words).encode()
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, min(len(text), end - start - 1))


def _status_of(words: Sequence[str]) -> int:
    """Return the status with which the child ends, after what Python does at its end."""
    try:
        status = _run(words)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _run(words: Sequence[str]) -> int:
    if words[1].endswith(SCRIPT):
        sys.argv[:], sys.path[:0] = words[1:], [str(Path(words[1]).parent)]
        runpy.run_path(words[1], run_name="__main__")
        return 0
    at = words.index("-m") + 1
    if words[at] == process.__name__:
        return process.main(*words[at + 1 :])
    main = importlib.import_module("dovetail.cli.main")
    sys.argv = ["dovetail", *words[at + 1 :]]
    return int(main.main())


def main(number: int, *more: int) -> None:
    """Import IMPORTS and the plugins, then fork a child for every order that comes on the first
    socket. Two more processes have what servers import: of one process, and of several. Each ends
    with its socket."""
    gc.disable()
    for name in IMPORTS:
        importlib.import_module(name)
    _load_plugins(set(KINDS).difference(SERVERS_KINDS))
    library.missing_reason()
    known_classes()
    assert NOT_YET not in sys.modules, "metrics of several processes would not be merged"
    _settle()
    ways: tuple[Any, ...] = (contextlib.nullcontext, _metrics_in_files)
    for other, importing in zip(more, ways, strict=True):
        if os.fork() == 0:
            _only_keep(other)
            with importing():
                for name in SERVERS_IMPORTS:
                    importlib.import_module(name)
                _load_plugins(SERVERS_KINDS)
            _settle()
            number = other
            break
    else:
        _only_keep(number)
    _serve(socket.socket(fileno=number))


@contextlib.contextmanager
def _metrics_in_files() -> Iterator[None]:
    """Make metrics that each process keeps in a file: of its own, in the folder that it has when it
    first touches one; of this process, in none."""
    os.environ[METRICS_VARIABLE] = os.devnull
    from prometheus_client import values

    usual = values.MmapedDict
    values.MmapedDict = NoFile  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        values.MmapedDict = usual  # type: ignore[misc]
        del os.environ[METRICS_VARIABLE]


class NoFile:
    """What a process that only imports has in place of its metrics' file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read_value(self, key: str) -> tuple[float, float]:
        """Return a value and its time."""
        return 0.0, 0.0

    def close(self) -> None:
        """Do nothing."""


def _load_plugins(kinds: Iterable[str]) -> None:
    """Import and check dovetail's own plugins of some kinds: a test's may be broken on purpose."""
    for entry in itertools.chain.from_iterable(map(registry.entries, kinds)):
        if entry.target.startswith("dovetail_plugins."):
            default.load_target(entry.kind, entry.target)


def _settle() -> None:
    """Prepare for forks: they have one thread, and a collection would copy every page."""
    gc.collect()
    gc.freeze()
    gc.enable()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has one thread"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
