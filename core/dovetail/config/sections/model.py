"""ModelConfig: which checkpoint is served and how its own settings are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Model, tokenizer and their defaults."""

    model: str | None = flag(
        None,
        help="checkpoint folder, or a hub id such as Qwen/Qwen3-0.6B",
        default_note="the bundled demo model",
    )
    served_model_name: tuple[str, ...] = flag(
        (),
        help="model names that clients may use; the first is the one in answers",
        metavar="NAME",
        default_note="the model as given",
    )
    tokenizer: str | None = flag(
        None, help="folder or hub id of another tokenizer", default_note="the model's own"
    )
    tokenizer_mode: str = flag(
        "auto", kind="tokenizer", help="which tokenizer implementation reads the files"
    )
    model_impl: str = flag(
        "auto",
        kind="model_impl",
        help="which implementation runs the model: dovetail's or transformers', or one model "
        "plugin: NAME@DISTRIBUTION, package.module:Class or file.py:Class",
    )
    dtype: str = flag(
        "auto",
        kind="dtype",
        help="data type of weights and activations; on a CPU activations are float32",
    )
    quantization: str | None = flag(
        None,
        kind="quantization",
        short="-q",
        help="quantization method of the weights",
        default_note="as the checkpoint says",
    )
    max_model_len: int | None = flag(
        None,
        ge=1,
        unit="tokens",
        words={"auto": None},
        help="maximum context length: prompt and answer together",
        default_note="the checkpoint's own length",
    )
    allow_long_max_model_len: bool = flag(
        False,
        help="accept a max-model-len above the length the checkpoint was trained for, at your "
        "own risk",
    )
    revision: str | None = flag(None, help="branch, tag or commit of the model on the hub")
    tokenizer_revision: str | None = flag(
        None,
        help="branch, tag or commit of the tokenizer; with --trust-remote-code and --tokenizer "
        "the commit or the digest (sha256:...) of its code",
        default_note="the model's",
    )
    seed: int | None = flag(
        None,
        ge=0,
        le=2**63 - 1,
        help="seed for random weights, and for requests without a seed: each gets one derived "
        "from this seed and its order of arrival",
        default_note="a new one at each start",
    )
    trust_remote_code: bool = flag(
        False,
        help="run code that comes with a checkpoint where nothing else can run it, with all rights "
        "of this user; --code-revision (or --revision with the whole hash of a commit) says which",
    )
    config_format: str = flag(
        "auto", kind="config_format", help="file format of the model's configuration"
    )
    hf_overrides: Mapping[str, Any] = flag(
        {}, help="values that replace entries of config.json; nested objects are merged"
    )
    generation_config: str = flag(
        "auto",
        kind="generation_config_source",
        help="where default sampling parameters come from: the model's folder (auto), another "
        "folder, or dovetail's own defaults (dovetail)",
    )
    override_generation_config: Mapping[str, Any] = flag(
        {}, help="default sampling parameters that override those of the file"
    )
    enforce_eager: bool = flag(
        False, help="run all operators eagerly; never capture or replay steps"
    )
    max_logprobs: int = flag(
        20,
        ge=-1,
        help="maximum number of logprobs per token that a request may ask for; -1 means no limit",
    )
    logits_processors: tuple[str, ...] = flag(
        (),
        kind="logits_processor",
        help="more logits processors to load, in addition to the installed ones",
        metavar="NAME",
    )
    logprobs_mode: str = flag(
        "raw_logprobs",
        kind="logprobs_mode",
        help="what is reported as logprobs: before (raw) or after (processed) processors, "
        "penalties, temperature and filters, as logprobs or as logits; prompts are always raw",
    )
    logits_processor_pattern: str | None = flag(
        None,
        help="regular expression at the start of the names of the logits processors that a request "
        "may use",
        default_note="all that are loaded",
    )
    hf_config_path: str | None = flag(
        None,
        metavar="FOLDER",
        help="folder or hub id whose config.json is read instead of the model's own",
    )
    hf_token: str | None = flag(
        None,
        secret=True,
        metavar="TOKEN",
        bare="",
        help="access token for gated models on the hub; without a value, the saved login is "
        "used. Other users can see command lines, so the variable HF_TOKEN is safer",
        default_note="HF_TOKEN, or a login that the hub's client has saved",
    )
    code_revision: str | None = flag(
        None,
        help="the code that --trust-remote-code runs: sha256: and the digest of its files, which "
        "the error without this flag tells, or on the hub the whole hash of a commit",
        default_note="the commit that --revision names",
    )
    rope_theta: float | None = flag(
        None, ge=1, help="base of the rotary embedding", default_note="the checkpoint's"
    )
    rope_scaling: Mapping[str, Any] = flag(
        {},
        kind="rope_type",
        help="how the rotary embedding is scaled to longer contexts; replaces the checkpoint's "
        "setting",
        default_note="the checkpoint's",
    )
    disable_sliding_window: bool = flag(
        False, help="do not use sliding windows; the context is limited to the window's length"
    )
    runner: str = flag("auto", kind="runner", help="what the model is run for")
    convert: str = flag(
        "auto",
        kind="convert",
        help="convert a generative model into a pooling model: embed, classify or reward",
    )
    pooler_config: Mapping[str, Any] = flag(
        {},
        kind="pooler",
        help="how prompts are pooled: pooling_type, normalize, dimensions; softmax, activation or "
        "use_activation; step_tag_id, returned_token_ids; with enable_chunked_processing prompts "
        "longer than the context, up to max_embed_len tokens, are embedded in pieces, whose "
        "vectors are averaged by their numbers of tokens",
    )
    skip_tokenizer_init: bool = flag(
        False,
        help="load no tokenizer: prompts and answers are token ids; chat requests and stop "
        "strings are rejected",
    )
    enable_prompt_embeds: bool = flag(False, help="accept embeddings instead of a prompt")
    enable_sleep_mode: bool = flag(
        False,
        help="allow sleep mode, in which the engine releases its memory until it is woken up: "
        "POST /sleep and /wake_up (with --enable-dev-endpoints), LLM.sleep and LLM.wake_up",
    )
    override_attention_dtype: str | None = flag(
        None, kind="dtype", help="data type in which attention is computed", default_note="dtype"
    )
    io_processor_plugin: str | None = flag(
        None,
        kind="io_processor",
        help="plugin that converts other data into prompts, and answers back",
    )
