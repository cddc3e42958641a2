"""What learns: advantages, loss, learner and checkpoints, and the trainer above them."""
