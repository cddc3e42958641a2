"""Chat messages to prompt ids and back, with a model's own chat template.

Prompts that are too long are shortened in their quoted parts; what a model thought is kept apart
from what it said. Used by every engine that has a tokenizer.
"""
