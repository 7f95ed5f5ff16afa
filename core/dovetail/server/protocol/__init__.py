"""HTTP bodies as pydantic models: bounds and shapes only, no behaviour of the engine."""
