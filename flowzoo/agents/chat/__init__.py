"""Chat messages to prompt ids and back, with a model's own chat template."""
