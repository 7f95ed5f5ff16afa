"""Where the prompts of `dovetail bench` come from: the choices of --dataset-name."""
