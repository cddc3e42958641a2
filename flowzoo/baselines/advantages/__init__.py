"""Advantages: how much better a call did than the calls it is compared with.

`compute.compute` is the way in, `spec.AdvantageSpec` the choices; kernels are compiled with numba
and compared with `reference` in the tests. Needs no torch.
"""
