"""Logits to tokens: processors, penalties, filters, the draw and its logprobs, all rows at once.

Knows no model, no scheduler and no text; a row is a number and its SamplingParams.
"""
