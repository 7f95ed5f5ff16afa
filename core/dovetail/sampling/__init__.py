"""Logits to tokens, for all rows together: processors, penalties, filters, draws and logprobs.

Independent of models, the scheduler and text; a row is a number and its SamplingParams.
"""
