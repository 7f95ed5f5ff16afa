"""`dovetail tune` from the command line, with real engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer


def test_a_whole_search(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    folder = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", **sizes)
    write_tiny_tokenizer(folder)
    words = ["tune", str(folder), "--for", "memory", "--out", str(tmp_path / "tuned.yaml")]
    words += ["--prompt-tokens", "8", "--answer-tokens", "2", "--requests", "2", "--context", "100"]
    words += ["--try-quantization", "int8", "--try-kv-cache-dtype", "int8", "--num-threads", "1"]
    assert main(words) == 0
    printed = capfd.readouterr().out
    assert "--quantization int8: " in printed
    assert "--kv-cache-dtype int8: " in printed
    assert "refused" not in printed
    assert "longest context that fits" in printed
    assert main(["config", "check", "--config", str(tmp_path / "tuned.yaml"), "--port", "0"]) == 0
    assert "100 tokens" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--for", "beauty"], "one of latency, throughput, memory"),
        (["--try-quantization", "int9"], "int9"),
        (["--minutes", "0"], "minutes"),
    ],
)
def test_wrong_words(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *words]) == 2
    assert message in capfd.readouterr().err


def test_a_text_that_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=1)
    write_tiny_tokenizer(folder)
    words = ["--prompt-tokens", "8", "--answer-tokens", "2", "--text", str(tmp_path / "no.txt")]
    assert main(["tune", str(folder), *words]) != 0
    assert "--text" in capfd.readouterr().err
