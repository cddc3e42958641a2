"""The vLLM engine: in this process, in separate processes, or on a server."""
