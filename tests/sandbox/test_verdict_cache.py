"""Verdicts that are remembered, and for how long."""

from typing import get_args

import pytest

from flowzoo.sandbox.box.job import digest_tests
from flowzoo.sandbox.program import CallTest, Compare, Status, Verdict
from flowzoo.sandbox.sandbox import VerdictCache


@pytest.mark.parametrize("status", get_args(Status))
def test_what_depends_on_the_machine_is_not_kept(status):
    cache, verdict = VerdictCache(2), Verdict(status, (), 1)
    cache.put(b"key", verdict)
    assert cache.get(b"key") == (None if status in ("TLE", "SE") else verdict)


def test_the_verdict_that_was_not_asked_for_longest_is_forgotten():
    cache, verdict = VerdictCache(2), Verdict("AC", (), 1)
    for key in (b"a", b"b"):
        cache.put(key, verdict)
    cache.get(b"a")
    cache.put(b"c", verdict)
    assert [cache.get(key) for key in (b"a", b"b", b"c")] == [verdict, None, verdict]


def test_integers_of_any_length_have_a_key():
    tests = [
        CallTest((1,), 10**5000),
        CallTest((1,), 10**5000 + 1),
        CallTest((2,), 10**5000),
        CallTest((1,), 10**5000, {"base": 2}),
        CallTest((1,), 10**5000, compare=Compare("number")),
    ]
    keys = [digest_tests([test]) for test in tests]
    assert len(set(keys)) == len(tests)
    assert keys[0] == digest_tests([CallTest((1,), 10**5000)])
