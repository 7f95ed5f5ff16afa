"""The flags of `dovetail run-batch`, in addition to the engine's."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.config.config import GROUPS, Config
from dovetail.config.sections.field import Flag, flag, flags_of
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError

log = logging.getLogger(__name__)

ENGINE_GROUPS = tuple(group for group in GROUPS.values() if group is not FrontendConfig)

ANSWER_FLAGS = frozenset(
    {
        "allow_control_tokens",
        "api",
        "chat_template",
        "chat_template_content_format",
        "default_chat_template_kwargs",
        "disable_frontend_multiprocessing",
        "enable_auto_tool_choice",
        "enable_log_deltas",
        "enable_log_outputs",
        "enable_log_requests",
        "enable_per_request_metrics",
        "enable_prompt_tokens_details",
        "exclude_tools_when_tool_choice_none",
        "log_error_stack",
        "max_body_bytes",
        "max_log_len",
        "reasoning_parser",
        "reasoning_parser_plugin",
        "response_role",
        "return_tokens_as_token_ids",
        "strict_request_fields",
        "tool_call_parser",
        "tool_parser_plugin",
        "tool_parser_strict",
        "tool_server",
        "trust_request_chat_template",
    }
)
"""Settings of the HTTP server that affect answers or the log; the others need a socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    "Input and output."

    input_file: str = flag(
        "",
        short="-i",
        metavar="FILE",
        default_note="must be given",
        help="requests as JSON lines: a file, or an http(s) address that is fetched with GET",
    )
    output_file: str = flag(
        "",
        short="-o",
        metavar="FILE",
        default_note="must be given",
        help="results as JSON lines: a file, or an http(s) address they are sent to with PUT",
    )
    output_tmp_dir: str | None = flag(
        None,
        metavar="FOLDER",
        default_note="a temporary one",
        help="folder for a fetched input, and for results until they are uploaded; a restarted "
        "run continues from it",
    )
    resume: bool = flag(
        True, help="continue an existing output file; --no-resume starts from the beginning"
    )
    enable_metrics: bool = flag(False, help="serve Prometheus metrics during the run")
    url: str = flag("0.0.0.0", metavar="HOST", help="address at which metrics are served")
    port: int = flag(
        8000, ge=0, le=65535, help="port at which metrics are served; 0 chooses a free one"
    )


def answer_flags() -> list[Flag]:
    """Return the HTTP server's flags that have an effect in a batch."""
    return [flag for flag in flags_of(FrontendConfig) if flag.name in ANSWER_FLAGS]


def answer_config(config: Config) -> FrontendConfig:
    """Return the frontend settings, with those that need a socket at their defaults."""
    values = {flag.name: config.value(flag.name) for flag in answer_flags()}
    return dataclasses.replace(FrontendConfig(), **values)


def idle_settings(config: Config) -> list[str]:
    """Return a note for each setting from a file or variable that has no effect here."""
    return [
        f"run-batch runs no HTTP server; {one.spelling} (from {config.origins[one.name]}) is not "
        "used."
        for one in flags_of(FrontendConfig)
        if one.name not in ANSWER_FLAGS and _is_from_elsewhere(config, one.name)
    ]


def _is_from_elsewhere(config: Config, name: str) -> bool:
    # A --port on this command line is for the metrics.
    return config.origins.get(name, "command line") != "command line"


def check_flags(flags: BatchFlags, given: Iterable[str]) -> None:
    """Raise ConfigError for missing flags, and log flags without effect."""
    for name, value in (("--input-file", flags.input_file), ("--output-file", flags.output_file)):
        if not value:
            fix = "e.g. `dovetail run-batch -i requests.jsonl -o results.jsonl MODEL`."
            raise ConfigError("must be given.", where=name, fix=fix)
    for name in {"url", "port"} & set(given) if not flags.enable_metrics else ():
        log.warning("--%s has no effect without --enable-metrics", name)
