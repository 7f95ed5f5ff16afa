"""What programs written for vLLM's `LLM` do, snippet by snippet.

It works here with the same names, or "What differs" of docs/reference/llm.md has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail import LLM, SamplingParams
from support.tiny_berts import write_bert

ROOT = Path(__file__).parents[2]
WORKS = {
    "prompts": """
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
outputs = llm.generate(["Hello, my name is", "The capital of France is"], sampling_params)
for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
""",
    "one prompt": "(output,) = llm.generate('Hello')",
    "params for each": """
outputs = llm.generate(["a", "b"], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=4)])
assert [len(o.outputs[0].token_ids) <= n for o, n in zip(outputs, (3, 4))] == [True, True]
""",
    "keywords": "llm.generate(prompts=['a'], sampling_params=short, use_tqdm=False)",
    "copies": """
import copy
assert copy.deepcopy(short) == short.clone() == short
""",
    "n": """
(output,) = llm.generate("a", SamplingParams(n=3, temperature=1, max_tokens=3))
assert [one.index for one in output.outputs] == [0, 1, 2]
""",
    "many fields": """
SamplingParams(bad_words=["a"], allowed_token_ids=[1, 2], logit_bias={1: 2.0}, min_tokens=1,
    min_p=0.1, seed=1, stop_token_ids=[3], repetition_penalty=1.1, presence_penalty=0.5,
    frequency_penalty=0.5, include_stop_str_in_output=True, ignore_eos=True,
    skip_special_tokens=False, spaces_between_special_tokens=False, truncate_prompt_tokens=10,
    detokenize=True, top_k=-1, extra_args={"a": 1}, stop=["x"])
""",
    "chat": """
talk = [{"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I assist you today?"},
    {"role": "user", "content": "What is the capital of France?"}]
(alone,) = llm.chat(talk, sampling_params=greedy, use_tqdm=False)
assert "Paris" in alone.outputs[0].text
both = llm.chat([talk, talk], greedy, use_tqdm=True)
assert [one.outputs[0].text for one in both] == [alone.outputs[0].text] * 2
llm.chat(talk, short, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
""",
    "chat's keywords": """
talk = [{"role": "user", "content": "a"}]
llm.chat(talk, short, chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=True,
    continue_final_message=False, chat_template_content_format="auto")
(text,) = llm.chat(talk, short, chat_template="{{ messages[0].content[0].text }}b",
    chat_template_content_format="openai")
assert text.prompt == "ab"
""",
    "tools": """
tools = [{"type": "function", "function": {"name": "get_current_weather", "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
talk = [{"role": "user", "content": "What is the weather in Paris?"}]
(output,) = llm.chat(talk, sampling_params=greedy, tools=tools)
call = json.loads(output.outputs[0].text.partition("<tool_call>")[2].partition("</tool_call>")[0])
assert call["name"] == "get_current_weather" and "Paris" in call["arguments"].values()
""",
    "logprobs": """
(output,) = llm.generate("Hello", SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=1))
for position in output.outputs[0].logprobs:
    for token_id, one in position.items():
        assert one.logprob <= 0 and one.rank >= 1 and isinstance(one.decoded_token, str)
assert output.prompt_logprobs[0] is None
""",
    "kinds of prompts": """
from dovetail import PromptType, TextPrompt, TokensPrompt
from dovetail.inputs import ExplicitEncoderDecoderPrompt
ids = llm.get_tokenizer().encode("Hello there")
given = [TokensPrompt(prompt_token_ids=ids), TextPrompt(prompt="Hello there"), ids, "Hello there",
    {"prompt": "Hello there", "multi_modal_data": None, "cache_salt": "of mine"}]
texts = {output.outputs[0].text for output in llm.generate(given, greedy)}
assert len(texts) == 1
""",
    "cache salts": """
long = "One two three four five six seven eight nine ten. " * 3
def hits(salt):
    (output,) = llm.generate({"prompt": long, "cache_salt": salt}, short)
    return output.num_cached_tokens
assert (hits("a"), hits("b")) == (0, 0) and hits("a") > 0
""",
    "priorities": """
llm.generate(["a", "b"], short, priority=[0, 1])
llm.generate(["a", "b"], short, priority=1)
try:
    llm.generate(["a", "b"], short, priority=[1])
except ValueError as error:
    assert "2 prompts, but 1 priorities" in str(error)
else:
    raise AssertionError
""",
    "beam search": """
from dovetail.sampling_params import BeamSearchParams
(output,) = llm.beam_search([{"prompt": "Hello"}], BeamSearchParams(beam_width=2, max_tokens=3))
assert len(output.sequences) == 2 and output.sequences[0].text.startswith("Hello")
""",
    "a choice": """
from dovetail.sampling_params import StructuredOutputsParams
params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["Positive", "Negative"]))
(output,) = llm.generate(prompts="Classify: it is wonderful!", sampling_params=params)
assert output.outputs[0].text in ("Positive", "Negative")
""",
    "a schema": """
from pydantic import BaseModel
from dovetail.sampling_params import StructuredOutputsParams
class Car(BaseModel):
    brand: int
params = SamplingParams(max_tokens=40, temperature=0,
    structured_outputs=StructuredOutputsParams(json=Car.model_json_schema(), ))
(output,) = llm.generate("A car:", params)
assert output.outputs[0].text.lstrip().startswith("{")
""",
    "facts": """
config = llm.model_config
assert config.max_model_len == 128 and config.get_vocab_size() == config.hf_config.vocab_size
tokenizer = llm.get_tokenizer()
talk = [{"role": "user", "content": "a"}]
tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
assert tokenizer.eos_token_id is not None
llm.get_default_sampling_params().max_tokens
""",
    "the cache": "assert llm.reset_prefix_cache()",
    "sleep": """
llm.sleep(level=1)
llm.wake_up()
llm.sleep(level=1)
llm.wake_up(tags=["weights"])
llm.wake_up(tags=["kv_cache"])
(output,) = llm.generate("Hello", short)
assert output.error is None
""",
    "profile": """
llm.start_profile()
llm.generate("Hello", short)
llm.stop_profile()
""",
    "results": """
from dovetail import CompletionOutput, RequestOutput
from dovetail.outputs import ClassificationRequestOutput, EmbeddingRequestOutput
from dovetail.outputs import PoolingRequestOutput, ScoringRequestOutput
(output,) = llm.generate("Hello", short)
(one,) = output.outputs
assert isinstance(output, RequestOutput) and isinstance(one, CompletionOutput)
assert output.finished and one.finished() and one.finish_reason == "length"
assert one.stop_reason is None and output.num_cached_tokens >= 0 and output.request_id
output.prompt_token_ids + one.token_ids
""",
    "an adapter": """
from dovetail.lora_request import LoRARequest
LoRARequest("sql", 1, "/a/folder")
LoRARequest(lora_name="a", lora_int_id=1, lora_path="/a/folder")
""",
    "progress": """
from functools import partial
from tqdm import tqdm
llm.generate(["a"], short, use_tqdm=partial(tqdm, disable=True))
""",
    "version": "import dovetail\nassert dovetail.__version__",
    "many flags": """
flags = dict(trust_remote_code=False, max_model_len=64, enforce_eager=True,
    gpu_memory_utilization=0.8, tensor_parallel_size=1, dtype="float32", seed=0, max_num_seqs=4,
    swap_space=0, quantization=None, load_format="auto", disable_log_stats=False, hf_overrides={},
    kv_cache_dtype="auto", enable_prefix_caching=True, tokenizer=None, tokenizer_mode="auto",
    skip_tokenizer_init=False, revision=None, cpu_offload_gb=0, disable_custom_all_reduce=False,
    runner="generate", max_num_batched_tokens=512, enable_chunked_prefill=True, block_size=16,
    allowed_local_media_path="", mm_processor_kwargs=None, compilation_config={"level": 0},
    structured_outputs_config={"backend": "auto"}, logits_processors=None, max_logprobs=5,
    limit_mm_per_prompt={"image": 1}, distributed_executor_backend="uni", enable_lora=True,
    max_loras=1, max_lora_rank=8, max_cpu_loras=2,
    speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4})
other = LLM(llm.model_config.model, **flags)
other.generate("a", short)
other.close()
""",
}
POOLING = {
    "vectors": (
        "embed",
        """
from dovetail import EmbeddingRequestOutput, PoolingParams
(output,) = llm.embed(["Hello"], use_tqdm=False)
vector = output.outputs.embedding
assert isinstance(output, EmbeddingRequestOutput)
assert len(vector) == len(llm.embed("a b")[0].outputs.embedding)
(raw,) = llm.encode("Hello", pooling_task="embed")
assert list(raw.outputs.data) == list(vector)
llm.encode("Hello", pooling_task="token_embed")
llm.embed({"prompt": "Hello"})
(short,) = llm.embed("Hello", pooling_params=PoolingParams(is_normalized=False))
assert len(short.outputs.embedding) == len(vector)
assert llm.score("a", ["b", "c"])[0].outputs.score <= 1.0001
""",
    ),
    "classes": (
        "classify",
        """
(output,) = llm.classify("Hello")
assert len(output.outputs.probs) == 3 and abs(sum(output.outputs.probs) - 1) < 1e-3
""",
    ),
    "scores": (
        "score",
        """
(output,) = llm.score("What is it?", "The capital")
assert isinstance(output.outputs.score, float)
assert len(llm.score("q", ["a", "b"])) == 2
""",
    ),
}
DIFFERS = {
    "SamplingParams(2)": "made by position",
    "short.max_tokens = 5": "can be changed",
    "SamplingParams.from_optional(n=2)": "from_optional",
    "assert SamplingParams().max_tokens == 16": "SamplingParams(max_tokens=16)",
    "SamplingParams(n=1, best_of=2)": "best_of",
    "from dovetail.sampling_params import RequestOutputKind": "RequestOutputKind",
    "SamplingParams(thinking_token_budget=5)": "thinking_token_budget",
    "SamplingParams(guided_decoding={'choice': ['a']})": "guided_decoding",
    "from dovetail import PoolingParams\nPoolingParams(normalize=True)": "normalize",
    "from dovetail import PoolingParams\nPoolingParams(use_activation=True)": "use_activation",
    "from dovetail.inputs.data import TokensPrompt": "vllm.inputs.data",
    "from dovetail.lora.request import LoRARequest": "vllm.lora.request",
    "from dovetail import EngineArgs": "EngineArgs",
    "from dovetail import AsyncEngineArgs": "AsyncEngineArgs",
    "from dovetail import LLMEngine": "LLMEngine",
    "from dovetail import AsyncLLMEngine": "AsyncLLMEngine",
    "LLM.from_engine_args": "from_engine_args",
    "from dovetail.config import KVTransferConfig": "vllm.config",
    "from dovetail.utils import FlexibleArgumentParser": "vllm.utils",
    "from dovetail.entrypoints.chat_utils import load_chat_template": "vllm.entrypoints",
    "from dovetail.assets.image import ImageAsset": "vllm.assets",
    "from dovetail.distributed import cleanup_dist_env_and_memory": "vllm.distributed",
    "from dovetail.v1.metrics.reader import Counter": "vllm.v1",
    "llm.llm_engine": "llm.llm_engine",
    "llm.get_metrics()": "get_metrics()",
    "llm.enqueue(['a'])": "enqueue",
    "llm.wait_for_completion()": "wait_for_completion",
    "llm.preprocess_chat([])": "preprocess_chat",
    "llm.set_tokenizer(None)": "set_tokenizer",
    "llm.reset_mm_cache()": "reset_mm_cache",
    "llm.generate(prompt_token_ids=[[1]])": "generate(prompt_token_ids=...)",
    "llm.generate('a', short)[0].metrics.arrival_time": "arrival_s",
    "llm.generate('a', short)[0].lora_request": "lora_request",
    "assert isinstance(llm.generate('a', short)[0].outputs[0].token_ids, list)": "are tuples",
    "llm.collective_rpc(lambda worker: 1)": "collective_rpc(lambda",
    "llm.apply_model(lambda model: 1)": "apply_model(function)",
    "structural tag": "structural tags in free text",
}
STRUCTURAL_TAG = """
from dovetail.sampling_params import StructuredOutputsParams
tag = json.dumps({"type": "structural_tag", "triggers": ["<f>"],
    "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}]})
llm.generate("a", SamplingParams(structured_outputs=StructuredOutputsParams(structural_tag=tag)))
"""


def run(code: str, llm: LLM) -> None:
    """Run a snippet that has an LLM at hand."""
    import json

    names: dict[str, Any] = {
        "llm": llm,
        "LLM": LLM,
        "json": json,
        "SamplingParams": SamplingParams,
        "short": SamplingParams(max_tokens=3, temperature=0, ignore_eos=True),
        "greedy": SamplingParams(max_tokens=48, temperature=0),
    }
    exec(compile(code, "snippet", "exec"), names)  # noqa: S102  (they are those above)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    profiler = {"torch_profiler_dir": str(tmp_path_factory.mktemp("traces"))}
    flags = {"enable_sleep_mode": True, "profiler_config": profiler, "use_tqdm_on_load": False}
    with LLM(max_model_len=128, max_num_seqs=4, **flags) as opened:
        yield opened


@pytest.mark.parametrize("name", WORKS)
def test_a_snippet_works(name: str, llm: LLM) -> None:
    run(WORKS[name], llm)


@pytest.mark.parametrize("name", POOLING)
def test_a_snippet_that_pools_works(name: str, tmp_path: Path) -> None:
    task, code = POOLING[name]
    write_bert(tmp_path / "bert", labels={"embed": 0, "classify": 3, "score": 1}[task])
    with LLM(model=str(tmp_path / "bert"), task=task, use_tqdm_on_load=False) as opened:
        run(code, opened)


@pytest.mark.parametrize("code", DIFFERS)
def test_a_snippet_that_differs_is_on_the_page(code: str, llm: LLM) -> None:
    page = (ROOT / "docs/reference/llm.md").read_text().partition("## What differs")[2]
    assert DIFFERS[code] in page
    source = STRUCTURAL_TAG if code == "structural tag" else code
    with pytest.raises(
        (AttributeError, TypeError, ImportError, AssertionError, dovetail.errors.DovetailError)
    ):
        run(source, llm)
