"""Paired timing: order of contenders, ratios, medians."""

from benchmarks.harness.timing import Contender, Lap, race, spread, summary


def test_rounds_go_there_and_back():
    order: list[str] = []

    def work(name):
        return lambda: order.append(name) or 1

    results = race([Contender(name, work(name)) for name in "abc"], 3)
    assert "".join(order) == "abccbaabc"
    assert [len(item["laps"]) for item in results["contenders"].values()] == [3, 3, 3]


def test_ratios_are_of_a_round_and_per_unit():
    # The machine is ten times as slow in the second round; the ratio does not change.
    laps = {
        "floor": [Lap(10, 1.0, 2.0), Lap(10, 10.0, 20.0), Lap(10, 1.0, 2.0)],
        "ours": [Lap(5, 1.5, 4.0), Lap(5, 15.0, 40.0), Lap(5, 1.5, 4.0)],
    }
    results = summary(laps)
    assert results["ours"]["cpu_ratio"] == {"median": 3.0, "low": 3.0, "high": 3.0}
    assert results["ours"]["wall_ratio"]["median"] == 4.0
    assert results["ours"]["beside"] == "floor"
    assert results["floor"]["cpu_us"] == {"median": 1e5, "low": 1e5, "high": 5.5e5}
    assert "cpu_ratio" not in results["floor"]
    assert spread([7.0]) == {"median": 7.0, "low": 7.0, "high": 7.0}
