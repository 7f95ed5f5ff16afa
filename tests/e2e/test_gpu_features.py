"""What engines do on a GPU beside drawing tokens: each answer is a CPU's.

What moves tensors between host and device is tried on a fake GPU too, which every machine has: it
refuses operations between tensors of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dovetail import LLM, LoRARequest, SamplingParams
from dovetail.engine.client.requests.encoder_prompt import EncoderPrompt
from dovetail.interfaces.data.constraint import Regex
from dovetail.interfaces.data.media import Feature, PartPlace, PromptPart
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.gpus import CPU, CUDA, NEEDS_GPU, ON_GPU, engine
from support.inside import core_of, graphs_of, runner_of
from support.media import data_url, picture
from support.tiny_encoder_decoders import write_encoder_decoder
from support.tiny_media import write_media_checkpoint
from support.written_lora import write_lora

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
LONG = [3 + (7 * i + i // 9) % 60 for i in range(70)]
PROMPTS: Sequence[Any] = [LONG, LONG[:33], [*LONG[:40], 5, 6], [9, 8, 7]]
SAME = 2e-4
CACHE_BYTES = 250 << 20
"""Less than 65536 blocks of a tiny Llama take."""
QUANTIZED = ("gptq", "awq", "hqq_4", "bitsandbytes_nf4", "modelopt_fp8", "modelopt_nvfp4", "aqlm")
ROUNDED = 0.15
"""A CPU rounds activations of integer weights to 8 bits, a GPU does not: logprobs are so far apart
at most; 0.06 was seen."""
DATA = Path(__file__).parents[1] / "data" / "quantized"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama") / "model"
    write_tiny_checkpoint(made, "LlamaForCausalLM")
    write_tiny_tokenizer(made)
    return made


def told(
    llm: LLM, prompts: Sequence[Any] = PROMPTS, wish: SamplingParams = GREEDY, **asked: Any
) -> list[Any]:
    """Return each answer's tokens and their logprobs."""
    results = llm.generate(list(prompts), wish, use_tqdm=False, **asked)
    assert [one.error for one in results] == [None] * len(results)
    answers = [one.outputs[0] for one in results]
    return [(a.token_ids, [entry.logprob for entry in a.logprobs]) for a in answers]


def same(found: Sequence[Any], wanted: Sequence[Any], *, within: float = SAME) -> None:
    for (tokens, logprobs), (other_tokens, others) in zip(found, wanted, strict=True):
        assert tokens == other_tokens
        assert logprobs == pytest.approx(others, abs=within)


def on_cpu(model: object, prompts: Sequence[Any] = PROMPTS, **flags: Any) -> list[Any]:
    with engine(CPU, model, **flags) as llm:
        return told(llm, prompts)


@pytest.mark.parametrize("where", ON_GPU)
def test_adapters_of_several_sorts_in_one_batch(where: str, llama: Path, tmp_path: Path) -> None:
    folders = [write_lora(tmp_path / name, seed=ord(name)) for name in "ab"]
    folders.append(write_lora(tmp_path / "dora", seed=5, is_dora=True))
    loras = [LoRARequest(folder.name, 1 + i, str(folder)) for i, folder in enumerate(folders)]
    flags = {"enable_lora": True, "max_loras": 4, "max_lora_rank": 8}
    prompts, asked = [LONG[:9]] * 4, [*loras, None]
    found = []
    for device in (where, CPU):
        with engine(device, llama, **flags) as llm:
            found.append(told(llm, prompts, lora_request=asked))
    same(found[0], found[1])
    assert len({tokens for tokens, _ in found[0]}) > 2, "the adapters change too little"


@pytest.mark.parametrize("where", ON_GPU)
def test_an_adapter_that_adds_tokens(where: str, llama: Path, tmp_path: Path) -> None:
    """Rows with a wider vocabulary stand beside others; what each has seen is counted in steps of
    both widths."""
    plain, wide = write_lora(tmp_path / "plain"), write_lora(tmp_path / "wide", seed=3)
    draw = torch.Generator().manual_seed(5)
    names = ("input_embeddings", "output_embeddings")
    vectors = {name: torch.randn(3, 32, generator=draw) for name in names}
    save_file(vectors, wide / "new_embeddings.safetensors")
    loras = [LoRARequest(one.name, 1 + i, str(one)) for i, one in enumerate((plain, wide))]
    asked, prompts = [*loras, None, loras[1]], [[*LONG[:9], 3], [7, VOCAB_SIZE + 1, 9]] * 2
    prompts[2] = LONG[:5]
    flags = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    tired = msgspec.structs.replace(GREEDY, repetition_penalty=1.5, max_tokens=16)
    found = []
    for device in (where, CPU):
        with engine(device, llama, **flags) as llm:
            rounds = [told(llm, prompts, wish, lora_request=asked) for wish in (GREEDY, tired)]
            rounds.append(told(llm, prompts[2:3], tired))
            found.append([answer for answers in rounds for answer in answers])
    same(found[0], found[1])
    assert any(max(tokens) >= VOCAB_SIZE for tokens, _ in found[0]), "none of them is drawn"


@pytest.mark.parametrize("where", ON_GPU)
def test_an_encoder_reads_less_than_the_first_prompt_has(where: str, tmp_path: Path) -> None:
    write_encoder_decoder(tmp_path, "WhisperForConditionalGeneration")
    sound = np.random.default_rng(3).standard_normal((8, 100), dtype=np.float32)
    feature = Feature("input_features", "float32", sound.shape, sound.tobytes())
    place = PartPlace("sound", "audio", (), 50)
    encoder = PromptPart(place=place, features=(feature,))
    prompt = EncoderPrompt(encoder=encoder, decoder=(VOCAB_SIZE, 7, 8), is_whole=True)
    with engine(where, tmp_path) as llm:
        same(told(llm, [prompt]), on_cpu(tmp_path, [prompt]))


@pytest.mark.parametrize("where", ON_GPU)
def test_rows_that_are_swapped_out_come_back(where: str, llama: Path) -> None:
    few = {"num_gpu_blocks_override": 10, "swap_space": 0.05}
    few["plugin_options"] = {"scheduler": {"growth_blocks": 0}}
    prompts = [LONG[i : i + 31] for i in range(4)]
    wish = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=1)
    with engine(where, llama, **few) as llm:
        found = told(llm, prompts, wish)
        assert core_of(llm).cache.num_swaps > 0
    with engine(CPU, llama) as llm:
        same(found, told(llm, prompts, wish))


@pytest.mark.parametrize("where", ON_GPU)
def test_prompts_become_vectors(where: str, llama: Path) -> None:
    found = []
    for device in (where, CPU):
        with engine(device, llama, runner="pooling") as llm:
            results = llm.embed([{"prompt_token_ids": p} for p in PROMPTS], use_tqdm=False)
            found.append(torch.tensor([one.outputs.embedding for one in results]))
    assert (found[0] - found[1]).abs().max() <= SAME


@pytest.mark.parametrize("where", [pytest.param(CUDA, marks=NEEDS_GPU)])
class TestRealAlone:
    """What a fake GPU says nothing new about, or cannot do."""

    @pytest.mark.parametrize("level", [1, 2])
    def test_memory_goes_while_it_sleeps(self, where: str, llama: Path, level: int) -> None:
        wanted = on_cpu(llama)
        flags = {"enable_sleep_mode": True, "num_gpu_blocks_override": 1 << 16}
        with engine(where, llama, **flags) as llm:
            same(told(llm), wanted)
            awake = torch.cuda.memory_allocated()
            llm.sleep(level)
            assert torch.cuda.memory_allocated() < awake - CACHE_BYTES
            llm.wake_up()
            same(told(llm), wanted)

    def test_adapters_in_captured_steps(self, where: str, llama: Path, tmp_path: Path) -> None:
        """A graph follows which slots rows use, and what the slots hold: there are fewer slots than
        adapters. A row with magnitudes has its steps run as they are."""
        folders = [write_lora(tmp_path / name, seed=ord(name), rank=8) for name in "abcd"]
        folders.append(write_lora(tmp_path / "dora", seed=5, is_dora=True))
        loras = [LoRARequest(one.name, 1 + i, str(one)) for i, one in enumerate(folders)]
        flags = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16}
        rounds = [[a, b, None, a, b] for a, b in pairwise(loras)]
        prompts = [LONG[i : i + 9] for i in range(5)]
        found, replays = [], []
        for device in (where, CPU):
            with engine(device, llama, **flags) as llm:
                graphs = graphs_of(runner_of(llm))
                if graphs is not None:
                    assert graphs.reason is None and graphs.num_graphs == graphs.num_wanted
                    take = graphs.take

                    def counted(step: Any, take: Any = take) -> Any:
                        outputs = take(step)
                        replays.append(outputs is not None and step.adapters is not None)
                        return outputs

                    graphs.take = counted
                found.append([told(llm, prompts, lora_request=asked) for asked in rounds])
        for ours, theirs in zip(*found, strict=True):
            same(ours, theirs)
        num_steps = 3 * (GREEDY.max_tokens - 1)
        assert num_steps <= sum(replays) < num_steps + GREEDY.max_tokens, "not captured"

    @pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8", "fp8_e5m2", "int8"])
    def test_narrow_caches(self, where: str, tmp_path: Path, kv_dtype: str) -> None:
        """A number between two steps of the cache may fall either way, few do."""
        folder = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", head_dim=16)
        found = []
        for device in (where, CPU):
            flags = {"kv_cache_dtype": kv_dtype, "skip_tokenizer_init": True}
            with engine(device, folder, **flags) as llm:
                found.append(told(llm, PROMPTS))
        pairs = [
            abs(one - other)
            for (tokens, ours), (others, theirs) in zip(*found, strict=True)
            for one, other, a, b in zip(ours, theirs, tokens, others, strict=True)
            if a == b
        ]
        assert len(pairs) > 20 and float(np.median(pairs)) < 0.02

    def test_answers_that_are_guided(self, where: str, llama: Path) -> None:
        with engine(where, llama) as llm:
            digits = llm.compile_constraint(Regex("[0-9]{3}-[a-c]+;"))
            hot = {"temperature": 1.5, "max_tokens": 6}
            asked = [SamplingParams(constraint=digits, seed=n, **hot) for n in range(4)]
            results = llm.generate([LONG[:9]] * 4, asked, use_tqdm=False)
        for result in results:
            text = result.outputs[0].text
            assert text[:3].isdigit() and text[3] == "-"

    @pytest.mark.parametrize("asks_ahead", [False, True])
    def test_drafts_change_no_answer(self, where: str, llama: Path, asks_ahead: bool) -> None:
        guesses = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
        drafter = {"model": str(llama), "num_speculative_tokens": 3}
        speculation = drafter if asks_ahead else guesses
        with engine(where, llama, speculative_config=speculation) as llm:
            same(told(llm), on_cpu(llama))

    def test_a_connector_brings_blocks_back(self, where: str, llama: Path, tmp_path: Path) -> None:
        extra = {"kv_connector_extra_config": {"folder": str(tmp_path)}}
        transfer = {"kv_connector": "offloading", "kv_role": "kv_both", **extra}
        for is_again in (False, True):
            with engine(where, llama, kv_transfer_config=transfer) as llm:
                found = [told(llm, [prompt])[0] for prompt in PROMPTS[::-1]]
                assert (core_of(llm).cache.num_loaded_tokens > 0) == is_again
        same(found, on_cpu(llama, PROMPTS[::-1]))

    def test_weights_that_visit(self, where: str, llama: Path) -> None:
        with engine(where, llama, cpu_offload_gb=0.001) as llm:
            same(told(llm), on_cpu(llama))

    @pytest.mark.parametrize("name", QUANTIZED)
    def test_quantized_weights(self, where: str, name: str) -> None:
        prompts = [[5, 6, 7, 8, 9], [11, 12]]
        with engine(where, DATA / name, skip_tokenizer_init=True) as llm:
            found = told(llm, prompts)
        wanted = on_cpu(DATA / name, prompts, skip_tokenizer_init=True)
        for (tokens, logprobs), (others, theirs) in zip(found, wanted, strict=True):
            assert tokens[0] == others[0]
            assert logprobs[0] == pytest.approx(theirs[0], abs=ROUNDED)

    @pytest.mark.parametrize(
        "architecture", ["LlavaForConditionalGeneration", "Qwen2VLForConditionalGeneration"]
    )
    def test_pictures(self, where: str, architecture: str, tmp_path: Path) -> None:
        pytest.importorskip("PIL.Image", reason="Pillow is not installed")
        write_media_checkpoint(tmp_path, architecture)
        image = {"type": "image_url", "image_url": {"url": data_url(picture())}}
        turn = {"role": "user", "content": [{"type": "text", "text": "what?"}, image]}
        found = []
        for device in (where, CPU):
            with engine(device, tmp_path, max_model_len=400) as llm:
                (result,) = llm.chat([turn], GREEDY, use_tqdm=False)
                answer = result.outputs[0]
                found.append((answer.token_ids, [one.logprob for one in answer.logprobs]))
        same(found[:1], found[1:])
