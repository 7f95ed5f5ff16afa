"""What a request may ask for, under the path by which users of vLLM import it."""

from __future__ import annotations

from dovetail.interfaces.sampling_params import SamplingParams, StructuredOutputsParams
from dovetail.llm_beams import BeamSearchParams

GuidedDecodingParams = StructuredOutputsParams

__all__ = ["BeamSearchParams", "GuidedDecodingParams", "SamplingParams", "StructuredOutputsParams"]
