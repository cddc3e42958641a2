"""Making the pocket models: synthetic transcripts, a tokenizer, supervised training, a card.

    python -m flowzoo.baselines.pocket --task math --out DIR

Using them needs none of this: see `flowzoo.agents.pocket`.
"""
