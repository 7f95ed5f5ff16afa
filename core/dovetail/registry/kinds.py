"""The table of plugin kinds: adding a kind takes one line here and its interface.

Interfaces are named as text, so that reading the table imports nothing.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Plugin, Value

VALUE = "dovetail.interfaces.plugin:Value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One type of plugin that can be chosen by name.

    `interface` is the "module:Class" that every plugin of the kind derives from. `default` is used
    if no choice is made (None: no plugin). `auto` describes how "auto" chooses among all entries;
    empty if "auto" is not a choice, or is an entry itself. `is_open`: core also accepts other words
    than registered names (a folder, for example). `has_named_options`: several plugins of the kind
    are used at the same time, so their options are given under their names.
    """

    name: str
    interface: str
    summary: str
    flags: tuple[str, ...] = ()
    default: str | None = None
    auto: str = ""
    is_open: bool = False
    has_named_options: bool = False

    @property
    def group(self) -> str:
        """Return the entry-point group."""
        return f"dovetail.{self.name}"

    @property
    def is_value(self) -> bool:
        """Return whether the kind's plugins are constants."""
        return self.interface == VALUE

    @property
    def choosing_flag(self) -> str:
        """Return the flag that chooses one plugin by its name, empty if there is none."""
        return "--model-impl" if self.name == "model" else next(iter(self.flags), "")

    @property
    def where(self) -> str:
        """Return the name of the choice in errors."""
        return self.flags[0] if self.flags else self.name


def _kind(name: str, interface: str, summary: str, *flags: str, **more: Any) -> Kind:
    interface = f"dovetail.interfaces.{interface}"
    return Kind(name=name, interface=interface, summary=summary, flags=flags, **more)


def _value(name: str, flag: str, summary: str, *also: str, **more: Any) -> Kind:
    more = {"default": "auto"} | more
    return Kind(name=name, interface=VALUE, summary=summary, flags=(flag, *also), **more)


_BY_TEMPLATE = "by the markers that the model's chat template mentions"
_TABLE = (
    _kind("attention_backend", "attention:AttentionBackend", "attention over the paged KV cache",
          "--attention-backend", default="auto",
          auto="by device, dtypes and the features of the model's attention layers"),
    _kind("quantization", "quantization:QuantMethod", "how weights are stored and multiplied",
          "--quantization", auto="by the checkpoint's quantization config"),
    _kind("load_format", "load_format:LoadFormat", "file format of the weights",
          "--load-format", default="auto"),
    _kind("quantizer", "quantizer:Quantizer", "writes checkpoints of quantized weights",
          "--method"),
    _kind("renderer", "renderer:Renderer", "makes the prompt of a conversation", "--renderer",
          default="auto", auto="a chat template if there is one, else by config.json's model_type"),
    _kind("tool_parser", "tool_parser:ToolParser", "syntax in which a model writes tool calls",
          "--tool-call-parser", "--tool-parser-plugin", auto=_BY_TEMPLATE),
    _kind("reasoning_parser", "reasoning_parser:ReasoningParser", "syntax of a model's reasoning",
          "--reasoning-parser", "--reasoning-parser-plugin", auto=_BY_TEMPLATE),
    _kind("structured_output_backend", "structured_output:StructuredOutputBackend",
          "enforces schemas and grammars", "--structured-outputs-config", default="auto",
          auto="per request, by what the backends enforce"),
    _kind("scheduler", "scheduler:Scheduler", "plans which requests a step computes",
          "--scheduler-cls", default="continuous"),
    _kind("scheduling_policy", "scheduling_policy:SchedulingPolicy",
          "order of waiting requests, and which ones to preempt",
          "--scheduling-policy", default="fcfs"),
    _kind("drafter", "drafter:AnyDrafter", "drafts tokens for speculative decoding",
          "--speculative-config"),
    _kind("acceptance", "acceptance:Acceptance", "decides which drafted tokens are kept",
          "--spec-decoding-acceptance-method", default="rejection_sampler"),
    _kind("platform", "platform:Platform",
          "a type of device: whether it is there, its defaults and its limits",
          "--device", default="auto", auto="the device that is there, the highest rank first"),
    _kind("kv_policy", "kv_policy:KVPolicy", "lays the KV cache out and hands out its blocks",
          "--kv-policy", default="paged"),
    _kind("kv_connector", "kv_connector:KVConnector",
          "keeps KV blocks beside the device and brings them back", "--kv-transfer-config"),
    _kind("kv_eviction", "kv_eviction:KVEviction",
          "which KV blocks leave host memory or a folder that is full", "--kv-transfer-config",
          default="lru"),
    _kind("kv_event_publisher", "kv_event_publisher:KVEventPublisher",
          "tells others what the prefix cache holds", "--kv-events-config"),
    _kind("router", "router:Router", "which of several engines a request goes to",
          "--data-parallel-router", default="prefix_aware"),
    _kind("executor", "executor:Executor", "calls the workers of every rank",
          "--distributed-executor-backend", default="uni",
          auto="by the number of ranks: uni for one, mp for more"),
    _kind("communicator", "communicator:Communicator", "how ranks exchange tensors",
          "--communicator", default="auto",
          auto="by device type, and by whether all ranks run on this machine"),
    _kind("all2all", "all2all:All2All",
          "how tokens come to the experts of other engines, and the sums back",
          "--all2all-backend", default="allgather_reducescatter"),
    _kind("worker", "worker:Worker", "runs one rank's model on one device",
          "--worker-cls", default="auto", auto="by the device type"),
    _kind("pooler", "pooler:Pooler", "makes a vector of a prompt's hidden states",
          "--pooler-config"),
    _kind("io_processor", "io_processor:IOProcessor",
          "makes prompts of other data, and answers of what the model pools",
          "--io-processor-plugin", is_open=True),
    _kind("adapter", "adapter:AdapterMethod", "reads a sort of adapters to the model",
          "--lora-modules", has_named_options=True),
    _kind("adapter_resolver", "adapter_resolver:AdapterResolver",
          "finds an adapter that a request names and that is not loaded",
          "--lora-resolvers", has_named_options=True),
    _kind("model", "model:Model", "one family of checkpoints; the name is the architecture"),
    _kind("tokenizer", "tokenizer:Tokenizer", "converts text to token ids and back",
          "--tokenizer-mode", default="auto", auto="by the files in the tokenizer's folder"),
    _kind("logits_processor", "logits:LogitsProcessor", "changes the logits of requests",
          "--logits-processors", has_named_options=True),
    _kind("stop_condition", "stop_condition:StopCondition", "ends answers because of their tokens",
          has_named_options=True),
    _kind("stat_logger", "stats:StatLogger", "receives the engine's statistics", "--stat-loggers",
          has_named_options=True),
    _kind("gate", "gate:Gate", "who sends a request, and what they may do", "--gate",
          default="keys"),
    _kind("api", "api:Api", "a family of HTTP endpoints; dovetail's own are always served",
          "--api", has_named_options=True),
    _kind("command", "command:Command", "a subcommand of `dovetail`"),
    _kind("client", "client:ClientProgram", "a program that `dovetail launch` starts"),
    _kind("model_store", "model_store:ModelStore", "models on this machine by name; all are read"),
    _kind("bench_dataset", "bench_dataset:BenchDataset", "source of a benchmark's prompts",
          "--dataset-name", default="random"),
    Kind(name="model_type", interface=VALUE,
         summary="what must be known of a family of checkpoints before its code is imported; the "
         "name is config.json's model_type"),
    Kind(name="file_importer", interface=VALUE,
         summary="runs plugin files that are written for another engine; the name is the module "
         "that such files import"),
    Kind(name="request_fields", interface=VALUE,
         summary="what fields of requests to other servers mean here, a table each"),
    _value("dtype", "--dtype", "data type of weights and activations",
           "--override-attention-dtype"),
    _value("kv_cache_dtype", "--kv-cache-dtype", "data type of the KV cache"),
    _value("hash_algorithm", "--prefix-caching-hash-algo", "hash function of the prefix cache",
           default="sha256"),
    _value("config_format", "--config-format", "file format of a checkpoint's config"),
    _value("model_impl", "--model-impl", "which implementation runs the model"),
    _value("log_level", "--log-level", "lowest level of logged messages", default="info"),
    _value("log_format", "--log-format", "form of the lines of the log", default="text"),
    _value("uvicorn_log_level", "--uvicorn-log-level",
           "lowest level of logged messages of the HTTP server", default="info"),
    _value("generation_config_source", "--generation-config",
           "source of default sampling parameters; any other word is a folder", is_open=True),
    _value("chat_content_format", "--chat-template-content-format",
           "whether chat templates see content as text or as parts"),
    _value("reasoning_field", "--reasoning-field",
           "names of the field for reasoning in chat answers", default="both"),
    _value("block_size", "--block-size", "tokens per KV cache block", default="16"),
    _value("compilation_level", "--compilation-config", "optimization level of steps",
           default=None, is_open=True),
    _value("performance_mode", "--performance-mode",
           "sizes of steps, for even or for many tokens", default="balanced"),
    _value("logprobs_mode", "--logprobs-mode", "what is reported as logprobs",
           default="raw_logprobs"),
    _value("rope_type", "--rope-scaling", "how the rotary embedding is scaled",
           default=None, is_open=True),
    _value("runner", "--runner", "what the model is run for"),
    _value("convert", "--convert", "what a generative model is converted into"),
    _value("task", "--task", "older name of runner and convert together", is_open=True),
    _value("middleware", "--middleware", "ASGI middleware, given by import path", default=None,
           is_open=True),
    _value("safetensors_load_strategy", "--safetensors-load-strategy",
           "how safetensors files are read", default="lazy"),
    _value("trace_module", "--collect-detailed-traces", "parts traced in detail", default=None),
    _value("data_parallel_backend", "--data-parallel-backend", "how engine replicas are started",
           default="mp"),
    _value("expert_placement", "--expert-placement-strategy", "which device holds which experts",
           default="linear"),
    _value("lora_dtype", "--lora-dtype", "data type of LoRA adapters"),
    _value("mamba_cache_dtype", "--mamba-cache-dtype", "data type of Mamba states",
           "--mamba-ssm-cache-dtype"),
    _value("modality", "--limit-mm-per-prompt", "kinds of media", "--media-io-kwargs",
           default=None),
    _value("mm_cache", "--mm-processor-cache-type", "where processed media are cached",
           default="lru"),
    _value("mm_encoder_tp_mode", "--mm-encoder-tp-mode", "how media encoders are divided",
           default="weights"),
    _value("tool_server", "--tool-server",
           "MCP servers, each given as HOST:PORT", default=None, is_open=True),
    _value("preemption_mode", "--preemption-mode", "how a preempted request resumes",
           default="recompute"),
    Kind(name="command_line", interface=VALUE,
         summary="how a command line of another server is written as `dovetail serve`"),
    Kind(name="foreign_flags", interface=VALUE,
         summary="newer flags of another server's command line, and what becomes of each"),
    Kind(name="foreign_variables", interface=VALUE,
         summary="environment variables of another server; the name is what they begin with"),
    _value("tokenizer_pool", "--tokenizer-pool-type", "pools of tokenizer processes",
           default=None),
)  # fmt: skip

KINDS: dict[str, Kind] = {kind.name: kind for kind in _TABLE}


def kind_named(name: str) -> Kind:
    """Return the kind of this name. Raises: ConfigError with the nearest names."""
    if name in KINDS:
        return KINDS[name]
    near = difflib.get_close_matches(name, KINDS, n=3) or sorted(KINDS)
    raise ConfigError(f'"{name}" is not a plugin kind.', fix=f"use one of {', '.join(near)}.")


@cache
def interface_of(kind: str) -> type[Plugin] | type[Value]:
    """Return the class that plugins of the kind derive from; imports its interface module."""
    module, _, attribute = kind_named(kind).interface.partition(":")
    interface: type[Plugin] | type[Value] = getattr(importlib.import_module(module), attribute)
    return interface


def kind_of(cls: type[object]) -> Kind | None:
    """Return the kind whose interface `cls` derives from, or None. Imports nothing."""
    bases = {f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__}
    found = [kind for kind in KINDS.values() if not kind.is_value and kind.interface in bases]
    return found[0] if found else None
