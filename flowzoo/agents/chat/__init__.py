"""Chat messages to prompt ids and back, with a model's own chat template.

Prompts that are too long are shortened in their quoted parts; thoughts are kept apart from
replies. Used by every engine that has a tokenizer.
"""
