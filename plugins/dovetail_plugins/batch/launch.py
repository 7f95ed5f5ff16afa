"""run(config, flags): checks the files, starts the engine, answers every line; returns the status.

All faults of flags and files are found before the engine loads.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.one_model import check_one_model
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.observability.configured_log import set_log_up
from dovetail.server.families import choose_apis
from dovetail.server.launch.engine_start import max_queued
from dovetail.server.launch.event_loop import run_loop
from dovetail.server.launch.frontend_checks import check_frontend
from dovetail.server.launch.sockets import bind, url_of, warn_if_open
from dovetail.server.launch.startup_timer import StartupTimer
from dovetail_plugins.apis.batches.lines import ROOM_BYTES, Scan, read_lines, scan
from dovetail_plugins.batch.progress import Progress, is_terminal
from dovetail_plugins.batch.results import ResultFile
from dovetail_plugins.batch.settings import BatchFlags, answer_config, idle_settings
from dovetail_plugins.batch.transfer import TransferError, fetch, is_address, send, shown
from dovetail_plugins.batch.whole_app import whole_app

logger = logging.getLogger("dovetail_plugins.batch")
EXIT_SOME_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """A run: its input, its output and its settings."""

    config: Config
    frontend: FrontendConfig
    apis: tuple[Selection, ...]
    input: Path
    results: ResultFile
    found: Scan
    metrics_socket: socket.socket | None

    @property
    def line_bytes(self) -> int:
        """Return how many bytes of a line are read."""
        return self.frontend.max_body_bytes + ROOM_BYTES


def run(config: Config, flags: BatchFlags) -> int:
    """Answer the input's lines. Return 0, 1 if some failed, or 128 + the signal that ended it.

    Raises: ConfigError for faults of flags, files or the model; TransferError
    """
    set_log_up(config)
    for note in idle_settings(config):
        logger.warning("%s", note)
    with _ended_by_sigterm(), _holding_folder(flags) as folder, contextlib.ExitStack() as owned:
        job = _prepare(config, flags, folder, owned)
        job.results.begin()
        status = _answer(job)
        if status < 128 and is_address(flags.output_file):
            job.results.sync()
            _send(job.results.path, flags)
    return status


def _prepare(
    config: Config, flags: BatchFlags, folder: Path | None, owned: contextlib.ExitStack
) -> BatchRun:
    """Return the job, with its files checked. Mutates: owned. Raises: ConfigError, TransferError"""
    frontend = answer_config(config)
    check_frontend(frontend)
    apis = choose_apis(config)
    target = _output_path(flags, folder)
    path = _input_path(flags, folder, owned)
    _check_two_files(path, target)
    results = ResultFile.open(target, resumes=flags.resume)
    owned.callback(results.close)
    sock = bind(flags.url, flags.port) if flags.enable_metrics else None
    if sock is not None:
        owned.callback(sock.close)
    found = scan(path, frontend.max_body_bytes + ROOM_BYTES, results.answered, results.failed)
    if found.num_answered:
        logger.info("%d of %d lines are answered already", found.num_answered, found.num_lines)
    return BatchRun(
        config=config,
        frontend=frontend,
        apis=apis,
        input=path,
        results=results,
        found=found,
        metrics_socket=sock,
    )


@contextlib.contextmanager
def _holding_folder(flags: BatchFlags) -> Iterator[Path | None]:
    """Yield the folder for data from and to URLs; None if both are local files."""
    if not is_address(flags.input_file) and not is_address(flags.output_file):
        if flags.output_tmp_dir is not None:
            logger.warning("--output-tmp-dir is not needed: input and output are files here")
        yield None
    elif flags.output_tmp_dir is not None:
        folder = Path(flags.output_tmp_dir).expanduser()
        if not folder.is_dir():
            fix = f"make it: mkdir -p {folder}"
            raise ConfigError(f"{folder} is not a folder.", where="--output-tmp-dir", fix=fix)
        yield folder
    else:
        yield from _temporary_folder(flags)


def _temporary_folder(flags: BatchFlags) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dovetail-batch-"))
    if is_address(flags.output_file):
        where = shown(flags.output_file)
        logger.info("results are kept in %s until they are sent to %s", folder, where)
    try:
        yield folder
    finally:
        # Unsent results are not deleted: a run with --output-tmp-dir resumes with them.
        if not any(path.stat().st_size for path in folder.iterdir()):
            shutil.rmtree(folder)
        else:
            logger.warning("results are kept; resume with --output-tmp-dir %s", folder)


def _input_path(flags: BatchFlags, folder: Path | None, owned: contextlib.ExitStack) -> Path:
    """Return the input as a local file. Mutates: owned (which deletes a fetched one at the end)"""
    if not is_address(flags.input_file):
        path = Path(flags.input_file).expanduser()
        if not path.is_file():
            raise ConfigError(f"there is no file {path}.", where="--input-file", fix="check it.")
        return path
    assert folder is not None
    handle, name = tempfile.mkstemp(prefix="input-", suffix=".jsonl", dir=folder)
    os.close(handle)
    path = Path(name)
    owned.callback(path.unlink)
    logger.info("fetching %s", shown(flags.input_file))
    fetch(flags.input_file, path)
    return path


def _output_path(flags: BatchFlags, folder: Path | None) -> Path:
    if not is_address(flags.output_file):
        return Path(flags.output_file).expanduser()
    assert folder is not None
    # Signatures in the query differ between runs, but the rest of the URL is the same.
    name = hashlib.blake2b(shown(flags.output_file).encode(), digest_size=8).hexdigest()
    return folder / f"results-{name}.jsonl"


def _check_two_files(source: Path, target: Path) -> None:
    if target.exists() and source.samefile(target):
        fix = "name another file for the results."
        raise ConfigError("is also the input file.", where="--output-file", fix=fix)


def _send(path: Path, flags: BatchFlags) -> None:
    """PUT the results to their URL, then delete the local file. Raises: TransferError"""
    try:
        send(path, flags.output_file)
    except TransferError as error:
        error.fix = f"nothing is lost: give the command again with --output-tmp-dir {path.parent}."
        raise
    path.unlink()
    logger.info("results are sent to %s", shown(flags.output_file))


def _answer(job: BatchRun) -> int:
    """Return the exit status. If every line has a result, no engine is started."""
    if job.found.num_answered == job.found.num_lines:
        print(f"{job.found.num_lines} lines, all answered before, {job.found.num_failed} failed.")
        return EXIT_SOME_FAILED if job.found.num_failed else 0
    timer = StartupTimer()
    with timer.time("config"):
        check_one_model(job.config.origins)
        spec = resolve(job.config)
    return run_loop(_serve(job, spec, timer), _stopped)


async def _serve(job: BatchRun, spec: EngineSpec, timer: StartupTimer) -> int:
    """Answer with an engine in this process; return the exit status."""
    async with whole_app(job.config, spec, job.frontend, job.apis, timer) as (app, engine):
        from dovetail_plugins.apis.batches.call import Caller
        from dovetail_plugins.batch.drive import drive

        # The queue is never full: only as many lines are open as it has room for.
        max_open = spec.total_rows + max_queued(job.config, spec)
        progress = Progress(job.found, is_bar=is_terminal())
        async with _metrics(app, job.metrics_socket):
            with progress:
                await drive(
                    read_lines(job.input, job.line_bytes),
                    Caller(app),
                    job.results,
                    progress,
                    max_open=max_open,
                    death_of=lambda: None if engine.is_alive else engine.death_reason or "ended",
                )
    job.results.sync()
    print(_summary(progress, job), flush=True)
    return EXIT_SOME_FAILED if progress.num_failed else 0


def _summary(progress: Progress, job: BatchRun) -> str:
    done = progress.num_done - job.found.num_answered
    return (
        f"{done} lines answered in {progress.seconds():.1f} s "
        f"({job.found.num_answered} before), {progress.num_failed} failed; "
        f"{progress.num_prompt_tokens} prompt and {progress.num_tokens} generated tokens, "
        f"{progress.tokens_per_s():.0f} tokens/s"
    )


@contextlib.asynccontextmanager
async def _metrics(app: Any, sock: socket.socket | None) -> Any:
    """Serve the application's /metrics, and no other path, on a socket."""
    if sock is None:
        yield
        return
    from dovetail_plugins.batch.metrics import serving

    warn_if_open(sock, has_key=False)
    logger.info("serving metrics at %s/metrics", url_of(sock))
    async with serving(app, sock):
        yield


def _stopped(by: signal.Signals) -> int:
    """Log the signal that ended the run; return the exit status."""
    logger.warning("stopped by %s; the same command resumes from here", by.name)
    return 128 + by


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM unwind code that runs outside the event loop."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
