"""The film of the first page shows the recorded episode, moves, and stands still on request."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def film(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from pages import film

    return film


def test_the_film_is_the_recorded_episode(film):
    episode = json.loads(film.DATA.read_text(encoding="utf-8"))
    text = film.PICTURE.read_text(encoding="utf-8")
    assert text == film.film(episode), "run docs/film.py"
    assert len(text.encode()) < 300_000
    texts = [element.text for element in ET.fromstring(text).iter(f"{SVG}text")]
    assert episode["text"] in texts
    for call in episode["calls"]:
        assert call["agent"] in texts
        assert set(call["reply"].split(" ")) <= set(texts)


def test_the_recording_is_what_the_environment_pays(film):
    episode = json.loads(film.DATA.read_text(encoding="utf-8"))
    from flowzoo import voting_v0

    env = voting_v0.env(task="math", split="validation")
    env.reset(seed=0, options={"index": 0})
    for call in episode["calls"]:
        assert env.agent_selection == call["agent"]
        env.step(call["reply"])
    assert env.rewards == {call["agent"]: call["reward"] for call in episode["calls"]}


def test_every_part_appears_in_time_and_motion_can_be_declined(film):
    text = film.PICTURE.read_text(encoding="utf-8")
    parts = set(re.findall(r'<g class="(t\d+)">', text))
    assert parts == set(re.findall(r"\.(t\d+)\{animation:", text))
    assert len(parts) >= 8
    shares = [float(share) for share in re.findall(r"\{0%,([\d.]+)%", text)]
    assert max(shares) < 90
    assert "@media (prefers-reduced-motion:reduce){g{animation:none!important}}" in text


def test_letters_of_a_model_are_text(film):
    episode = json.loads(film.DATA.read_text(encoding="utf-8"))
    episode["calls"][0]["reply"] = "<script>&\x1b[2J"
    picture = film.film(episode)
    ET.fromstring(picture)
    assert "<script>" not in picture
    assert "\x1b" not in picture
    episode["calls"][0]["reply"] = "x" * 40
    with pytest.raises(ValueError, match="at most 27 letters"):
        film.film(episode)
