"""`dovetail run-batch`: parses flags to a Config; `batch.launch` then answers a file of
requests."""

from __future__ import annotations

import argparse

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class RunBatchCommand(Command):
    """`dovetail run-batch`."""

    info = Info(summary="answer a file of requests, offline")
    common = frozenset(
        {
            "input_file",
            "output_file",
            "resume",
            "enable_metrics",
            "dtype",
            "quantization",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "tensor_parallel_size",
            "tool_call_parser",
            "reasoning_parser",
        }
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model, the batch's own flags and the engine's. Mutates: parser."""
        from dovetail.config.parse.flags import add_flags, add_groups, add_section
        from dovetail.config.sections.frontend import FrontendConfig
        from dovetail_plugins.batch.settings import ENGINE_GROUPS, BatchFlags, answer_flags

        parser.add_argument(
            "model_tag",
            nargs="?",
            metavar="MODEL",
            help="checkpoint folder or hub id; without it the bundled demo model answers",
        )
        add_groups(parser, (BatchFlags,))
        add_section(parser, FrontendConfig.__name__, "Answers", answer_flags())
        add_flags(parser, ENGINE_GROUPS)

    def run(self, args: argparse.Namespace) -> int:
        """Answer the file; return the exit status, 1 if lines failed. Raises: ConfigError."""
        from dovetail.config.parse.flags import group_of
        from dovetail.config.parse.parse_config import parse_config
        from dovetail_plugins.batch.settings import BatchFlags, check_flags
        from dovetail_plugins.commands._follow import followed

        flags = group_of(args, BatchFlags)
        check_flags(flags, vars(args))
        config = parse_config(args)
        status = followed(config)
        if status is not None:
            return status
        from dovetail_plugins.batch.launch import (
            run as launch,  # imports the HTTP stack, so only once the flags are valid
        )

        return launch(config, flags)
