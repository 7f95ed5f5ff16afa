"""Which plugin runs a class, by the class's name."""

from __future__ import annotations

import pytest

from dovetail import registry
from dovetail.config.rules.model.architectures import registered, stem

NAMES = ("LlamaForCausalLM", "GPT2LMHeadModel", "BertModel", "T5EncoderModel")


@pytest.fixture(autouse=True)
def few_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "names", lambda kind: list(NAMES))


@pytest.mark.parametrize(
    ("architecture", "plugin"),
    [
        ("LlamaForCausalLM", "LlamaForCausalLM"),
        ("LlamaModel", "LlamaForCausalLM"),
        ("LlamaForSequenceClassification", "LlamaForCausalLM"),
        ("GPT2Model", "GPT2LMHeadModel"),
        ("BertModel", "BertModel"),
        ("BertForTokenClassification", "BertModel"),
        ("BertForMaskedLM", "BertModel"),
        ("T5EncoderModel", "T5EncoderModel"),
        ("T5ForTokenClassification", "T5EncoderModel"),
    ],
)
def test_a_class_runs_on_its_family(architecture: str, plugin: str) -> None:
    assert registered(architecture) == plugin


@pytest.mark.parametrize(
    "architecture", ["BertLMHeadModel", "T5ForConditionalGeneration", "UnheardOfModel"]
)
def test_an_encoder_generates_nothing(architecture: str) -> None:
    assert registered(architecture) is None


def test_the_head_is_in_the_name() -> None:
    assert stem("BertForSequenceClassification") == ("Bert", "classes")
    assert stem("BertLMHeadModel") == ("Bert", "logits")
    assert stem("T5EncoderModel") == ("T5", "")
    assert stem("Unusual") == ("Unusual", None)
