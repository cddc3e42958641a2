"""Load of other processes."""

from benchmarks.harness.machine_load import Others, tree_seconds, wait_until_quiet


def test_others_are_what_is_not_ours():
    before = tree_seconds()
    others = Others.watch()
    sum(range(3_000_000))
    assert tree_seconds() - before > 0.01
    cores = others.cores()
    assert cores is None or cores >= 0.0
    assert (wait_until_quiet(0.0) is None) == (cores is None)
