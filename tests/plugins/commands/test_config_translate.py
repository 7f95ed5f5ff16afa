"""`dovetail config translate`: command lines of other servers in our words."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from dovetail import registry
from dovetail.cli.main import main
from dovetail.cli.parser import Parser
from dovetail.config.parse.flags import add_flags, add_newer
from dovetail_plugins.foreign_flags._lines import MODEL, needless, table, words_of
from dovetail_plugins.foreign_flags._translate import KIND, translated

TABLES: dict[str, Any] = {
    name: registry.admin.value_of(KIND, name) for name in ("sglang", "llama_cpp")
}
SAMPLES = {
    "bool": "true",
    "int": "2",
    "float": "1",
    "str": "auto",
    "list": "a=b",
    "json": '{"a": 1}',
}


def ours(line: str) -> str:
    return shlex.join(translated(shlex.split(line)).words)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "vllm serve org/model -tp 2 --max-num-active-seqs 8 --kernel-config.moe_backend triton",
            "dovetail serve org/model --tensor-parallel-size 2 --host 0.0.0.0 --max-num-seqs 8",
        ),
        (
            "python -m vllm.entrypoints.openai.api_server --model org/model --host ::1",
            "dovetail serve --model org/model --host ::1",
        ),
        (
            "VLLM_USE_V1=1 vllm serve m --num-scheduler-steps 8 --uds /s --disable-log-requests",
            "VLLM_USE_V1=1 dovetail serve m --uds /s --no-enable-log-requests",
        ),
        (
            "vllm serve m --host h -cc.level=1 --logits-processors a:b c:d --reasoning-budget=-1",
            "dovetail serve m --host h --logits-processors a:b c:d --reasoning-budget=-1 "
            "--compilation-config '{\"level\": 1}'",
        ),
        (
            "python3 -m sglang.launch_server --model-path m --tp 2 --mem-fraction-static=0.8 "
            "--lora-paths one=a two=b --port 9",
            "dovetail serve m --tensor-parallel-size 2 --gpu-memory-utilization 0.8 --enable-lora "
            "--lora-modules one=a two=b --port 9",
        ),
        (
            "sglang serve --model-path m --chunked-prefill-size -1 --disable-cuda-graph",
            "dovetail serve m --no-enable-chunked-prefill --port 30000 "
            "--compilation-config '{\"level\": 1}'",
        ),
        (
            "build/bin/llama-server -m a.gguf -c 0 -ngl 0 -fa auto -np 4 --jinja --temp 0.5",
            "dovetail serve a.gguf --device cpu --max-num-seqs 4 --port 8080 "
            "--override-generation-config '{\"temperature\": 0.5}'",
        ),
        (
            "llama-server -m a.gguf -ctk q8_0 --cache-type-v q4_0 --port 1",
            "dovetail serve a.gguf --kv-cache-dtype k8v4 --port 1",
        ),
        (
            "llama-server -m a.gguf -ctv q4_0 -ctk q4_0 --port 1",
            "dovetail serve a.gguf --kv-cache-dtype int4 --port 1",
        ),
        (
            "llama-server -hf org/model:Q4_K_M -md draft.gguf --draft-max 8 --port 1",
            "dovetail serve org/model:Q4_K_M --port 1 --speculative-config "
            '\'{"method": "draft_model", "model": "draft.gguf", "num_speculative_tokens": 8}\'',
        ),
    ],
)
def test_a_command_line_in_our_words(line: str, expected: str) -> None:
    result = translated(shlex.split(line))
    assert result.absent == []
    assert set(shlex.split(ours(line))) == set(shlex.split(expected))
    assert len(result.words) == len(shlex.split(expected))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("vllm serve m --grpc", "--grpc: there is no gRPC server"),
        ("vllm serve m --tool-call-parser nobody", "nobody"),
        ("sglang serve --model-path m --enable-dp-attention", "--enable-dp-attention: attention"),
        (
            "sglang serve --model-path m --schedule-policy dfs",
            "--schedule-policy dfs: this order is not supported",
        ),
        ("sglang serve --model-path m --unheard-of 1 2", "--unheard-of 1 2: this is not a known"),
        ("llama-server -m a -ctk q5_1", "-ctk q5_1: this type of KV cache is not supported"),
        ("llama-server -m a -ngl 20", "-ngl 20: all layers are on the device"),
    ],
)
def test_what_has_no_counterpart_is_named(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "translate", "--", *shlex.split(line)]) == 1
    printed = capsys.readouterr()
    absent = [row for row in printed.err.splitlines() if row.startswith("not here: ")]
    assert len(absent) == 1 and words in absent[0]
    assert printed.out.startswith("dovetail serve ")


def test_every_change_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "llama-server -m a.gguf -c 4096 --jinja --seed 3"
    assert main(["config", "translate", "--", *line.split()]) == 0
    printed = capsys.readouterr()
    assert printed.out == "dovetail serve a.gguf --max-model-len 4096 --seed 3 --port 8080\n"
    lines = printed.err.splitlines()
    assert lines[0] == "note: -m is the model, the first argument."
    assert lines[1].startswith("note: -c is --max-model-len; ")
    assert lines[2].startswith("note: --jinja changes nothing: ")
    assert lines[3].startswith("note: --port 8080 is added: ")
    assert len(lines) == 4


@pytest.mark.parametrize("line", ["", "ls -l", "vllm bench serve"])
def test_words_that_start_no_server(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "translate", "--", *line.split()]) == 2
    assert "start no server that is known" in capsys.readouterr().err


def test_two_names_that_disagree(capsys: pytest.CaptureFixture[str]) -> None:
    line = "vllm serve m --max-num-active-seqs 8 --max-num-seqs 9"
    assert main(["config", "translate", "--", *line.split()]) == 2
    assert "asks for 8, but --max-num-seqs for 9" in capsys.readouterr().err


@pytest.mark.parametrize("server", TABLES)
def test_our_words_are_flags_of_serve(server: str) -> None:
    parser = Parser(prog="dovetail serve", description="")
    add_flags(parser)
    add_newer(parser)
    types = {spelling: flag.value_type for flag in parser.flags() for spelling in flag.spellings}
    rows = TABLES[server]["flags"]
    assert len(rows) >= 60
    for name, row in rows.items():
        for here in filter(None, (row["here"], *row["values"].values())):
            if here != MODEL:
                parser.parse(words_of(here, [SAMPLES[types.get(last_flag(here), "json")]]))
        assert row["note"] or row["here"] or row["values"], name


def last_flag(here: str) -> str:
    return next(word for word in reversed(here.split()) if word.startswith("-"))


def test_a_flag_has_one_row() -> None:
    with pytest.raises(ValueError, match="two rows for --b"):
        table(["one"], needless("--a --b", "why"), needless("--b", "why"))
