"""Policies behind an OpenAI-compatible endpoint: the policy, and the JSON on the wire."""
