"""One rank's forward pass: load a model, keep the rows, turn a StepPlan into a StepResult.

Knows no request queue, no text and no HTTP; meets the engine in `interfaces.step` only.
"""
