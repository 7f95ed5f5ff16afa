"""Adapters that add tokens compute what PEFT computes on transformers' model whose vocabulary was
enlarged: in each layout, alone, beside rows of other adapters, and however steps are run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM, SamplingParams
from dovetail.errors import RequestError
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.added_tokens import NUM_ADDED, enlarged, saved, saved_for_vllm
from support.inside import engine_of
from support.peft_adapters import Answer, asked, counting, load, made, wanted

TOLERANCE = 1e-4
NUM_TOKENS = 6
ADDED = list(range(VOCAB_SIZE, VOCAB_SIZE + NUM_ADDED))
LINEAR = ["q_proj", "v_proj", "down_proj"]
TABLES = ["embed_tokens", "lm_head"]
PEFT: dict[str, dict[str, Any]] = {
    "saved": {"target_modules": LINEAR, "modules_to_save": TABLES},
    "resized": {"target_modules": LINEAR},
    "pairs": {"target_modules": [*LINEAR, *TABLES]},
    "single": {
        "target_modules": LINEAR,
        "trainable_token_indices": {"embed_tokens": [7, *ADDED, 3], "lm_head": [*ADDED, 9]},
    },
}
VLLM = ("vllm", "vllm_pairs")
NAMES = (*PEFT, *VLLM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A tiny model, adapters to it, and what PEFT tells of the prompts."""

    folder: Path
    adapters: Path
    wanted: dict[str, list[Answer]]

    def paths(self, *names: str) -> list[Path]:
        return [self.adapters / name for name in names]


def prompt(length: int, *, is_wide: bool) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
    if is_wide:
        ids[2::4] = [VOCAB_SIZE + i % NUM_ADDED for i in range(len(ids[2::4]))]
    return ids


PROMPTS = [prompt(23, is_wide=False), prompt(9, is_wide=False)]
WIDE_PROMPTS = [prompt(23, is_wide=True), prompt(9, is_wide=True)]


def prompts_for(name: str) -> list[list[int]]:
    return WIDE_PROMPTS if name in NAMES or name == "tied" else PROMPTS


def everything(root: Path, folder: Path) -> dict[str, list[Answer]]:
    """Write all adapters; return what PEFT tells of them, and of the model and one without."""
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wide = enlarged(base)
    found = {}
    for seed, (name, fields) in enumerate(PEFT.items()):
        config = peft.LoraConfig(r=4, lora_alpha=16, **fields)
        whole = False if name == "single" else "auto"
        found[name] = saved(wide, config, root / name, seed=seed, save_embedding_layers=whole)
    for seed, name in enumerate(VLLM):
        targets = [*LINEAR, *TABLES] if name == "vllm_pairs" else LINEAR
        config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=targets)
        found[name] = saved_for_vllm(wide, config, root / name, seed=seed)
    few = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
    found["few"] = made(base, few, root / "few", seed=9)
    found[""] = base
    return {
        name: [wanted(model, ids, NUM_TOKENS) for ids in prompts_for(name)]
        for name, model in found.items()
    }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("added")
    folder = write_tiny_checkpoint(root / "base", "LlamaForCausalLM")
    return Made(folder=folder, adapters=root, wanted=everything(root, folder))


FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "enable_lora": True,
    "max_loras": 8,
    "max_logprobs": -1,
    "block_size": 8,
    "max_num_batched_tokens": 40,
    "max_num_seqs": 16,
    "max_model_len": 64,
    "num_gpu_blocks_override": 200,
    "use_tqdm_on_load": False,
}


@pytest.fixture(scope="module")
def loaded(tiny: Made) -> Iterator[Any]:
    with LLM(str(tiny.folder), **FLAGS) as llm:
        load(engine_of(llm), *tiny.paths(*NAMES, "few"))
        yield engine_of(llm)


def check(ours: Answer, theirs: Answer) -> None:
    assert ours.logprobs.shape == theirs.logprobs.shape
    assert (ours.logprobs - theirs.logprobs).abs().max() <= TOLERANCE
    assert ours.token_ids == theirs.token_ids


def check_all(opened: Any, tiny: Made, names: tuple[str, ...]) -> None:
    """Compare all prompts of these adapters in one batch."""
    batch = [(name, prompts_for(name)[i]) for i in range(len(PROMPTS)) for name in names]
    found = asked(opened, batch, NUM_TOKENS)
    theirs = [tiny.wanted[name][i] for i in range(len(PROMPTS)) for name in names]
    for ours, its in zip(found, theirs, strict=True):
        check(ours, its)


@pytest.mark.parametrize("name", NAMES)
def test_alone(loaded: Any, tiny: Made, name: str) -> None:
    (ours,) = asked(loaded, [(name, WIDE_PROMPTS[0])], NUM_TOKENS)
    assert ours.logprobs.shape[1] == VOCAB_SIZE + NUM_ADDED
    check(ours, tiny.wanted[name][0])


def test_added_tokens_are_drawn(tiny: Made) -> None:
    """What is compared above has answers with them."""
    answers = [set(one.token_ids) for name in NAMES for one in tiny.wanted[name]]
    assert any(answer & set(ADDED) for answer in answers)


def test_beside_rows_of_others_and_without(loaded: Any, tiny: Made) -> None:
    for _ in range(2):
        check_all(loaded, tiny, ("", *NAMES, "few"))


WAYS: dict[str, dict[str, Any]] = {
    "preemption": {
        "block_size": 1,
        "num_gpu_blocks_override": 74,
        "max_num_batched_tokens": 80,
        "enable_prefix_caching": False,
    },
    "eviction": {"max_loras": 2, "max_cpu_loras": 2},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "async steps": {"async_scheduling": True},
    "eager": {"enforce_eager": True},
    "two ranks": {"tensor_parallel_size": 2},
    "half batches": {
        "tensor_parallel_size": 2,
        "communicator": "gloo",
        "enable_dbo": True,
        "dbo_decode_token_threshold": 2,
        "dbo_prefill_token_threshold": 2,
    },
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("way", WAYS)
def test_ways_of_running(tiny: Made, way: str) -> None:
    with LLM(str(tiny.folder), **(FLAGS | WAYS[way])) as llm:
        counted = counting(engine_of(llm))
        load(engine_of(llm), *tiny.paths(*NAMES, "few"))
        check_all(engine_of(llm), tiny, ("", "saved", "few", "vllm", "single"))
        assert counted["preemptions"] > 0 or way != "preemption"


@pytest.mark.parametrize("layout", ["saved", "single", "vllm"])
def test_a_head_that_shares_the_table(tmp_path: Path, layout: str) -> None:
    """A tied head has what PEFT gives it: its own whole table, or the rows of the tokens."""
    import peft
    import transformers

    folder = write_tiny_checkpoint(tmp_path / "base", "LlamaForCausalLM", tie_word_embeddings=True)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wide = enlarged(base)
    assert wide.lm_head.weight is wide.model.embed_tokens.weight
    fields: dict[str, Any] = {"r": 4, "lora_alpha": 16, "target_modules": LINEAR}
    if layout == "saved":
        fields |= {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    if layout == "single":
        fields |= {"trainable_token_indices": [5, *ADDED]}
    config, place = peft.LoraConfig(**fields), tmp_path / layout
    if layout == "vllm":
        model = saved_for_vllm(wide, config, place)
        rows = load_file(place / "new_embeddings.safetensors")
        save_file({"input_embeddings": rows["input_embeddings"]},
                  place / "new_embeddings.safetensors")  # fmt: skip
    else:
        model = saved(wide, config, place, save_embedding_layers=False)
    theirs = [wanted(model, ids, NUM_TOKENS) for ids in WIDE_PROMPTS]
    with LLM(str(folder), **FLAGS) as llm:
        load(engine_of(llm), place)
        found = asked(engine_of(llm), [(layout, ids) for ids in WIDE_PROMPTS], NUM_TOKENS)
    for ours, its in zip(found, theirs, strict=True):
        check(ours, its)


@pytest.mark.parametrize("fields", [
    {"logit_bias": {ADDED[1]: 100.0}},
    {"allowed_token_ids": (ADDED[1],)},
])  # fmt: skip
def test_options_name_added_tokens(loaded: Any, tiny: Made, fields: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, **fields)
    (answer,) = answers(loaded, [("saved", PROMPTS[0], params)])
    assert answer == [ADDED[1]] * 4
    with pytest.raises(RequestError, match="not a valid token id"):
        answers(loaded, [("few", PROMPTS[0], params)])


def answers(opened: Any, requests: list[tuple[str, list[int], SamplingParams]]) -> list[list[int]]:
    """Return the tokens of answers in one batch."""
    keys = [opened.submit(opened.prepare(ids, params, adapter=n)) for n, ids, params in requests]
    found: dict[int, list[int]] = {key: [] for key in keys}
    while opened.has_work:
        step = opened.step()
        assert not step.errors, step.errors
        for key, output in step.outputs:
            found[key] += [token for delta in output.deltas for token in delta.token_ids]
    return [found[key] for key in keys]


def test_stops_bans_and_penalties(loaded: Any) -> None:
    plain = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    bias = {ADDED[0]: 100.0, ADDED[1]: 70.0}
    stopping = msgspec.structs.replace(plain, logit_bias=bias, stop_token_ids=(ADDED[0],))
    banned = msgspec.structs.replace(plain, logit_bias=bias, bad_words_token_ids=((ADDED[0],),))
    penalised = msgspec.structs.replace(plain, logit_bias=bias, repetition_penalty=20.0)
    one, two, three = answers(
        loaded, [("saved", PROMPTS[0], p) for p in (stopping, banned, penalised)]
    )
    assert one == [ADDED[0]]
    assert two == [ADDED[1]] * 8
    assert three[:2] == [ADDED[0], ADDED[1]]


def test_seeds_do_not_depend_on_the_batch(loaded: Any) -> None:
    """A row draws the same tokens alone and beside rows with a wider vocabulary."""
    params = SamplingParams(
        temperature=1.0, seed=5, max_tokens=12, ignore_eos=True, repetition_penalty=1.2, top_p=0.9
    )
    rows = [
        ("", PROMPTS[0], params),
        ("few", PROMPTS[1], params),
        ("saved", WIDE_PROMPTS[0], params),
        ("vllm", WIDE_PROMPTS[1], params),
    ]
    alone = [answers(loaded, [row])[0] for row in rows]
    assert answers(loaded, rows) == alone


def test_all_logprobs_are_of_a_rows_own_vocabulary(loaded: Any) -> None:
    found = asked(loaded, [("", PROMPTS[0]), ("saved", WIDE_PROMPTS[0])], 1)
    assert [one.logprobs.shape[1] for one in found] == [VOCAB_SIZE, VOCAB_SIZE + NUM_ADDED]
    assert not any(one.logprobs.isnan().any() for one in found)


@pytest.mark.parametrize("name", ["", "few"])
def test_added_tokens_are_of_their_adapter_alone(loaded: Any, name: str) -> None:
    params = SamplingParams(max_tokens=1)
    with pytest.raises(RequestError, match=f"valid ids are 0 to {VOCAB_SIZE - 1}"):
        loaded.prepare([5, ADDED[0]], params, adapter=name)
    with pytest.raises(RequestError, match=f"valid ids are 0 to {ADDED[-1]}"):
        loaded.prepare([5, ADDED[-1] + 1], params, adapter="saved")


@pytest.mark.parametrize(("flags", "text"), [
    ({"pipeline_parallel_size": 2}, "each stage of a pipeline"),
    ({"speculative_config": {"method": "draft_model"}}, "which the model that drafts"),
    ({"lora_extra_vocab_size": NUM_ADDED - 1}, f"adds {NUM_ADDED} tokens, and {NUM_ADDED - 1}"),
])  # fmt: skip
def test_what_is_refused(tiny: Made, flags: dict[str, Any], text: str) -> None:
    """It is told by name, and other adapters are served."""
    if "speculative_config" in flags:
        draft = {"model": str(tiny.folder), "num_speculative_tokens": 2}
        flags = {"speculative_config": {**flags["speculative_config"], **draft}}
    with LLM(str(tiny.folder), **(FLAGS | flags)) as llm:
        for name in ("saved", "vllm"):
            with pytest.raises(RequestError, match=text) as caught:
                load(engine_of(llm), *tiny.paths(name))
            assert str(tiny.adapters / name) in str(caught.value.where)
        load(engine_of(llm), *tiny.paths("few"))
        check_all(engine_of(llm), tiny, ("", "few"))


def test_tokens_in_rows_to_spare(tmp_path: Path) -> None:
    """A model's table has more rows than its tokenizer names; the adapter's names some of them."""
    import peft
    import transformers

    folder = write_tiny_checkpoint(
        tmp_path / "base", "LlamaForCausalLM", vocab_size=VOCAB_SIZE + NUM_ADDED
    )
    write_tiny_tokenizer(folder)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = peft.LoraConfig(r=4, target_modules=LINEAR, trainable_token_indices=ADDED[:2])
    model = saved(base, config, tmp_path / "spare")
    words = transformers.AutoTokenizer.from_pretrained(folder)
    words.add_tokens(["<|one|>", "<|two|>"])
    words.save_pretrained(tmp_path / "spare")
    ids = words("the <|two|> dog<|one|>", add_special_tokens=False)["input_ids"]
    assert set(ids) >= set(ADDED[:2])
    with LLM(str(folder), **FLAGS) as llm:
        llm.load_adapter("spare", str(tmp_path / "spare"))
        greedy = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        (result,) = llm.generate("the <|two|> dog<|one|>", greedy, lora_request="spare")
        (found,) = engine_of(llm).adapters()
    assert list(result.outputs[0].token_ids) == wanted(model, ids, NUM_TOKENS).token_ids
    assert (found.num_added_tokens, found.has_tokenizer) == (0, True)
