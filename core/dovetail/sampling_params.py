"""SamplingParams and other request parameters, under the import path of vLLM."""

from __future__ import annotations

from dovetail.interfaces.data.sampling_params import SamplingParams, StructuredOutputsParams
from dovetail.llm.beams import BeamSearchParams

GuidedDecodingParams = StructuredOutputsParams

__all__ = ["BeamSearchParams", "GuidedDecodingParams", "SamplingParams", "StructuredOutputsParams"]
