"""How a trainer's weights reach a running engine without a checkpoint: memory files and groups.

A trainer uses `shared_weights.SharedWeights` on the same machine, and `trainer_group.TrainerGroup`
from anywhere. Nothing is imported here: a server's process knows this folder, and has no torch.
"""
