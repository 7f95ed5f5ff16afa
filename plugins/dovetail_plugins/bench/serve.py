"""`dovetail bench serve`: puts load on any OpenAI-compatible server, and measures from outside.

It asks for the served model, draws prompts, finds out with a small request which token counts the
server supports, and then sends the load. Imports neither torch nor the server.
"""

from __future__ import annotations

import argparse

from dovetail.config.parse.flags import add_groups, group_of
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.bench import settings
from dovetail_plugins.bench.dialect import GENERATED, endpoint_of, kind_of_path


class BenchServeCommand(Command):
    """`dovetail bench serve`."""

    info = Info(summary="load a running server and measure its answers")
    common = frozenset(
        {
            "base_url",
            "host",
            "port",
            "backend",
            "endpoint",
            "batch_size",
            "model",
            "dataset_name",
            "dataset_path",
            "num_prompts",
            "num_warmups",
            "input_len",
            "output_len",
            "ignore_eos",
            "request_rate",
            "max_concurrency",
            "goodput",
            "output_json",
        }
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags. Mutates: parser."""
        add_groups(parser, settings.SERVE_GROUPS)

    def run(self, args: argparse.Namespace) -> int:
        """Measure, print and save the result; return the exit status.

        The status is 1 if every request failed, or with --fail-on-error if any did. Raises:
        ConfigError, ServerError
        """
        from dovetail_plugins.bench.serve_pooled import run_pooled
        from dovetail_plugins.bench.serve_report import ReportOptions
        from dovetail_plugins.bench.serve_streamed import run_streamed

        flags = flags_of_args(args)
        options = ReportOptions.of(flags.metrics, flags.report)
        path = endpoint_of(flags.target.endpoint, flags.target.backend)
        run = run_streamed if kind_of_path(path) in GENERATED else run_pooled
        return run(flags, options)


def flags_of_args(args: argparse.Namespace) -> settings.ServeFlags:
    """Return the flags from the command line."""
    return settings.ServeFlags(
        dataset=group_of(args, settings.DatasetFlags),
        target=group_of(args, settings.TargetFlags),
        load=group_of(args, settings.LoadFlags),
        metrics=group_of(args, settings.MetricFlags),
        report=group_of(args, settings.ReportFlags),
    )
