"""transformers: our tests of its engine and of the models that it loads, with a release of it."""

from __future__ import annotations

from rows import report, tested

ROWS = [tested(f"agents/hf/test_{name}.py") for name in ("load_model", "hf_sampling", "hf")]

if __name__ == "__main__":
    report("transformers", ["transformers", "tokenizers", "peft"], ROWS)
