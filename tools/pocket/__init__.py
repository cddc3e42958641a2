"""Makes the pocket models: synthetic transcripts, a tokenizer, supervised training, a card.

    python -m tools.pocket --task math --out DIR

Using them needs none of this: see `flowzoo.agents.pocket`.
"""
