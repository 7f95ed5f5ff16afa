"""`dovetail bench startup`: a time line of a running server's start, from exec to ready.

The server's metrics report when each phase began and how long it took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from pathlib import Path

from dovetail.config.parse.flags import add_groups, group_of
from dovetail.errors import DovetailError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.bench.settings import STARTUP_GROUPS, PictureFlags, StartedFlags
from dovetail_plugins.plot import Span, check_plot, draw_timeline

TIMEOUT_S = 10.0
COLUMNS = 48
SAMPLE = re.compile(
    r'^dovetail:start_phase_(seconds|began_seconds)\{phase="([^"]*)"\} (\S+)$', re.MULTILINE
)


class NoTimeline(DovetailError):
    """The server does not answer, or does not report its start."""


class BenchStartupCommand(Command):
    """`dovetail bench startup`."""

    info = Info(summary="show what a running server's start was spent on")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags. Mutates: parser."""
        add_groups(parser, STARTUP_GROUPS)

    def run(self, args: argparse.Namespace) -> int:
        """Print the time line; save and plot it if requested. Raises: ConfigError, NoTimeline"""
        from dovetail_plugins.bench.report import check_target

        flags, target = group_of(args, PictureFlags), group_of(args, StartedFlags)
        check_target(flags.output_json)
        if flags.plot:
            check_plot(flags.plot)
        spans = spans_of(asyncio.run(_metrics(target)))
        if not spans:
            fix = "ask a dovetail server."
            raise NoTimeline("there are no phases of a start.", where=target.base_url, fix=fix)
        print("\n".join(lines_of(spans)))
        if flags.output_json:
            text = json.dumps({"phases": [span._asdict() for span in spans]}, indent=1)
            Path(flags.output_json).expanduser().write_text(text + "\n", encoding="utf-8")
        if flags.plot:
            draw_timeline(flags.plot, f"start of {target.base_url}", spans)
        return 0


async def _metrics(flags: StartedFlags) -> str:
    """Return the text of /metrics. Raises: ConfigError, NoTimeline"""
    from dovetail_plugins.bench.client import send, target_of

    key = flags.api_key or os.environ.get("OPENAI_API_KEY")
    target = target_of(flags.base_url, "/metrics", api_key=key, timeout_s=TIMEOUT_S)
    trace = await send(target, target.request("GET", target.path))
    if trace.error or trace.status != 200:
        raise NoTimeline(
            f"no answer: {trace.error or f'status {trace.status}'}.",
            where=target.url,
            fix="check --base-url and --api-key.",
        )
    return bytes(trace.body).decode()


def spans_of(text: str) -> list[Span]:
    """Return the phases in the metrics, in the order in which they began."""
    found: dict[str, dict[str, float]] = {}
    for what, phase, value in SAMPLE.findall(text):
        found.setdefault(phase, {})[what] = float(value)
    spans = [
        Span(phase, values["began_seconds"], values["seconds"])
        for phase, values in found.items()
        if len(values) == 2
    ]
    return sorted(spans, key=lambda span: (span.began_s, -span.duration_s))


def lines_of(spans: list[Span]) -> list[str]:
    """Return the time line as text: a row per phase, on one scale."""
    end_s = max(span.began_s + span.duration_s for span in spans)
    wide = max(len(span.name) for span in spans)
    lines = [f"{'phase':<{wide}}   began      took"]
    for span in spans:
        first = round(COLUMNS * span.began_s / end_s)
        length = max(1, round(COLUMNS * span.duration_s / end_s))
        bar = f"{' ' * first}{'#' * length}"
        times = f"{span.began_s:>6.2f} s  {span.duration_s:>6.2f} s"
        lines.append(f"{span.name:<{wide}}  {times}  {bar}")
    return [*lines, f"ready {end_s:.2f} s after the process was created"]
