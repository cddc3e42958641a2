"""docs/aec.md: the file that it shows is played as it stands, like the example of that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowzoo.envs import Episode, EpisodeRecord
from flowzoo.envs.episode.recording import record
from flowzoo.envs.external.workflow import make_aec_workflow

ROOT = Path(__file__).resolve().parents[3]


def played(file: Path) -> EpisodeRecord:
    """An episode of the environment in `file` in which free cells are taken in their order."""
    workflow = make_aec_workflow(f"{file}:make", illegal="end")
    episode = Episode(workflow, workflow.task.problem(0), "0")
    while not episode.done:
        for turn in episode.waiting:
            episode.reply(turn.agent, min(re.findall(r"\d", turn.messages[0]["content"])))
    return record(episode)


def test_the_example_of_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("pygame", reason="PettingZoo's classic games need pygame: flowzoo[dev]")
    page = (ROOT / "docs" / "aec.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "game.py").write_text(block, encoding="utf-8")
    shown, example = played(tmp_path / "game.py"), played(ROOT / "examples" / "tictactoe.py")
    assert [call.reply for call in shown.calls] == [call.reply for call in example.calls]
    assert shown.returns == example.returns
    assert shown.facts["illegal"] == 0
