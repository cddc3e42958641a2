"""Generated pages of the site say what data and code say."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from flowzoo.baselines.settings.algorithms import ALGORITHMS

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(autouse=True)
def _pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))


def test_every_algorithm_has_a_measured_curve_or_says_so():
    from pages.curves import section

    curves = json.loads((DOCS / "data/curves.json").read_text(encoding="utf-8"))["curves"]
    assert set(curves) == set(ALGORITHMS)
    assert section("none of these")[-1] == "Not measured."
    text = "\n".join(section("grpo"))
    assert f"{100 * curves['grpo']['right'][-1] / 200:.1f} %" in text
    picture = ET.fromstring(re.search(r"<svg.*</svg>", text)[0])
    points = [element for element in picture.iter() if element.tag == "circle"]
    assert len(points) == len(curves["grpo"]["steps"])
    heights = [float(point.get("cy")) for point in points]
    assert heights[0] > heights[-1]


def test_every_algorithm_stands_in_the_table_of_papers_once():
    from pages.papers import papers_page

    page = papers_page()
    for name, algorithm in ALGORITHMS.items():
        assert page.count(f"(algorithms/{name}.md)") == 1
        for number in re.findall(r"arXiv (\d{4}\.\d{5})", algorithm.source):
            assert f"(https://arxiv.org/abs/{number})" in page
    assert "| Dr. MAS [arXiv:2602.08847]" in page
    assert "[search_team_v0](environments/search_team_v0.md)" in page
