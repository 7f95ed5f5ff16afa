"""Which GGUF architectures are read, as which class of model, and why the others are not.

Every architecture that the gguf package names has one row here, in READ or in UNREAD; tests compare
the rows with `families`, the package and the registry. Imports no torch. Source of the classes of
UNREAD: what llama.cpp's converters take
(https://github.com/ggml-org/llama.cpp/tree/master/conversion).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why files of an architecture are not read. `classes`: the classes of checkpoints that these
    files are made of, none of which is served from safetensors either. `fix`: what to do."""

    why: str
    classes: tuple[str, ...] = ()
    fix: str = "use another checkpoint of the model, or another model."


def _unserved(*classes: str) -> Unread:
    """Return the row of a model that is not served from safetensors either."""
    why = f"the model ({' and '.join(classes)}) is not served from safetensors either"
    return Unread(why=why, classes=classes)


_DIFFUSION = "it generates by diffusion, not token by token"
READ: Mapping[str, str] = {
    "afmoe": "AfmoeForCausalLM",
    "apertus": "ApertusForCausalLM",
    "arcee": "ArceeForCausalLM",
    "baichuan": "BaichuanForCausalLM",
    "bailingmoe": "DeepseekForCausalLM",
    "bailingmoe2": "Glm4MoeForCausalLM",
    "bert": "BertModel RobertaModel DistilBertModel",
    "bitnet": "BitNetForCausalLM",
    "bitnet-b1.58": "BitNetForCausalLM",
    "bloom": "BloomForCausalLM",
    "chatglm": "GlmForCausalLM",
    "codeshell": "Starcoder2ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "command-r": "CohereForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "deci": "DeciLMForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek2": "DeepseekV2ForCausalLM DeepseekV3ForCausalLM",
    "deepseek32": "DeepseekV32ForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5-moe": "Ernie4_5_MoeForCausalLM",
    "eurobert": "LlamaModel",
    "exaone": "ExaoneForCausalLM",
    "exaone-moe": "ExaoneMoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "falcon": "FalconForCausalLM",
    "falcon-h1": "FalconH1ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma-embedding": "Gemma3TextModel",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gemma3n": "Gemma3nForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "glm-dsa": "GlmMoeDsaForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4moe": "Glm4MoeForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gptj": "GPTJForCausalLM",
    "gptneox": "GPTNeoXForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitehybrid": "GraniteMoeHybridForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM",
    "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan-moe": "HunYuanMoEV1ForCausalLM",
    "hunyuan_vl": "HunYuanDenseV1ForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "jais2": "Jais2ForCausalLM",
    "jamba": "JambaForCausalLM",
    "jina-bert-v2": "JinaBertModel",
    "jina-bert-v3": "JinaEmbeddingsV3Model",
    "kimi-linear": "KimiLinearForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2moe": "Lfm2MoeForCausalLM",
    "llama": "LlamaForCausalLM MistralForCausalLM MixtralForCausalLM",
    "llama-embed": "LlamaModel",
    "llama4": "Llama4ForCausalLM",
    "maincoder": "HunYuanDenseV1ForCausalLM",
    "mamba": "MambaForCausalLM FalconMambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "mimo2": "MiMoV2FlashForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "minimax-m2": "MiniMaxM2ForCausalLM",
    "mistral3": "MistralForCausalLM Ministral3ForCausalLM",
    "modern-bert": "ModernBertModel",
    "mpt": "MptForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "nemotron_h_moe": "NemotronHForCausalLM",
    "nomic-bert": "NomicBertModel",
    "nomic-bert-moe": "NomicBertModel",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM Olmo3ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "orion": "StableLmForCausalLM",
    "paddleocr": "LlamaForCausalLM",
    "pangu-embedded": "LlamaForCausalLM",
    "phi2": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "phimoe": "PhimoeForCausalLM",
    "qwen": "Qwen2ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen2vl": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen35": "Qwen3_5ForCausalLM",
    "qwen35moe": "Qwen3_5MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "qwen3next": "Qwen3NextForCausalLM",
    "qwen3vl": "Qwen3ForCausalLM",
    "qwen3vlmoe": "Qwen3MoeForCausalLM",
    "refact": "BaichuanForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder": "GPTBigCodeForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "t5": "T5ForConditionalGeneration UMT5ForConditionalGeneration",
    "t5encoder": "T5EncoderModel UMT5EncoderModel",
    "xverse": "LlamaForCausalLM",
}
"""general.architecture -> the classes that its files are served as."""
UNREAD: Mapping[str, Unread] = {
    "arctic": _unserved("ArcticForCausalLM"),
    "arwkv7": _unserved("RwkvHybridForCausalLM"),
    "chameleon": _unserved("ChameleonForConditionalGeneration", "ChameleonForCausalLM"),
    "clip": Unread(
        why="it is an encoder of images or sound, which is read beside its model",
        fix="serve the model's own file, with --mmproj and this one.",
    ),
    "cogvlm": _unserved("CogVLMForCausalLM"),
    "deepseek2-ocr": _unserved("DeepseekOCRForCausalLM"),
    "dream": Unread(why=_DIFFUSION, classes=("DreamModel",)),
    "grok": _unserved("GrokForCausalLM", "Grok1ForCausalLM"),
    "grovemoe": _unserved("GroveMoeForCausalLM"),
    "jais": _unserved("JAISLMHeadModel"),
    "llada": Unread(why=_DIFFUSION, classes=("LLaDAModelLM",)),
    "llada-moe": Unread(why=_DIFFUSION, classes=("LLaDAMoEModelLM",)),
    "mistral4": _unserved("Mistral4ForCausalLM"),
    "neo-bert": _unserved("NeoBERT", "NeoBERTLMHead"),
    "openelm": _unserved("OpenELMForCausalLM"),
    "plamo": _unserved("PlamoForCausalLM"),
    "plamo2": _unserved("Plamo2ForCausalLM"),
    "plamo3": _unserved("Plamo3ForCausalLM"),
    "plm": _unserved("PLMForCausalLM"),
    "rnd1": Unread(why=_DIFFUSION, classes=("RND1",)),
    "rwkv6": _unserved("Rwkv6ForCausalLM"),
    "rwkv6qwen2": _unserved("RWKV6Qwen2ForCausalLM"),
    "rwkv7": _unserved("Rwkv7ForCausalLM", "RWKV7ForCausalLM"),
    "smallthinker": _unserved("SmallThinkerForCausalLM"),
    "step35": _unserved("Step3p5ForCausalLM"),
    "wavtokenizer-dec": Unread(why="it is a decoder of sound"),
}
"""general.architecture -> why its files are not read."""
