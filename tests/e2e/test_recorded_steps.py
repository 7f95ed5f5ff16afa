"""Steps recorded and repeated give what the same steps give one operator at a time."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import programs_of, recorder_of, runner_of

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

WISHES = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, max_tokens=31, ignore_eos=True, logprobs=2),
    SamplingParams(top_k=5, top_p=0.8, seed=4, max_tokens=22, ignore_eos=True),
]


def answers(prompts: list[list[int]], **flags: object) -> list[tuple[int, ...]]:
    with LLM(**flags) as llm:
        params = [WISHES[i % len(WISHES)] for i in range(len(prompts))]
        outputs = llm.generate(prompts, params)
        return [tuple(o.outputs[0].token_ids) for o in outputs]


@pytest.mark.parametrize("flags", [{}, {"quantization": "int8"}, {"async_scheduling": True}])
def test_recorded_equals_eager(flags: dict[str, object]) -> None:
    prompts = [[5 + i, 7, 9 + i, 11] * (1 + i % 4) for i in range(9)]
    recorded = answers(prompts, **flags)
    assert recorded == answers(prompts, enforce_eager=True, **flags)
    alone = [answers([p], **flags)[0] for p in prompts[:1]]
    assert recorded[:1] == alone


def test_only_the_sizes_asked_for_are_recorded() -> None:
    prompts = [[5, 7, 9, 11], [6, 8], [7, 9, 3]]
    for sizes, recorded in ((["1", "3"], {1, 3}), (["2"], {1, 2})):
        with LLM(cuda_graph_sizes=sizes) as llm:
            llm.generate(prompts, [WISHES[2], WISHES[1], WISHES[0]])
            runner = runner_of(llm)
            assert set(programs_of(recorder_of(runner))) == {(size, False) for size in recorded}


def kernels_of_a_step(**flags: object) -> list[int]:
    """Return the native kernels that a decode step of one row calls, in their order."""
    with LLM(**flags) as llm:
        llm.generate([[5, 7, 9, 11]], WISHES[0])
        program = programs_of(recorder_of(runner_of(llm)))[1, False]
        return [step.kernel for step in program._steps]


def test_room_for_adapters_that_none_uses_adds_no_call() -> None:
    plain = kernels_of_a_step()
    assert plain and kernels_of_a_step(enable_lora=True, max_loras=2) == plain


def test_steps_are_recorded_unless_forbidden() -> None:
    prompts = [[5, 7, 9, 11]]
    for is_eager in (False, True):
        with LLM(enforce_eager=is_eager) as llm:
            llm.generate(prompts, WISHES[0])
            runner = runner_of(llm)
            recorded = recorder_of(runner)
            assert (recorded is None) == is_eager
            if recorded is not None:
                assert recorded.reason is None
                assert programs_of(recorded)[1, False] is not None


@pytest.mark.sampled(every=2)
@pytest.mark.any_isa  # what is recorded calls what is not
@pytest.mark.few_isa
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Olmo2ForCausalLM", {}),  # one norm over all heads
        ("Cohere2ForCausalLM", {}),  # interleaved pairs, and layers without positions
        ("Exaone4ForCausalLM", {}),  # norms of heads that are not rotated
        ("HunYuanDenseV1ForCausalLM", {}),  # norms of heads that have been
        ("Qwen3NextForCausalLM", {}),  # the delta rule and gated attention
        ("KimiLinearForCausalLM", {}),  # the delta rule by channel, and latents
        ("Lfm3ForCausalLM", {"head_dim": 16}),  # a gate for each head, which torch computes
        ("NemotronForCausalLM", {}),  # layer norms with an offset
        ("GraniteForCausalLM", {"tie_word_embeddings": True}),  # scaled embeddings and branches
        ("FalconMambaForCausalLM", {}),  # norms without weights
        ("JambaForCausalLM", {}),  # norms of time steps, experts
        ("GraniteMoeHybridForCausalLM", {}),  # Mamba 2, experts beside an MLP, no positions
        ("Lfm2ForCausalLM", {}),  # convolutions between two gates
        ("Lfm2MoeForCausalLM", {}),  # the same with experts
        ("NemotronHForCausalLM", {"head_dim": 16}),  # experts of a latent, no gate
        ("OlmoForCausalLM", {"clip_qkv": 0.5}),  # and what torch computes in between: bounds
        ("CohereForCausalLM", {"use_qk_norm": True}),  # norms of each head's own
        ("ApertusForCausalLM", {}),  # an activation that is learned
        ("PhimoeForCausalLM", {}),  # the best of those left, expert by expert
        ("RwkvForCausalLM", {"attention_hidden_size": 64, "rescale_every": 1}),  # mixtures
        ("FalconH1ForCausalLM", {}),  # a mixer beside attention, and multipliers
        ("DeepseekV3ForCausalLM", {}),  # latents, and experts picked within groups
        ("MiniMaxForCausalLM", {}),  # branches and inputs weighed
        ("AXK2ForCausalLM", {}),  # norms and heads with gates
        ("HYV4ForCausalLM", {}),  # latents with sinks, streams of states
        ("Dots3NoteForCausalLM", {"index_topk": 128, "sliding_window": 128}),  # gates of heads
        ("ZambaForCausalLM", {}),  # a scan for each head, a block that layers share
        ("ZayaForCausalLM", {"head_dim": 16}),  # heads convolved, sums scaled by channel
        ("DoryForCausalLM", {}),  # states of length one, layers passed twice
        ("xLSTMForCausalLM", {}),  # memories of matrices
        ("Zamba2ForCausalLM", {}),  # the same with adapters of each call
    ],
)
def test_steps_of_families_are_recorded(
    family: str, fields: dict[str, object], tmp_path: Path
) -> None:
    path = write_tiny_checkpoint(tmp_path, family, **{"hidden_size": 64, **fields})
    with LLM(model=str(path), max_model_len=64, dtype="float32") as llm:
        llm.generate([[5, 7, 9, 11], [6, 8, 4]], WISHES[0])
        recorded = recorder_of(runner_of(llm))
        assert recorded is not None and recorded.reason is None
        assert programs_of(recorded)[2, False] is not None


@pytest.mark.any_isa  # what is recorded calls what is not
@pytest.mark.parametrize(
    "family", ["Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM", "GptOssForCausalLM"]
)
def test_steps_of_experts_are_recorded(family: str, tmp_path: Path) -> None:
    """Router, experts and a shared expert are native calls."""
    model = write_tiny_checkpoint(tmp_path / "model", family, hidden_size=64, head_dim=16)
    prompts = [[5, 7, 9, 11], [6, 8], [7, 9, 3]]
    with LLM(model=str(model)) as llm:
        recorded = [o.outputs[0].token_ids for o in llm.generate(prompts, WISHES)]
        runner = runner_of(llm)
        assert recorder_of(runner).reason is None
        assert programs_of(recorder_of(runner))[3, False] is not None
    with LLM(model=str(model), enforce_eager=True) as llm:
        assert recorded == [o.outputs[0].token_ids for o in llm.generate(prompts, WISHES)]


def test_what_cannot_be_recorded_leaves_the_cache_right() -> None:
    """A layer that computes unseen, as an exchange between ranks may, ends recording harmlessly."""
    told = []
    for is_eager in (False, True):
        with LLM(enforce_eager=is_eager) as llm:
            runner = runner_of(llm)
            layer = next(m for m in runner.model.modules() if type(m).__name__.endswith("MLP"))
            layer.register_forward_hook(_double_unseen)
            output = llm.generate([[5, 7, 9, 11]], WISHES[1])[0].outputs[0]
            told.append([place.logprob for place in output.logprobs or ()])
            if not is_eager:
                assert "differed" in str(recorder_of(runner).reason)
    assert len(told[0]) == 31 and told[0] == pytest.approx(told[1], abs=1e-4)


def _double_unseen(layer: object, inputs: object, output: torch.Tensor) -> None:
    memory = (ctypes.c_float * output.numel()).from_address(output.data_ptr())
    memory[:] = [2 * value for value in memory]
