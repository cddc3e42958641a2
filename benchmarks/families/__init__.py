"""Chat templates of publishers' kinds with tiny tokenizers, and conversations to render."""
