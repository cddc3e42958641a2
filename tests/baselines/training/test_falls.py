"""What a run does when its evaluations show a fall: warn, stop, go back; and who is told."""

import json
import sys

import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import preflight
from flowzoo.cli import main
from flowzoo.errors import UsageError

ARGUMENTS = [
    "train", "single", "--model", "pocket:xs", "--steps", "7", "--eval-every", "1",
    "--eval-problems", "150", "--eval-max-tokens", "40", "--threads", "1", "--lr", "1.5e-2",
    "--checkpoint-every", "100",
]  # fmt: skip


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_fall_is_told_at_once_and_a_run_that_stops_keeps_its_best(tmp_path, capfd):
    out, told = tmp_path / "run", tmp_path / "told.jsonl"
    notify = tmp_path / "notify.py"
    notify.write_text(
        "import sys\nopen(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))", encoding="utf-8"
    )
    alert = f"{sys.executable} {notify} {told}"
    words = ["--on-collapse", "stop", "--alert", alert, "--out", str(out)]
    assert main([*ARGUMENTS, *words]) == 0
    printed = capfd.readouterr()
    rows = rows_of(out)
    (last,) = [row for row in rows if "watch/events" in row]
    assert last is rows[-1]
    assert last["step"] < 7
    (event,) = last["watch/events"][:1]
    assert event["text"] in printed.err
    assert json.loads(told.read_text().splitlines()[0]) == {"run": str(out), **event}
    lines = printed.out.strip().splitlines()
    best = max(rows, key=lambda row: row["eval/reward/mean"])
    assert lines[-1].startswith(f"best         {100 * best['eval/reward/mean']:.1f} % at step")
    assert "(on_collapse stop)" in printed.out
    summary = json.loads((out / "summary.json").read_text())
    assert [one["text"] for one in summary["events"]] == [
        one["text"] for one in last["watch/events"]
    ]


def test_a_run_that_goes_back_has_its_best_weights_and_a_lower_rate(tmp_path, capfd):
    out = tmp_path / "run"
    assert main([*ARGUMENTS, "--on-collapse", "rollback", "--out", str(out)]) == 0
    assert "back to the weights of step" in capfd.readouterr().err
    rows = rows_of(out)
    back = next(row for row in rows if "watch/rollback" in row)
    after = rows[back["step"] + 1]
    best = rows[back["watch/rollback"]]
    assert best["eval/reward/mean"] == max(
        row["eval/reward/mean"] for row in rows[: back["step"] + 1]
    )
    assert after["learn/lr/shared"] <= back["learn/lr/shared"] / 2
    assert after["eval/reward/mean"] > back["eval/reward/mean"]
    assert (out / "checkpoints" / f"step-{rows[-1]['step']:08d}").is_dir()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"alert": 'python "x'}, "close its quotes"),
        ({"alert": "  "}, "must name a command"),
        ({"on_collapse": "rollback", "max_staleness": 1}, "batches sampled"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, expected, tmp_path):
    with pytest.raises(UsageError, match=expected):
        preflight(TrainConfig(model="pocket:xs", out=str(tmp_path / "run"), **settings))


def test_a_command_of_a_file_is_not_run_unless_it_is_trusted(tmp_path, capsys):
    file = tmp_path / "settings.toml"
    file.write_text(
        'workflow = "single"\nmodel = "pocket:xs"\nsteps = 1\neval_problems = 30\n'
        'alert = "touch x"\n'
    )
    words = ["--config", str(file), "--out", str(tmp_path / "run")]
    assert main(["train", *words]) == 2
    assert "touch x" in capsys.readouterr().err
