"""Generated pages of the site say what data and code say."""

import asyncio
import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.declared import declared_types

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def _pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))


def test_every_algorithm_has_a_measured_curve_or_says_so():
    from pages.curves import section

    curves = json.loads((DOCS / "data/curves.json").read_text(encoding="utf-8"))["curves"]
    assert set(curves) <= set(ALGORITHMS)
    assert len(curves) >= 18
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
        assert page.count(f"(../algorithms/{name}.md)") == 1
        for number in re.findall(r"arXiv (\d{4}\.\d{5})", algorithm.source):
            assert f"(https://arxiv.org/abs/{number})" in page
    assert "| Dr. MAS [arXiv:2602.08847]" in page
    assert "[search_team_v0](../environments/search_team_v0.md)" in page


def test_every_setting_of_a_run_stands_on_the_page_of_settings_once():
    from pages.settings import settings_page

    page = settings_page()
    for name in declared_types(TrainConfig):
        assert page.count(f"\n| `{name}` | ") == 1
    assert "\n| `clip_low` | a number, ≥ 0, ≤ 1; or POLICY=VALUE | `None` | Lower clip: " in page
    assert "| `select` | one of 'best', 'sample', 'first' | `'best'` | Candidate with which" in page
    assert "the episode continues. A setting of algorithms that branch at every turn" in page


def test_graphs_have_every_agent_and_the_loops_of_their_workflow():
    from pages.graphs import graph

    roles = {"a_0": 0, "b_0": 1, "b_1": 1}
    picture = graph([[("a_0",), ("b_0",), ("a_0",)], [("a_0",), ("b_0", "b_1")]], roles)
    texts = [element.text for element in ET.fromstring(picture).iter("text")]
    assert texts == ["problem", "a_0", "b_0", "b_1", "reward"]
    assert picture.count('class="tip"') == 5  # on: 3; back from b to a; from a to the end


def test_games_of_the_examples_have_pages_of_their_pay():
    from flowzoo.envs import make_workflow
    from pages.environments import GAMES, page_of, played

    for name, spec in GAMES.items():
        workflow = make_workflow(spec)
        page = page_of(name, workflow, asyncio.run(played(workflow, "scripted:0.8")))
        assert page.startswith(f"# {type(workflow).__name__}\n")
        command = f"examples/games.py:{type(workflow).__name__}"
        assert f"flowzoo train {command} --model pocket:math" in page
        assert f'workflow="{command}"' in page
        assert "; pay: " in page
        assert "gold" not in page
        assert not re.search(r"\b(right answers?|accuracy|candidates?)\b", page)


@pytest.mark.parametrize("name", ["eval_opt_v0", "orch_workers_v0"])
def test_the_page_of_an_environment_draws_its_agents(name):
    from flowzoo.envs import make_workflow
    from pages.environments import graph_of

    workflow = make_workflow(name)
    texts = [element.text for element in ET.fromstring(graph_of(workflow)).iter("text")]
    assert texts == ["problem", *workflow.agents, "reward"]


def test_the_sixty_expectations_are_answered_with_a_page_or_a_reason():
    from pages.expectations import DATA, PEERS, expectations_page

    data = json.loads(DATA.read_text(encoding="utf-8"))
    rows = data["rows"]
    assert len({row["expectation"] for row in rows}) == 60
    assert len({row["area"] for row in rows}) == 8
    for row in rows:
        own = row["flowzoo"]
        if own["answer"] == "no":
            assert len(own["reason"].split()) >= 4, row["expectation"]
        else:
            path = own["link"].partition("#")[0]
            assert path.startswith("generated/") or (DOCS / path).is_file(), path
        for peer in PEERS:
            answer = row[peer]["answer"]
            assert answer in ("yes", "partly", "no", "not found")
            assert ("page" in row[peer]) == (answer in ("yes", "partly"))
            if answer != "not found":
                source = data["pages"][peer][row[peer]["page"]]
                assert source["url"].startswith("https://"), source
                assert source["seen"] in ("read", "excerpt", "listed", "title"), source
    page = expectations_page()
    assert page.count("\n| ") == 60 + 8
    assert "[yes](../../start.md)" in page
    unread = sum(
        data["pages"][peer][row[peer]["page"]]["seen"] != "read"
        for row in rows
        for peer in PEERS
        if "page" in row[peer]
    )
    assert page.count(r") \*") == unread, "a star at each answer whose page was not read"


def test_every_library_has_a_page_with_scripts_that_its_check_runs(monkeypatch):
    from pages.libraries import LIBRARIES, library_pages, rows_of

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/third_party"))
    import run

    assert set(LIBRARIES) == set(run.LIBRARIES)
    pages = library_pages()
    for name, library in LIBRARIES.items():
        page = pages[f"{name}.md"]
        assert (ROOT / f"benchmarks/third_party/check_{name}.py").read_text(
            "utf-8"
        ).rstrip() in page
        check = (ROOT / f"benchmarks/third_party/check_{name}.py").read_text("utf-8")
        for path in library.files:
            assert Path(path).stem in check or "examples/openenv" in check.replace('" / "', "/"), (
                path
            )
        assert rows_of(library.name)[1]
    with pytest.raises(ValueError, match="expected rows of"):
        rows_of("Nothing")


@pytest.mark.parametrize("name", ["pilot", "real", "zoo"])
def test_a_committed_page_admits_its_own_script_and_style(name):
    text = (DOCS / f"{name}.html").read_bytes()
    for kind in ("script", "style"):
        (part,) = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(part).digest())
        assert kind.encode() + b"-src 'sha256-" + digest + b"'" in text, "a browser shows nothing"
