"""VITS: the samples are transformers' for the same seed, alone, in a batch, and from both layouts
in which weights are stored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from dovetail import LLM
from dovetail.cli.main import main
from dovetail.errors import ConfigError, RequestError, RequestFault
from dovetail.pooling_params import PoolingParams, SpeechParams
from dovetail_plugins.models import vits
from support.tiny_vits import VOICES, sound_of, write_vits

TEXTS = ["hello world", "a much longer text than the first one has", "x"]
OLD_ENDS = {"original0": "weight_g", "original1": "weight_v"}


def spoken(llm: LLM, texts: list[str], **speech: Any) -> list[np.ndarray]:
    params = PoolingParams(task="speak", speech=SpeechParams(**speech))
    return [one.data for one in llm.encode(texts, params, use_tqdm=False)]


def test_samples_are_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = write_vits(tmp_path)
    llm = LLM(model=str(tmp_path))
    together = spoken(llm, TEXTS, seed=7)
    for text, found in zip(TEXTS, together, strict=True):
        wanted = sound_of(model, tokenizer, text, 7)
        assert 1e-3 < np.abs(wanted).max() < 0.999, "an error would not be seen in clipped samples"
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        (alone,) = spoken(llm, [text], seed=7)
        assert alone.tobytes() == found.tobytes()
    faster = spoken(llm, TEXTS[:1], seed=7, rate=2.0)[0]
    np.testing.assert_allclose(
        faster, sound_of(model, tokenizer, TEXTS[0], 7, speaking_rate=1.0), atol=1e-4
    )
    assert len(faster) < len(together[0]) and len(spoken(llm, TEXTS[:1], seed=8)[0])
    (rounded,) = spoken(LLM(model=str(tmp_path), dtype="bfloat16"), TEXTS[:1], seed=7)
    np.testing.assert_allclose(rounded, together[0], atol=0.02 * np.abs(together[0]).max())
    monkeypatch.setattr(vits, "MAX_SECONDS", 0)
    short = LLM(model=str(tmp_path))
    params = PoolingParams(task="speak")
    with pytest.raises(RequestFault, match="longer than 0 s"):
        _ = short.encode(TEXTS[:1], params, use_tqdm=False)[0].data


def test_voices_and_older_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = write_vits(tmp_path, **VOICES, use_stochastic_duration_prediction=False)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for new, old in OLD_ENDS.items():
        end = f"parametrizations.weight.{new}"
        tensors = {name.replace(end, old): one for name, one in tensors.items()}
    save_file(tensors, file)
    llm = LLM(model=str(tmp_path))
    for voice in range(3):
        (found,) = spoken(llm, TEXTS[:1], voice=voice)
        wanted = sound_of(model, tokenizer, TEXTS[0], 0, speaker_id=voice)
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert main(["inspect", str(tmp_path)]) == 0
    screen = capsys.readouterr().out
    assert "speaks texts" in screen and "warnings" not in screen
    (dummy,) = spoken(LLM(model=str(tmp_path), load_format="dummy"), TEXTS[:1])
    assert len(dummy) and not np.allclose(dummy[:100], found[:100])
    for wrong in ({"voice": 3}, {"voice": -1}, {"rate": 0.0}, {"rate": math.nan}, {"seed": -1}):
        with pytest.raises(RequestError, match=f"speech.{next(iter(wrong))}"):
            spoken(llm, TEXTS[:1], **wrong)
    lost = next(name for name in tensors if name.endswith("weight_g"))
    save_file({name: one for name, one in tensors.items() if name != lost}, file)
    with pytest.raises(ConfigError, match="one half"):
        LLM(model=str(tmp_path))


def test_what_a_checkpoint_needs_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_vits(tmp_path, phonemize=True)
    monkeypatch.setattr("dovetail_plugins.tokenizers.vits.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="phonemizer") as error:
        LLM(model=str(tmp_path))
    assert error.value.fix is not None and "espeak-ng" in error.value.fix
    with pytest.raises(ConfigError, match="neither vectors nor classes"):
        LLM(model=str(tmp_path), convert="embed", skip_tokenizer_init=True)
