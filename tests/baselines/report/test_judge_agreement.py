"""The finding on a judge: agreement over all steps, beyond chance, and what had no truth."""

import json
from typing import Any

import pytest

from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts

GOOD = [(100, 80, 0.9, 0.5, 0.6), (50, 40, 0.75, 0.75, 0.5)]  # (verdicts, compared, agreement, …)
BLIND = [(200, 200, 0.5, 0.9, 0.5)] * 2


def rows(
    counts: list[tuple[int, int, float, float, float]], name: str = "compared"
) -> list[dict[str, Any]]:
    names = (name, "agreement", "passed", "right")
    return [
        {"verdicts": verdicts, "unreadable": verdicts // 10}
        | (dict(zip(names, (compared, *shares), strict=True)) if compared else {})
        for verdicts, compared, *shares in counts
    ]


@pytest.mark.parametrize(
    ("prefix", "counts", "level", "title", "text"),
    [
        ("judge/", GOOD, "result", "agrees with the truth on 85.0 %", "kappa 0.69"),
        ("eval/judge/", GOOD, "result", "agrees with the truth on 85.0 %", "Of 150 verdicts 15"),
        ("judge/", BLIND, "warn", "hardly agrees", "by chance alone 50.0 %"),
        ("judge/", [(30, 0, 0.0, 0.0, 0.0)] * 2, "unknown", "compared with no truth", "Of 60"),
    ],
)
def test_agreement(make_run, tmp_path, prefix, counts, level, title, text):
    folder = make_run(tmp_path / "run", course=(0.4, 0.5, 0.5), items=30, every=1)
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, row in zip(lines[1:], rows(counts), strict=True):
        line |= {prefix + name: value for name, value in row.items()}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    findings = run_facts(read_runs([folder])[0])["findings"]
    (finding,) = (finding for finding in findings if "The judge" in finding["title"])
    plain = {name: value.replace("\xa0", " ") for name, value in finding.items()}
    assert plain["level"] == level
    assert title in plain["title"]
    assert text in plain["text"]
    assert "none of these counts as 0" in plain["text"]
