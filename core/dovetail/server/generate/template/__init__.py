"""From messages to a prompt: the checkpoint's chat template in a bounded sandbox."""
