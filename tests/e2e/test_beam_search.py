"""Beam search over HTTP finds on the demo model what transformers finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dovetail
from support.server_process import ServerProcess

transformers = pytest.importorskip("transformers")
DEMO = Path(dovetail.__file__).parent / "demo_model"
PROMPTS = ("The capital of France is", "Two plus two is", "Once upon")


def test_the_answers_are_those_of_transformers() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    with ServerProcess("--port", "0") as server, server.wait_ready().client() as client:
        for prompt in PROMPTS:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            wanted = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=4,
                num_return_sequences=2,
                max_new_tokens=8,
                do_sample=False,
                length_penalty=0.5,
                pad_token_id=0,
            )
            body = {
                "prompt": ids[0].tolist(),
                "use_beam_search": True,
                "n": 2,
                "best_of": 4,
                "length_penalty": 0.5,
                "max_tokens": 8,
                "return_token_ids": True,
            }
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            for choice, row in zip(answer.json()["choices"], wanted, strict=True):
                told = row[ids.shape[1] :].tolist()
                assert choice["token_ids"] == told[: len(choice["token_ids"])]
                text = tokenizer.decode(choice["token_ids"], skip_special_tokens=True)
                assert choice["text"].strip() == text.strip()
