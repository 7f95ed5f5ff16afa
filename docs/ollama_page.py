"""The page for those who come from Ollama: commands, paths, options, Modelfiles and variables.

The names stand in tests/reference/ollama.json. Where dovetail has the same name, the row says so by
itself; else `INSTEAD` says what takes its place, and every name of ours in it is looked up, so that
the page cannot name what is not there.
"""

from __future__ import annotations

import json
import re
from typing import Any

from migration_pages import REFERENCE, our_routes, route_words, table

HEAD = """\
# Coming from Ollama

{note}

A dovetail server serves the models that are named when it starts, in their original precision or
quantized, to many clients at once. It reads checkpoints of the Hugging Face hub, folders of
safetensors, and GGUF files as they are.

| in Ollama | here |
|---|---|
| `ollama run MODEL` | `dovetail run MODEL`: serves and chats in one terminal |
| `ollama serve`, then any model by request | `dovetail serve A B`: \
[several models](../how_to/several_models.md), loaded on demand |
| a name such as `qwen3:0.6b` | an id of the hub (`Qwen/Qwen3-0.6B`), a folder or a GGUF file |
| the tag says the quantization (`q4_K_M`) | the GGUF file's own, or `--quantization int4` |
| a Modelfile | `dovetail modelfile FILE > settings.yaml`, \
`dovetail serve --config settings.yaml`: [Modelfiles and templates](../how_to/use_modelfiles.md) |
| port 11434 | port 8000; `--port 11434` for clients that cannot be told |
| 4096 tokens of context unless told | as many as model and memory allow; `--max-model-len` |

1. `dovetail inspect MODEL` (or `FILE.gguf`) says what the model takes here and what would run it.
2. `dovetail serve MODEL` and, for clients, `http://127.0.0.1:8000/v1` as the address of the OpenAI
   API. The other paths are below.
3. [Serve a GGUF file](../how_to/serve_a_gguf_file.md) if you have one already.
"""

BY_NAME = "the same with `--models`, where models are loaded by name; else refused"
OWN_NAME = re.compile(r"`([^`]+)`")
INSTEAD: dict[str, dict[str, str]] = {
    "commands": {
        "serve": "`dovetail serve MODEL`, for the models that are named",
        "run": "`dovetail run MODEL`",
        "stop": "`dovetail stop`, of a model or a server; what runs is finished first",
        "push": "not here: models are published with the hub's own tools",
        "signin": "not here: a token for gated models is given with `--hf-token`",
        "signout": "not here: a token for gated models is given with `--hf-token`",
    },
    "paths": {
        "/api/generate": "`/v1/completions`",
        "/api/chat": "`/v1/chat/completions`",
        "/api/tags": "`/v1/models`",
        "/api/ps": "`/v1/models` and `/load`",
        "/api/show": "`dovetail inspect`, on the command line",
        "/api/version": "`/version`",
        "/api/pull": f"{BY_NAME}. From the hub, and from Ollama's registry into Ollama's store",
        "/api/delete": f"{BY_NAME}. Of created models, the hub's cache and Ollama's store",
        "/api/copy": BY_NAME,
        "/api/create": f"{BY_NAME}. Quantizes to the types of GGUF that `dovetail quantize` writes",
        "/api/push": "refused: models are published with the hub's own tools",
        "/api/blobs/:digest": BY_NAME,
        "/v1/models/{model}": "the same",
    },
    "options": {
        "num_predict": "`max_tokens`",
        "num_ctx": "for all requests, when the server starts: `--max-model-len`",
        "repeat_penalty": "`repetition_penalty`",
        **dict.fromkeys(
            ("repeat_last_n", "typical_p", "tfs_z", "mirostat", "mirostat_eta", "mirostat_tau"),
            "the same",
        ),
        "num_keep": "absent: a prompt that is too long is refused; `truncate_prompt_tokens` "
        "keeps its end",
        "penalize_newline": "`logit_bias`, for any token",
        "num_batch": "for all requests: `--max-num-batched-tokens`",
        "num_gpu": "the whole model is on the device, or `--cpu-offload-gb` of it in host memory",
        "main_gpu": "for all requests: `CUDA_VISIBLE_DEVICES`",
        "num_thread": "for all requests: `--num-threads`",
        "use_mmap": "for all requests: `--safetensors-load-strategy`",
        "use_mlock": "absent: weights are in memory of their own, not in mapped files",
        "numa": "for all requests: `--cpu-cores` and `--pin-threads`",
        "low_vram": "for all requests: `--gpu-memory-utilization`",
    },
    "instructions": {
        "FROM": "the MODEL of `dovetail serve`; a second one: `--mmproj`",
        "PARAMETER": "defaults of requests: `--override-generation-config`; the rest as above",
        "TEMPLATE": "`--chat-template`, in Go's language or in Jinja; the checkpoint's own is the "
        "default",
        "SYSTEM": "`--plugin-options`: the option system of the renderer",
        "ADAPTER": "`--lora-modules` with `--enable-lora`; its name there is a model to clients",
        "LICENSE": "absent: it stays in the checkpoint's folder, and `/api/show` returns it",
        "MESSAGE": "`--plugin-options`: the option messages of the renderer",
        "REQUIRES": "absent: versions of dovetail are others",
    },
    "variables": {
        "OLLAMA_HOST": "`--host` and `--port`",
        "OLLAMA_MODELS": "`--download-dir`, or the hub's own `HF_HOME`",
        "OLLAMA_CONTEXT_LENGTH": "`--max-model-len`",
        "OLLAMA_NUM_PARALLEL": "`--max-num-seqs`: requests share each step, they have no slots",
        "OLLAMA_MAX_QUEUE": "`--max-num-queued-reqs`",
        "OLLAMA_MAX_LOADED_MODELS": "`--models-memory-bytes`, what they may take together",
        "OLLAMA_KEEP_ALIVE": "`--idle-after-s`, of several models; one alone stays",
        "OLLAMA_KV_CACHE_TYPE": "`--kv-cache-dtype`: q8_0 is int8, f16 is float16, q4_0 is int4 "
        "or, closer to the model, k8v4",
        "OLLAMA_FLASH_ATTENTION": "`--attention-backend`; the best one that runs is the default",
        "OLLAMA_GPU_OVERHEAD": "`--gpu-memory-utilization`",
        "OLLAMA_SCHED_SPREAD": "`--tensor-parallel-size`",
        "OLLAMA_LLM_LIBRARY": "`DOVETAIL_CPU_ISA`, or `--device`",
        "OLLAMA_LOAD_TIMEOUT": "`--load-wait-s`, of several models; `/ready` tells of one alone",
        "OLLAMA_ORIGINS": "`--allowed-origins`",
        "OLLAMA_DEBUG": "`--log-level`",
        "OLLAMA_NOHISTORY": "`dovetail chat --no-history`, `dovetail run --no-history`",
        "OLLAMA_NOPRUNE": "absent: nothing is pruned",
        "OLLAMA_MULTIUSER_CACHE": "absent: the prefix cache is shared by all requests, or divided "
        "by `cache_salt`",
    },
}
"""What takes the place of a name of Ollama's that dovetail does not have itself; in braces, a
feature of `dovetail.unsupported`."""
FOREIGN_NAMES = {"HF_HOME", "CUDA_VISIBLE_DEVICES"}
"""Variables that libraries read."""


def ollama_page(note: str) -> str:
    """Return the page for those who come from Ollama. Raises: ValueError for a name of ours that
    does not exist"""
    names: dict[str, list[str]] = json.loads((REFERENCE / "ollama.json").read_text("utf-8"))
    parts = [
        HEAD.format(note=note),
        "## Commands\n",
        table(["`ollama ...`", "here"], _rows("commands", names["commands"], _same_command)),
        "## Paths\n",
        table(["path", "here"], _rows("paths", names["paths"], _same_path)),
        "## Options of a request\n",
        "In the APIs of OpenAI and Anthropic an option is a field of the request itself.\n",
        table(["`options`", "here"], _rows("options", names["options"], _same_option)),
        "## Instructions of a Modelfile\n",
        table(["instruction", "here"], _rows("instructions", names["instructions"])),
        "## Variables\n",
        table(["variable", "here"], _rows("variables", names["variables"])),
    ]
    return "\n".join(parts)


def _rows(topic: str, names: list[str], same: Any = lambda name: "") -> list[tuple[str, str]]:
    return [(f"`{name}`", same(name) or _instead(topic, name)) for name in names]


def _instead(topic: str, name: str) -> str:
    """Return what takes the place of a name, all of ours in it found. Raises: ValueError"""
    from dovetail.unsupported import FEATURES

    text = INSTEAD[topic][name].format_map({key: row.what for key, row in FEATURES.items()})
    unknown = [word for word in OWN_NAME.findall(text) if not _exists(word)]
    if unknown:
        raise ValueError(f"the row of {name} names {unknown[0]}, which does not exist.")
    return text


def _same_command(name: str) -> str:
    from dovetail import registry

    commands = registry.names("command")

    is_told = f"`dovetail {name}" in INSTEAD["commands"].get(name, "")
    return f"`dovetail {name}`" if name in commands and not is_told else ""


def _same_path(path: str) -> str:
    """Return what to say of a route of ours; nothing where there is none but to refuse."""
    route = our_routes().get(path)
    is_there = route is not None and not route.endpoint.__name__.startswith("refuse_")
    return route_words(path, route) if is_there else ""


def _same_option(name: str) -> str:
    """Return where an option is a field of the same name: in requests, and in `options`."""
    places = []
    if name in _fields_of("/v1/chat/completions"):
        places.append("the same")
    else:
        places.append(_instead("options", name))
    if name in _options_of("/api/chat"):
        places.append("with `/api/chat` and `/api/generate` in `options`, as ever")
    return "; ".join(places)


def _fields_of(path: str) -> dict[str, Any]:
    fields: dict[str, Any] = our_routes()[path].body.model_json_schema()["properties"]
    return fields


def _options_of(path: str) -> dict[str, Any]:
    """Return the declared options of Ollama's own request; nothing where there is no such path."""
    route = our_routes().get(path)
    if route is None:
        return {}
    schema = route.body.model_json_schema()
    words = json.dumps(schema["properties"]["options"])
    (reference,) = re.findall(r'"#/\$defs/(\w+)"', words)
    fields: dict[str, Any] = schema["$defs"][reference]["properties"]
    return fields


def _exists(word: str) -> bool:
    """Return whether a name that a row gives is one of ours."""
    from dovetail import registry

    commands = registry.names("command")
    from dovetail.config.config import flags
    from dovetail.config.parse.environment import OWN

    if word.startswith("dovetail "):
        return word.split()[1] in commands
    if word.startswith("/"):
        return word in our_routes()
    if word.startswith("--"):
        return word in {s for flag in flags().values() for s in flag.spellings} | {"--config"}
    return word in _fields_of("/v1/chat/completions") or word in {*OWN, *FOREIGN_NAMES}
