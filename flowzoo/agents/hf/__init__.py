"""The transformers engine: batched sampling on a CPU or GPU with keyed randomness."""
