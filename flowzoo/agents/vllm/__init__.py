"""The vLLM engine: in this process, in separate processes, or on a server.

`policy.VLLMPolicy` is the policy of one role or model, `engine.VLLMEngine` the engine that several
share. Weights are loaded into a running engine and proved by log-probs. vLLM itself is imported
when an engine starts.
"""
