"""Code shared by latency and throughput: the engine's flags, a loaded model, whole answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from dovetail.config.config import GROUPS, Config
from dovetail.config.parse.flags import add_flags, add_groups
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import DovetailError
from dovetail.interfaces.bench_dataset import BenchPrompt

ENGINE_GROUPS = tuple(group for group in GROUPS.values() if group is not FrontendConfig)
"""The flags of `dovetail serve`, without the HTTP server's, which does not run here."""


def add_offline(parser: argparse.ArgumentParser, groups: Sequence[type[object]]) -> None:
    """Add the model, the measurement's own flags and the engine's. Mutates: parser."""
    parser.add_argument(
        "model_tag",
        nargs="?",
        metavar="MODEL",
        help="checkpoint folder or hub id; without it the bundled demo model is measured",
    )
    add_groups(parser, groups)
    add_flags(parser, ENGINE_GROUPS)


def engine_config(args: argparse.Namespace) -> Config:
    """Return the engine's config, with its choices checked. Raises: ConfigError"""
    from dovetail.config.parse.parse_config import parse_config

    return parse_config(args)


def load(config: Config) -> Any:
    """Return the loaded LLM, which the caller closes. Raises: ConfigError"""
    from dovetail.config.resolve import resolve
    from dovetail.llm.llm import LLM
    from dovetail.observability.configured_log import set_log_up

    set_log_up(config)
    return LLM.from_spec(resolve(config))


def generate(llm: Any, prompts: Sequence[BenchPrompt], *, shows_progress: bool = False) -> Any:
    """Return greedy answers of exactly the requested lengths; for a pooling model, the results of
    its default task."""
    from dovetail.interfaces.data.sampling_params import SamplingParams

    if pools(llm):
        return llm.encode([prompt.prompt for prompt in prompts], use_tqdm=shows_progress)
    params = [
        SamplingParams(temperature=0.0, max_tokens=prompt.output_tokens, ignore_eos=True)
        for prompt in prompts
    ]
    return llm.generate([prompt.prompt for prompt in prompts], params, use_tqdm=shows_progress)


def pools(llm: Any) -> bool:
    """Return whether the model pools its prompts instead of generating."""
    return llm.spec.run.pooling is not None


def check_all(results: Sequence[Any]) -> None:
    """Raise DovetailError with the first error, if any answer failed."""
    faults = [result.error for result in results if result.error is not None]
    if faults:
        raise DovetailError(f"{len(faults)} of {len(results)} answers failed: {faults[0]}")
