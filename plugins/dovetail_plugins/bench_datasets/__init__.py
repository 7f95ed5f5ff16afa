"""Sources of the prompts of `dovetail bench`: the choices of --dataset-name."""
