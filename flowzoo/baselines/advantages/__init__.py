"""Advantages: how much better a call did than the calls it is compared with.

`compute.compute` computes them from an `AdvantageSpec`. Needs no torch.
"""
