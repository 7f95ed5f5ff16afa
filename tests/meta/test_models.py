"""Every model family is listed and has its facts, and core names none."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from dovetail import registry
from dovetail.config.checkpoint.model_facts import TABLE, facts_of

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "dovetail"
NAMES_OF_PARSERS = {("demo.py", "qwen3"), ("families.py", "cohere")}
"""Words of core that are a model type too, and mean another plugin there."""


TYPES_OF_REMOTE_CODE = {
    "NewModel": "new",
    "JinaBertModel": "bert",
    "HF_ColBERT": "bert",
    "InternLM2ForCausalLM": "internlm2",
    "BaichuanForCausalLM": "baichuan",
    "BaiChuanForCausalLM": "baichuan",
    "DeciLMForCausalLM": "nemotron-nas",
    "DeepseekForCausalLM": "deepseek",
    "MPTForCausalLM": "mpt",
    "MiMoForCausalLM": "mimo",
    "ExaoneForCausalLM": "exaone",
    "InternLM3ForCausalLM": "internlm3",
    "MiniCPMForCausalLM": "minicpm",
    "PhiMoEForCausalLM": "phimoe",
    "MiniMaxM1ForCausalLM": "minimax_m1",
    "MiniMaxText01ForCausalLM": "minimax_text_01",
    "Gemma3nForConditionalGeneration": "gemma3n_text",
    "Lfm3VlForConditionalGeneration": "lfm3",
    "MiniCPMV4_7ForConditionalGeneration": "qwen3_5_text",
    "SarvamMoEForCausalLM": "sarvam_moe",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Glm5NextForCausalLM": "glm5_next_text",
    "HYV4VLForCausalLM": "hy_v4_vl_text",
    "BgeM3EmbeddingModel": "xlm-roberta",
    "ColPaliForRetrieval": "colpali",
    "ColQwen2ForRetrieval": "colqwen2",
    "ColModernVBertForRetrieval": "colmodernvbert",
}
"""Classes of which transformers has no decoder -> the model type of their text settings."""


def architectures() -> list[str]:
    """Return the classes of checkpoints that have a plugin of their own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["dovetail.model"]
    return [
        name
        for name, target in entries.items()
        if target.startswith("dovetail_plugins.models.") and not name.startswith("transformers")
    ]


ENDS = (
    r"(ForCausalLM|ForConditionalGeneration|ForRetrieval|EmbeddingModel|LMHeadModel|EncoderModel"
    r"|Model)$"
)


def plain(name: str) -> str:
    """Return a family's name without what spellings differ in."""
    return re.sub(r"[^a-z0-9]", "", re.sub(ENDS, "", name.strip()).lower())


def test_a_page_lists_every_family() -> None:
    page = ROOT / "docs" / "reference" / "model_families.md"
    text = page.read_text().partition("## Models\n")[2]
    lists = (text, text.partition("Encoders: ")[2])
    named = [re.sub(r"\([^)]*\)", "", one.partition(" have ")[0]) for one in lists]
    listed = {plain(name) for one in named for name in re.split(r",|\band\b", one)}
    assert listed == {plain(name) for name in architectures()}


def test_the_readme_counts_every_family() -> None:
    table = (ROOT / "README.md").read_text().partition("## Models\n")[2].partition("\n\n[")[0]
    counts = [int(number) for number in re.findall(r"\| (\d+) \|", table)]
    assert len(counts) == 6 and sum(counts) == len(architectures())


@pytest.mark.parametrize("architecture", architectures())
def test_every_family_has_its_defaults(architecture: str) -> None:
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    names = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    types = {model_type for model_type, name in names.items() if name == architecture}
    beside = (
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )
    types |= {
        name for mapping in beside for name, found in mapping.items() if found == architecture
    }
    whole = architecture.replace("EncoderModel", "Model")
    types |= {name for name, found in auto.MODEL_MAPPING_NAMES.items() if found == whole}
    types |= {name for found, name in TYPES_OF_REMOTE_CODE.items() if found == architecture}
    # Of a whole with an encoder the text part has the defaults, under a type that has facts too.
    facts = [facts_of({"model_type": name}) for name in types]
    assert any(one.defaults or one.media for one in facts), types


def names_of_families() -> set[str]:
    """Return the model types and architectures that somebody declares."""
    types = [name for name in registry.names("model_type") if name != TABLE]
    return {*types, *registry.admin.value_of("model_type", TABLE).types, *architectures()}


def families_named_in(path: Path, names: set[str], root: Path = CORE) -> list[str]:
    """Return the places of a file where a text is a family's name."""
    return [
        f"{path.relative_to(root)}:{node.lineno} {node.value}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
        and (path.name, node.value) not in NAMES_OF_PARSERS
    ]  # fmt: skip


def test_core_names_no_family() -> None:
    """A name in core would be a fact that a family of another package could not state."""
    names = names_of_families()
    assert {"llama", "gemma3_text", "gpt_neo", "GPT2LMHeadModel"} <= names
    files = list(CORE.rglob("*.py"))
    assert [place for path in files for place in families_named_in(path, names)] == []


def test_the_search_finds_names() -> None:
    kit = ROOT / "plugins" / "dovetail_testing"
    assert families_named_in(kit / "tiny" / "families.py", {"llama"}, kit)
