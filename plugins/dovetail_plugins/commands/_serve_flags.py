"""The arguments of `dovetail serve`, shared by other commands about a model."""

from __future__ import annotations

import argparse

SERVE_FLAGS = frozenset(
    {
        "host",
        "port",
        "api_key",
        "served_model_name",
        "dtype",
        "quantization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "tool_call_parser",
        "reasoning_parser",
    }
)
"""The flags on the first help screen."""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and every flag of the config. Mutates: parser."""
    from dovetail.config.parse.flags import add_flags

    parser.add_argument(
        "model_tag",
        nargs="*",
        metavar="MODEL",
        help="folder, file, hub id or name that `dovetail list` shows, or several side by side; "
        "default the demo model",
    )
    add_flags(parser)
