"""TritonPaged: what it refuses, when it is taken, and its kernels, interpreted on CPU tensors.

Whether kernels are interpreted is decided at the start of a process, so what needs it runs in one
of its own: this file as a script, with the names of what to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.attention import AttentionQuery
from dovetail_kernels.cpu.library import ISA_VARIABLE
from dovetail_kernels.gpu import VARIABLE
from dovetail_plugins.attention.triton_paged import TritonPaged
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.samples import sample_of

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[3]
CLAUSES = (
    "test_window_over_steps and 3",
    "test_queries_may_be_fewer",
    "test_picks_equal_the_definition",
    "test_picked_latents_alone_are_attended_to",
    "test_blocks_may_lie_apart",
    "test_rows_read_what_others_write",
    "test_blocks_outside_the_window_may_go",
    "test_freed_blocks_serve_another_row",
    "test_block_sizes and (1- or 128)",
    "test_head_sizes and 80",
    "test_8_bit_floats_count_times_their_scale and tight",
    "test_together and prefill_all_H4_K2",
    "test_sinks and prefill_sinks_H4_K4",
    "test_non_causal and prefill_not_causal_H4_K2",
    "test_window_to_both_sides and prefill_not_causal_sides_H4_K2",
    "test_fits_the_plainest_question",
    "test_lengths_are_read_on_the_device",
    "test_tells_log_sum_exps and (plain or alibi or chunk)",
    "test_chunks_over_steps and 3",
    "test_chunk and mixed_chunk_H4_K2",
    "test_alibi_over_steps and mixed",
    "test_alibi_to_both_sides and prefill_alibi_not_causal_H4_K2",
    "test_new_keys_may_lie_elsewhere",
)
PROMPTS = [list(range(3, 40)), [5, 9, 17, 3], [44, 2, 31, 8, 8, 19]]


def query(**changes: Any) -> AttentionQuery:
    asked: dict[str, Any] = {
        "device": "cuda",
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "head_size": 128,
        "block_tokens": 16,
    }
    return AttentionQuery(**(asked | changes))


def interpreted(*arguments: str) -> str:
    """Return what a process prints in which kernels are interpreted and nothing is native."""
    folders = os.pathsep.join(str(ROOT / part) for part in ("core", "plugins", "kernels", "tests"))
    env = os.environ | {
        ISA_VARIABLE: "none", VARIABLE: "1", "PYTHONPATH": folders, "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"device": "cpu"}, "TRITON_INTERPRET"),
        ({"device": "xpu"}, "not on xpu"),
        ({"dtype": "float64"}, "float64"),
        ({"kv_dtype": "float64"}, "float64"),
        ({"head_size": 512}, "up to 256"),
        ({"head_size": 90, "kv_dtype": "int8"}, "multiples of 4"),
        ({"uses_position_bias": True}, "relative position"),
    ],
)
def test_why_not_names_the_reason(changes: dict[str, Any], word: str) -> None:
    (reason,) = TritonPaged.why_not(query(**changes))
    assert word in reason


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn", "int8"])
def test_auto_takes_it_on_a_gpu_and_never_on_a_cpu(kv_dtype: str) -> None:
    asked = query(kv_dtype=kv_dtype, uses_window=True, uses_sinks=True)
    assert registry.choose("attention_backend", "auto", query=asked).name == "triton"
    here = query(device="cpu", dtype="float32", kv_dtype="float32")
    assert registry.choose("attention_backend", "auto", query=here).name != "triton"


@pytest.mark.parametrize("name", ["TRITON_ATTN", "TRITON_FLASH_ATTN"])
def test_other_names_mean_the_same(name: str) -> None:
    found = registry.choose("attention_backend", name, query=query())
    assert found.target == registry.choose("attention_backend", "triton", query=query()).target


def test_it_keeps_the_contract() -> None:
    chosen = CLAUSES[:: sample_of(1, 3)]
    wanted = " or ".join(f"({clause})" for clause in chosen)
    told = interpreted(
        "-m", "pytest", "-q", "-p", "dovetail_testing.plugin", "-p", "no:cacheprovider",
        "--dovetail-plugin", "attention_backend:triton", "--pyargs", "dovetail_testing.contracts",
        "-k", wanted,
    )  # fmt: skip
    assert "failed" not in told and "skipped" not in told
    assert int(told.split(" passed")[0].split()[-1]) >= len(chosen)


@pytest.mark.parametrize(
    "scenes",
    [("bits",), ("spans", "padding", "int8", "packed", "nan", "log_sum_exps")],
    ids=["bits", "others"],
)
def test_scenes(scenes: tuple[str, ...]) -> None:
    told = interpreted(__file__, *scenes).splitlines()
    assert told[-len(scenes) :] == [f"{scene}: as wanted" for scene in scenes]


@pytest.mark.e2e
def test_models_draw_what_they_draw_with_torch(tmp_path: Path) -> None:
    """Prompts in chunks beside decodes, greedy: the same tokens, and logprobs as close as sums."""
    names = ("Gemma3ForCausalLM", "Gemma3nForCausalLM", "LlamaForCausalLM")[: sample_of(3, 1)]
    paths = [str(write_tiny_checkpoint(tmp_path / name, name)) for name in names]
    lines = interpreted(__file__, "model", *paths).splitlines()[-len(names) :]
    for name, line in zip(names, lines, strict=True):
        ours, theirs = json.loads(line)
        assert ours["tokens"] == theirs["tokens"], name
        assert ours["logprobs"] == pytest.approx(theirs["logprobs"], abs=1e-4), name


def _step(counts: list[int], lens: list[int], **rules: Any) -> tuple[Any, dict[str, Any]]:
    """Return (q, everything else that the kernel takes) for rows of these tokens queried and
    cached. A row's numbers follow from its place in the lists alone."""
    import torch

    from dovetail_kernels.paged_attention.triton import LayerRules, extent_of

    width = -(-max(lens) // 16)
    draw = torch.Generator().manual_seed(1)
    cache = torch.randn(2, len(lens) * width + 1, 16, 2, 32, generator=draw)
    table = torch.arange(1, len(lens) * width + 1, dtype=torch.int32).view(len(lens), width)
    queries = torch.randn(len(lens), max(lens), 6, 32, generator=draw)
    parts = zip(queries, counts, lens, strict=True)
    q = torch.cat([row[length - count : length] for row, count, length in parts])
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    rest = {
        "cache": cache,
        "block_table": table,
        "query_start": starts,
        "seq_lens": seq_lens,
        "rules": LayerRules(scale=0.2, **rules),
        "extent": extent_of(starts, seq_lens),
    }
    return q, rest


def bits() -> None:
    """A row's numbers are the same bits alone and beside others, whole and in chunks."""
    import torch

    lens, counts = [40, 300, 33], [40, 1, 33]
    for rules in ({}, {"window": 11, "soft_cap": 5.0}):
        q, step = _step(counts, lens, **rules)
        rows = q.split(counts)
        whole = _attended(step, list(rows), lens)
        for row in range(3):
            own = step | {"block_table": step["block_table"][row : row + 1]}
            assert torch.equal(_attended(own, [rows[row]], lens[row : row + 1])[0], whole[row])
        early = _attended(step, [rows[0][:21], rows[1], rows[2][:2]], [21, 300, 2])
        late = _attended(step, [rows[0][21:], rows[1], rows[2][2:]], lens)
        for row in (0, 2):
            assert torch.equal(torch.cat([early[row], late[row]]), whole[row])


def spans() -> None:
    """Whether the spans of a long past are walked at once or in turn changes no bit, nor does what
    is beside a row, nor how it is cut; nor where they begin more than sums in another order do."""
    import torch

    import dovetail_kernels.paged_attention.triton as launches

    lens, counts = [200, 150, 20], [12, 24, 20]
    cases = ({"window": 90, "soft_cap": 5.0}, {"is_causal": False}, {})
    for rules in cases[: sample_of(3, 2)]:
        q, step = _step(counts, lens, **rules)
        rows = list(q.split(counts))
        whole = _attended(step, rows, lens)
        launches.SPAN = 64
        at_once = _attended(step, rows, lens)
        launches.PREFILL_PROGRAMS = 0
        in_turn = _attended(step, rows, lens)
        own = step | {"block_table": step["block_table"][:1]}
        assert torch.equal(_attended(own, rows[:1], lens[:1])[0], in_turn[0])
        launches.PREFILL_PROGRAMS = 264
        assert torch.equal(_attended(own, rows[:1], lens[:1])[0], in_turn[0])
        for one, other, unsplit in zip(at_once, in_turn, whole, strict=True):
            assert torch.equal(one, other)
            torch.testing.assert_close(one, unsplit, rtol=1e-5, atol=1e-6)
        if rules.get("is_causal", True):
            early = _attended(step, [rows[0][:5], rows[1][:17], rows[2]], [193, 143, 20])
            assert torch.equal(torch.cat([early[1], at_once[1][17:]]), at_once[1])
            assert torch.equal(early[0], at_once[0][:5])
        launches.SPAN = 2048


def _attended(step: dict[str, Any], rows: list[Any], lens: list[int]) -> Any:
    """Return the answers of rows of queries, a tensor each, over the caches of a step."""
    import torch

    from dovetail_kernels.paged_attention.triton import attend, extent_of

    counts = [len(row) for row in rows]
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    own = {"query_start": starts, "seq_lens": seq_lens, "extent": extent_of(starts, seq_lens)}
    return attend(torch.cat(rows), **(step | own)).split(counts)


def padding() -> None:
    """Rows without tokens and an extent larger than any row change nothing: a captured step."""
    import torch

    from dovetail_kernels.paged_attention.triton import StepExtent, attend

    q, step = _step([1, 1, 1], [7, 300, 530])
    wanted = attend(q, **step)
    padded = step | {
        "block_table": torch.cat([step["block_table"], torch.zeros(2, 34, dtype=torch.int32)]),
        "query_start": torch.arange(6, dtype=torch.int32),
        "seq_lens": torch.tensor([7, 300, 530, 0, 0], dtype=torch.int32),
        "extent": StepExtent(max_query_tokens=1, max_seq_tokens=5000),
    }
    found = attend(torch.cat([q, torch.full((2, 6, 32), 3.0)]), **padded)
    assert torch.equal(found[:3], wanted) and not found[3:].any()


def int8() -> None:
    """A cache of int8 with its scales at the ends of its blocks is near to one in float32."""
    import torch

    from dovetail.interfaces.attention import AttentionSpec
    from dovetail_testing.attention_scenario import Scene

    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=32, scale=0.2)
    plain, narrow = (Scene(TritonPaged(None), spec, num_rows=2, block_tokens=8) for _ in range(2))
    shape = narrow.backend.kv_shape(*plain.cache.shape[1:4], 36)
    narrow.cache = torch.randint(-128, 128, shape, dtype=torch.int8)
    for counts in ([(0, 13), (1, 1)], [(0, 1), (1, 9)]):
        tokens = plain.draw(sum(count for _, count in counts))
        wanted, found = (stage.step_with(counts, *tokens)[0] for stage in (plain, narrow))
        assert 0 < (wanted - found).abs().max() < 0.03


def packed() -> None:
    """Caches of 4 bits are written and attended as they are defined."""
    from test_packed_kv import check

    check(TritonPaged, "int4", 64, (20, 2, 1))
    check(TritonPaged, "k8v4", 32, (18, 2, 1))


def nan() -> None:
    """A query that sees a NaN shows it; rows that do not see it change no bit."""
    import torch

    from dovetail_kernels.paged_attention.triton import attend

    q, step = _step([1, 20, 1, 1], [300, 20, 9, 40], window=30)
    clean = attend(q, **step)
    for half in (0, 1):
        cache = step["cache"].clone()
        cache[half, int(step["block_table"][0, 290 // 16]), 290 % 16] = float("nan")
        cache[:, int(step["block_table"][3, 0]), :10] = float("nan")  # before the window
        found = attend(q, **(step | {"cache": cache}))
        assert bool(found[0].isnan().all())
        assert torch.equal(found[1:], clean[1:])


def log_sum_exps() -> None:
    """They are right where keys are split or span after span, and change no other bit."""
    import torch

    import dovetail_kernels.paged_attention.triton as launches

    counts, lens = [1, 9, 1], [530, 150, 40]
    cases = ({"window": 90, "soft_cap": 5.0}, {})
    for rules in cases[: sample_of(2, 1)]:
        q, step = _step(counts, lens, **rules)
        wanted = torch.cat([
            _row_lse(row, step, number, lens[number]) for number, row in enumerate(q.split(counts))
        ])  # fmt: skip
        for span, programs in ((2048, 264), (64, 264), (64, 0)):
            launches.SPAN, launches.PREFILL_PROGRAMS = span, programs
            lse = torch.full(q.shape[:2], float("nan"))
            assert torch.equal(launches.attend(q, lse=lse, **step), launches.attend(q, **step))
            torch.testing.assert_close(lse, wanted, rtol=1e-5, atol=1e-5)
        launches.SPAN, launches.PREFILL_PROGRAMS = 2048, 264


def _row_lse(q: Any, step: dict[str, Any], row: int, length: int) -> Any:
    """Return the log-sum-exps of a row's scores. Shapes: q [T, H, D] -> [T, H]"""
    import torch

    rules, blocks = step["rules"], step["block_table"][row].long()
    keys = step["cache"][0, blocks].flatten(0, 1)[:length].repeat_interleave(3, dim=1)
    scores = torch.einsum("thd,shd->ths", q, keys) * rules.scale
    if rules.soft_cap:
        scores = rules.soft_cap * torch.tanh(scores / rules.soft_cap)
    place, key = torch.arange(length - len(q), length)[:, None], torch.arange(length)
    seen = (key <= place) & (key > place - (rules.window or length))
    return scores.masked_fill(~seen[:, None], -torch.inf).logsumexp(-1)


def model(path: str) -> None:
    """Print tokens and logprobs of the model, attended by Triton and by torch. All else is computed
    by torch: tests of ops and of layers interpret what of it has kernels."""
    from dovetail import LLM, SamplingParams
    from dovetail_kernels import all_ops
    from dovetail_kernels.gpu import TRITON

    for op in all_ops():
        op.implementations = [one for one in op.implementations if one.name != TRITON]
    asked = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=1)
    found = []
    for backend in ("TRITON_ATTN", "torch_sdpa"):
        with LLM(
            model=path, attention_backend=backend, dtype="float32", num_gpu_blocks_override=32,
            block_size=16, max_model_len=64, max_num_batched_tokens=24, use_tqdm_on_load=False,
        ) as llm:  # fmt: skip
            results = [r.outputs[0] for r in llm.generate(PROMPTS, asked, use_tqdm=False)]
        tokens = [list(output.token_ids) for output in results]
        lines = [p.logprob for output in results for p in output.logprobs or ()]
        found.append({"tokens": tokens, "logprobs": lines})
    print(json.dumps(found))


if __name__ == "__main__":
    named = {
        scene.__name__: scene for scene in (bits, spans, padding, int8, packed, nan, log_sum_exps)
    }
    if sys.argv[1] == "model":
        for path in sys.argv[2:]:
            model(path)
    else:
        for name in sys.argv[1:]:
            named[name]()
            print(f"{name}: as wanted")
