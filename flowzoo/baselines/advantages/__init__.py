"""Advantages: how much better a call did than the calls it is compared with. Needs no torch."""
