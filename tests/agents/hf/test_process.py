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
for _ in range(16):  # until the cache of small blocks, which keep large ones apart, is full
    torch.zeros(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.zeros(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Page faults of tensors of 64 MiB, of which some were freed before."""

THREADS = """
import threading, torch
from benchmarks.harness.memory import status_bytes
from flowzoo.agents.hf.process import prepare_process
prepare_process(1)
thread = threading.Thread(target=lambda: [torch.ones(2**20) for _ in range(16)])
thread.start()
thread.join()
before = status_bytes("VmRSS")
tensors = [torch.ones(2**20) for _ in range(16)]
print(status_bytes("VmRSS") - before)
"""
"""Bytes that 64 MiB add in one thread after another thread has freed as many."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_kept_unless_the_environment_says_otherwise():
    assert int(run_python(FAULTS)) < 1000
    assert int(run_python(FAULTS, MALLOC_TRIM_THRESHOLD_="131072")) > 10_000
    tunables = "glibc.malloc.trim_threshold=131072"
    assert int(run_python(FAULTS, GLIBC_TUNABLES=tunables)) > 10_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_thread_uses_what_another_has_freed():
    assert int(run_python(THREADS)) < 2**24
    assert int(run_python(THREADS, MALLOC_ARENA_MAX="2", MALLOC_MMAP_MAX_="0")) > 2**25
