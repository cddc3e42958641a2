"""`flowzoo why --log`: a log of another trainer, of which no more is said than it has."""

import json

import pytest

from flowzoo.cli import main


def write_log(path, rewards, **others):
    rows = [
        {"step": 10 * number, "reward": reward, **{k: v[number] for k, v in others.items()}}
        for number, reward in enumerate(rewards)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


RISE = [0.2 + 0.05 * number for number in range(10)]


def test_a_fall_and_what_moved_with_it_are_said_and_no_cause(tmp_path, capsys):
    rewards = [*RISE, *[0.3, 0.31, 0.29, 0.3, 0.3, 0.31]]
    log = write_log(tmp_path / "log.jsonl", rewards, kl=[0.01] * 10 + [0.5] * 6)
    assert main(["why", "--log", log]) == 0
    score, kl, last = capsys.readouterr().out.splitlines()
    assert score.startswith("reward: it fell: 0.55 up to step 90")
    assert "0.302 at the end, step 150" in score
    assert kl == "kl: 0.01 then, 0.5 at the end"
    assert "cannot say more" in last


def test_a_log_that_rises_has_no_fall(tmp_path, capsys):
    assert main(["why", "--log", write_log(tmp_path / "log.jsonl", RISE * 1 + [0.7] * 6)]) == 0
    assert "no clear fall" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("not json\n{}\n", [], "line 1: expected one JSON object a line"),
        ("[3]\n{}\n", [], "line 1: expected one JSON object a line"),
        ("[" * 100_000 + "\n{}\n", [], "line 1: expected one JSON object a line"),
        ('{"loss": 1.0}\n' * 20, [], "has no score with more than 10 values"),
        (None, [], "cannot be read"),
        ("{}\n", ["some-run"], "leave some-run out"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(text, words, expected, tmp_path, capsys):
    file = tmp_path / "log.jsonl"
    if text is not None:
        file.write_text(text)
    assert main(["why", *words, "--log", str(file)]) == 2
    message = capsys.readouterr().err.strip()
    assert expected in message
    assert "\n" not in message


def test_neither_run_nor_log_is_an_error(capsys):
    assert main(["why"]) == 2
    assert "--log FILE" in capsys.readouterr().err
