"""Serving: a workflow with its policies as a model behind OpenAI's chat completions."""
