"""Generated pages of the site say what data and code say."""

import asyncio
import base64
import hashlib
import importlib
import importlib.util
import json
import pkgutil
import re
import runpy
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest

import flowzoo.commands
from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.declared import declared_types
from flowzoo.envs import Task, Workflow, make_env, make_workflow, script
from flowzoo.envs.readers.judgments import verdict_line
from flowzoo.envs.testing import check_task, check_workflow

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


# -- Measured figures of the documentation equal `docs/data`, and no other figures are measured ----


sys.path.append(str(ROOT / "docs"))

from pages import figures  # noqa: E402


def test_every_figure_is_as_it_was_measured():
    assert figures.problems(write=False) == []


def changed(page: str, old: str, new: str) -> tuple[str, str]:
    """A page's text, and a copy in which a hand changed something."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count(old) >= 1, f"{page} no longer says {old!r}"
    return text, text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        (
            "docs/results.md",
            "| grpo, shared | 42.2 % | 87.5 % |",
            "| grpo, shared | 42.2 % | 97.5 % |",
        ),
        ("README.md", "42.2 %", "32.2 %"),
        ("docs/measured/diagnostics.md", "1.7 % (3.0 %)", "0.7 % (3.0 %)"),
        ("docs/pilot.md", "+78.4 (+73.0 to +83.5)", "+88.4 (+73.0 to +83.5)"),
    ],
)
def test_a_figure_edited_by_hand_is_put_back(page, old, new):
    text, copy = changed(page, old, new)
    assert figures.filled(page, text)[0] == text
    assert copy != text
    assert figures.filled(page, copy)[0] == text


def test_words_around_a_figure_may_not_change_unseen():
    _, copy = changed("README.md", "takes this team from", "takes a team from")
    with pytest.raises(figures.FigureError, match="found 0 times"):
        figures.filled("README.md", copy)


@pytest.mark.parametrize(
    "added",
    ["It is 37 % faster.", "A step takes 2.5 ms.", "It needs 3 to 4 GB.", "4.1 times less."],
)
def test_a_new_figure_is_reported_unless_the_data_hold_it(added):
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    assert figures.unheld("docs/concepts.md", text) == []
    [message] = figures.unheld("docs/concepts.md", f"{text}\n{added}\n")
    assert re.search(r"\d", message)


def test_every_file_of_data_has_a_command():
    for path in (ROOT / "docs" / "data").glob("*.json"):
        if path.stem in ("bench", "sentences", "limits"):
            continue
        assert figures.load(path.stem)["command"]
    for parts in figures.load("sentences").values():
        assert all(part["command"] for part in parts)
    for page, places in figures.load("limits").items():
        text = (ROOT / page).read_text(encoding="utf-8")
        sections = {name for _, name in figures.headings(text)} | {""}
        assert set(places) <= sections, page


# -- The film of the first page shows the recorded episode, moves, and stands still on request -----


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


# -- The README's Python runs as it stands, and its files and commands exist -----------------------


TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
PYTHON = [block for language, block in BLOCKS if language == "python"]


def test_the_loop_runs(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(PYTHON[0], encoding="utf-8")
    env = runpy.run_path(str(script))["env"]
    assert env.possible_agents == ["generator_0", "generator_1", "generator_2", "aggregator_0"]


def test_a_workflow_of_ones_own_conforms(tmp_path, monkeypatch):
    (tmp_path / "second_look.py").write_text(PYTHON[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    from second_look import SecondLook

    check_workflow(make_workflow(SecondLook))


def test_it_is_short_and_what_it_names_is_there():
    assert len(TEXT.splitlines()) <= 130
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert urlsplit(target).scheme or (ROOT / target.split("#")[0]).exists(), target
    named = {word for _, block in BLOCKS for word in re.findall(r"^flowzoo (\w+)", block, re.M)}
    assert named
    assert named <= {module.name for module in pkgutil.iter_modules(flowzoo.commands.__path__)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([a-z-]+)(?:$|`)", TEXT, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


# -- docs/authoring.md: every block of Python runs as it stands, and what it defines conforms ------


AUTHORING = (DOCS / "authoring.md").read_text("utf-8")
AUTHORED = re.findall(r"^```python\n(.*?)^```$", AUTHORING, flags=re.MULTILINE | re.DOTALL)
CLASSES = {
    match[1]: block for block in AUTHORED if (match := re.search(r"^class (\w+)", block, re.M))
}
SCRIPTS = [block for block in AUTHORED if block not in CLASSES.values()]


def imported(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The block of a class as a module, so that other processes can import it, too."""
    module = f"authoring_{name.lower()}"
    (folder / f"{module}.py").write_text(CLASSES[name], encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(module)


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_defined_is_played(name, tmp_path, monkeypatch):
    results = getattr(imported(name, tmp_path, monkeypatch), name)
    if issubclass(results, Task):
        env = make_env("voting_v0", results())
    elif results.asks_judge:
        env = make_env(results, judge=lambda messages: verdict_line(messages, 1.0))
    else:
        env = make_env(results)
    env.reset(seed=0)
    workflow = env.unwrapped.workflow
    respond = workflow.responder(env.unwrapped.episode.problem)
    while not any(env.terminations.values()):
        agent = env.agent_selection
        env.step(respond(workflow.agents[agent][0], env.observe(agent)["messages"]))
    assert env.record().score == 1.0


CHECKED = ("Revise", "LettersTask")
"""A workflow and a task that are always put through all checks; the others by `make test-all`."""


@pytest.mark.parametrize(
    "name", [n if n in CHECKED else pytest.param(n, marks=pytest.mark.full) for n in CLASSES]
)
def test_what_is_defined_conforms(name, tmp_path, monkeypatch):
    module = imported(name, tmp_path, monkeypatch)
    results = getattr(module, name)
    if issubclass(results, Task):
        check_task(results())
        check_workflow(make_workflow("voting_v0", results()))
    else:
        assert issubclass(results, Workflow)
        check_workflow(make_workflow(results))


def test_the_scripts_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in SCRIPTS:
        if "TrainConfig" not in block:
            (tmp_path / "block.py").write_text(block, encoding="utf-8")
            runpy.run_path(str(tmp_path / "block.py"))


@pytest.mark.full
def test_a_run_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in SCRIPTS if "TrainConfig" in block]
    (tmp_path / "block.py").write_text(block, encoding="utf-8")
    runpy.run_path(str(tmp_path / "block.py"))
    assert (tmp_path / "runs" / "small" / "run.json").is_file()


def test_every_word_has_its_example():
    args = {
        "Ask",
        *(kind.__name__ for kind in script.RESULTS if kind is not script.Advance),
        "RoleScore",
        "InterimScore",
        "Outcome",
    }
    yielded = "\n".join(CLASSES.values())
    for word in args:
        assert re.search(rf"(?:yield|return|\[)\s*\[?{word}\(", yielded), word
        assert f"`{word}(" in AUTHORING or word == "Outcome", word
    for word in ("kinds", "presets", "credit", "simultaneous", "expert", "role_counts"):
        assert word in AUTHORING


# -- examples/grpo_from_scratch.py: its loop, at the size of a test --------------------------------


PATH = Path(__file__).resolve().parent.parent / "examples" / "grpo_from_scratch.py"


def test_it_is_at_most_eighty_lines():
    assert len(PATH.read_text().splitlines()) <= 80


@pytest.mark.full
def test_it_plays_all_roles_and_learns_what_was_rewarded():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from flowzoo.agents.pocket import pocket_path

    spec = importlib.util.spec_from_file_location("grpo_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    grpo: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grpo)
    torch.manual_seed(0)
    path = str(pocket_path("math"))
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    calls = grpo.play(model, tokenizer, "train", [0, 1] * 3)
    assert [key for key, *_ in calls].count((0, "aggregator_0")) == 3
    assert len(calls) == 6 * 4
    by_episode: dict[Any, set[float]] = {}
    for number, (_, prompt, reply, reward) in enumerate(calls):
        by_episode.setdefault(number % 6, set()).add(reward)  # side by side, agent by agent
        assert len(prompt) > 5
        assert 1 <= len(reply) <= grpo.TOKENS
        ended = reply == tokenizer.eos_token_id
        assert ended.sum() <= 1
        assert len(reply) == grpo.TOKENS or ended[-1]
    assert all(len(rewards) == 1 for rewards in by_episode.values())  # the team's

    def gap():
        """How much likelier the rewarded reply is than the other one."""
        logps, spans = grpo.log_probs(model, [(prompt, reply, 0) for _, prompt, reply, _ in pair])
        good, bad = (logps * spans).sum(1)
        return float((good - bad).detach())

    (_, prompt, reply, _), (_, _, other, _) = calls[0], calls[1]
    pair = [(("p", "a"), prompt, reply, 1.0), (("p", "a"), prompt, other, 0.0)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    before = gap()
    for _ in range(3):
        grpo.learn(model, optimizer, pair * 4)
    assert gap() > before + 0.5
