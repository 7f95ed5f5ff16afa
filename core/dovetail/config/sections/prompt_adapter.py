"""PromptAdapterConfig: adapters that put vectors before a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAdapterConfig:
    "Prompt adapters."

    enable_prompt_adapter: bool = flag(False, help="serve prompt adapters")
    prompt_adapters: tuple[str, ...] = flag(
        (),
        metavar="NAME=PATH",
        help="prompt adapters to load at start, each with the model name that requests use",
    )
    max_prompt_adapters: int = flag(1, ge=1, help="maximum number of prompt adapters in one step")
    max_prompt_adapter_token: int = flag(
        0, ge=0, unit="tokens", help="maximum number of vectors that a prompt adapter has"
    )
