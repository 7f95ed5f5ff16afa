"""What transformers' source says of its classes, without importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dovetail.config.rules.model.transformers_models import known_classes


def test_causal_classes_are_those_that_transformers_lists() -> None:
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    known = known_classes()
    listed = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    assert known.causal == frozenset(listed.values())
    assert known.causal_types == frozenset(listed)
    assert frozenset(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()) <= known.every


def test_text_parts() -> None:
    known = known_classes()
    if not known.causal:
        pytest.skip("transformers is not installed")
    assert known.has_text_part("LlavaForConditionalGeneration", "llama")
    assert not known.has_text_part("LlavaForConditionalGeneration", "unheard_of")
    assert not known.has_text_part("LlamaForSequenceClassification", "llama")
    assert not known.has_text_part("UnheardOfForConditionalGeneration", "llama")


def test_decoders_for_something_else_than_generating() -> None:
    known = known_classes()
    if not known.causal:
        pytest.skip("transformers is not installed")
    assert known.has_decoder("GPTNeoXForSequenceClassification", "gpt_neox")
    assert not known.has_decoder("UnheardOfModel", "gpt_neox")
    assert not known.has_decoder("BertModel", "bert")  # it has a causal class, and sees both sides


def test_transformers_is_not_imported() -> None:
    code = (
        "import sys; from dovetail.config.rules.model.transformers_models import known_classes;"
        "known_classes(); print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
