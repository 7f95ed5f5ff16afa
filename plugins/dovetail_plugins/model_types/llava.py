"""Facts of models that put an encoder of images before a text model."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(media=("image",))
WITH_VIDEO = ModelFacts(media=("image", "video"))

LLAVA = Value(summary="LLaVA 1.5 and others of its layout", value=FACTS)
LLAVA_NEXT = Value(summary="LLaVA NeXT", value=FACTS)
LLAVA_NEXT_VIDEO = Value(summary="LLaVA NeXT of videos", value=WITH_VIDEO)
LLAVA_ONEVISION = Value(summary="LLaVA OneVision", value=WITH_VIDEO)
VIPLLAVA = Value(summary="ViP-LLaVA", value=FACTS)
MISTRAL3 = Value(summary="Mistral Small 3.1 with its encoder of images", value=FACTS)
IDEFICS3 = Value(summary="Idefics 3", value=FACTS)
INTERNVL = Value(summary="InternVL", value=FACTS)
SMOLVLM = Value(summary="SmolVLM", value=FACTS)
LFM2_VL = Value(summary="LFM2-VL", value=FACTS)
MINICPM_V4_6 = Value(summary="MiniCPM-V 4.6", value=FACTS)
MINICPM_OCR = Value(summary="MiniCPM-OCR", value=FACTS)
GLM5_NEXT = Value(summary="GLM-5-Next with its encoder of images", value=FACTS)
HY_V4_VL = Value(summary="Hunyuan 4 with its encoder of images", value=FACTS)
