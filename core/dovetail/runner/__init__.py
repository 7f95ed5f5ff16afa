"""One rank's forward pass: loads a model, holds the rows, turns a StepPlan into a StepResult.

Independent of the request queue, text and HTTP; shares only `interfaces.step` with the engine.
"""
