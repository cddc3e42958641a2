"""Settings of the whole process: threads, and memory that is kept when freed."""

import platform

import pytest

from tests.processes import run_python

FAULTS = """
import resource, torch
from flowzoo.agents.hf.process import prepare_process
prepare_process(1)
assert torch.get_num_threads() == 1
prepare_process(0)
assert torch.get_num_threads() == 1
torch.zeros(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.zeros(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Page faults of tensors of 64 MiB, of which one was freed before."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_kept_unless_the_environment_says_otherwise():
    assert int(run_python(FAULTS)) < 1000
    assert int(run_python(FAULTS, MALLOC_TRIM_THRESHOLD_="131072")) > 10_000
