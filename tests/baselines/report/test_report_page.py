import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from flowzoo.agents.evaluation.evaluate import EvaluationDirectory
from flowzoo.baselines.report.html import as_json, render
from flowzoo.baselines.report.reading import find_evaluations, find_runs, read_runs
from flowzoo.baselines.report.transcripts import LONGEST, Texts, pack, shorten
from flowzoo.baselines.report.write import page_names, write_report
from flowzoo.baselines.run.reading import read_episodes, sharing_words
from flowzoo.cli import main
from flowzoo.errors import DataError, UsageError

HOSTILE = (
    "</script><script>window.hacked=1</script>", "<!-- <script>", "<img src=x onerror=hacked()>",
    "\u2028\u2029\x00\x1b[31m\u202ereversed\u202c\ud800", "{{script}}{{facts}}", "&lt;&#60;\\u003c",
    "]]>", "x" * 100_000,
)  # fmt: skip


class Scripts(HTMLParser):
    """The contents of the script elements as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "script":
            self.inside = True
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found[-1] += data


def scripts_of(page: str) -> list[str]:
    parser = Scripts()
    parser.feed(page)
    return parser.found


@pytest.mark.parametrize("text", HOSTILE)
def test_json_of_any_text_is_inert_and_comes_back(text):
    written = as_json({"a": [text], text: 1})
    assert written.isascii()
    assert not re.search("[<>&]", written)
    assert json.loads(written) == {"a": [text], text: 1}


def test_numbers_that_json_lacks_become_null():
    assert as_json([float("nan"), float("inf"), 1.5, None, True]) == "[null,null,1.5,null,true]"


def test_hostile_texts_end_no_script_and_take_no_place():
    facts = {"texts": list(HOSTILE), "title": HOSTILE[0]}
    page = render(HOSTILE[0], facts, {"texts": list(HOSTILE)})
    blocks = scripts_of(page)
    assert len(blocks) == 3
    assert json.loads(blocks[0]) == facts
    assert json.loads(blocks[1]) == {"texts": list(HOSTILE)}
    page.encode("ascii", "xmlcharrefreplace")  # a lone surrogate could not be written


def test_the_policy_admits_the_script_and_style_by_hash_and_no_network():
    page = render("t", {}, None)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    script = scripts_of(page)[2]
    style = page[page.index("<style>") + 7 : page.index("</style>")]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy.group(1)
    assert policy.group(1).startswith("default-src 'none';")
    assert "unsafe" not in policy.group(1)
    assert "sourceMappingURL" not in page


def test_the_scripts_make_no_markup_of_texts():
    folder = files("flowzoo.baselines.report") / "page"
    own = [one for one in folder.iterdir() if one.name.endswith(".js") and one.name != "chart.js"]
    assert len(own) == 14
    for one in own:
        text = one.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)


def test_the_chart_library_is_there_with_its_license():
    folder = files("flowzoo.baselines.report") / "page"
    assert "Chart.js v4.6.1" in (folder / "chart.js").read_text(encoding="utf-8")[:100]
    assert "MIT License" in (folder / "chart.LICENSE.md").read_text(encoding="utf-8")
    assert "4.6.1" in (folder / "main.js").read_text(encoding="utf-8")


def test_a_text_is_packed_once_however_often_it_is_said(make_run, tmp_path):
    run = read_runs([make_run(tmp_path / "run", items=20, replies=("the same",))])[0]
    packed = pack(run, 10_000)
    assert packed["texts"].count("the same") == 1
    assert len(packed["episodes"]) == packed["total"] == 8 * 20 + 7 * 16
    for episode in packed["episodes"]:
        assert {packed["texts"][call[4]] for call in episode[9]} == {"the same"}


def test_the_last_first_and_best_evaluations_are_packed_first(make_run, tmp_path):
    course = (0.2, 0.3, 0.9, 0.4, 0.4, 0.4)
    run = read_runs([make_run(tmp_path / "run", items=20, course=course)])[0]
    packed = pack(run, 60)
    steps = {(packed["texts"][one[0]], one[1]) for one in packed["episodes"]}
    assert steps == {("eval", 50), ("eval", 0), ("eval", 20)}
    assert packed["total"] == 6 * 20 + 5 * 16
    assert pack(run, 0)["episodes"] == []


def test_a_very_long_text_loses_its_middle_and_says_so():
    text = "a" * LONGEST + "bc" + "d" * LONGEST
    kept = shorten(text)
    assert f"{len(text) - LONGEST} characters are left out" in kept
    assert (kept[0], kept[-1]) == ("a", "d")
    texts = Texts()
    assert texts.add(text) == texts.add(text) == 0


def test_page_names_are_plain_and_different():
    assert page_names(["a/seed-0", "a b/ü", "../x", "a/seed-0"]) == [
        "a--seed-0.html", "a-b.html", "x.html", "a--seed-0~1.html",
    ]  # fmt: skip


def test_several_runs_get_an_index_and_a_page_each(make_run, tmp_path):
    for seed in range(2):
        make_run(tmp_path / "m" / "cell" / f"seed-{seed}", seed=seed, items=12)
    told: list[str] = []
    out = tmp_path / "o" / "index.html"
    written = write_report([tmp_path / "m"], out, on_run=told.append)
    assert [path.name for path in written] == ["index.html", "seed-0.html", "seed-1.html"]
    assert len(told) == 2
    facts = json.loads(scripts_of(out.read_text())[0])
    links = facts["matrix"]["cells"][0]["pages"]
    assert {(out.parent / link).resolve() for link in links.values()} == {
        path.resolve() for path in written[1:]
    }
    page = json.loads(scripts_of(written[1].read_text())[0])
    assert (written[1].parent / page["index"]).resolve() == out.resolve()


def test_an_overview_is_one_page_without_links(make_run, tmp_path):
    for seed in range(2):
        make_run(tmp_path / "m" / "cell" / f"seed-{seed}", seed=seed, items=12)
    out = tmp_path / "o" / "index.html"
    assert write_report([tmp_path / "m"], out, overview=True) == [out]
    facts = json.loads(scripts_of(out.read_text())[0])
    assert facts["matrix"]["cells"][0]["pages"] == {"0": None, "1": None}
    assert [path.name for path in out.parent.iterdir()] == ["index.html"]


def test_runs_are_found_below_a_matrix_and_named_by_what_tells_them_apart(make_run, tmp_path):
    for seed in (1, 0):
        make_run(tmp_path / "m" / "cell" / f"seed-{seed}", seed=seed, items=8)
    runs = read_runs([tmp_path / "m"])
    assert [run.name for run in runs] == ["seed-0", "seed-1"]
    make_run(tmp_path / "m" / "other" / "seed-0", items=8)
    names = [run.name for run in read_runs([tmp_path / "m"])]
    assert names == ["cell/seed-0", "cell/seed-1", "other/seed-0"]


def test_a_run_given_twice_is_read_once(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=8)
    assert find_runs([folder, tmp_path]) == [folder]


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no run was found.*run\.json"):
        find_runs([tmp_path])
    with pytest.raises(UsageError, match="expected the directory of a run"):
        find_runs([tmp_path / "absent"])


def test_evaluations_among_runs_are_left_out_and_found(make_run, tmp_path):
    run = make_run(tmp_path / "run", items=8)
    evaluation = tmp_path / "evaluation"
    EvaluationDirectory(evaluation, {"n": 3}).save_summary({})
    assert find_runs([tmp_path]) == [run]
    assert find_evaluations([tmp_path]) == [evaluation]
    with pytest.raises(UsageError, match=r"holds an evaluation .*alone writes its page"):
        find_runs([run, evaluation])
    with pytest.raises(UsageError, match="holds no evaluation, but something else"):
        EvaluationDirectory(run, {"n": 3})


def test_a_record_that_is_not_of_a_run_is_named(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=8)
    (folder / "run.json").write_text('{"other": 1}')
    with pytest.raises(DataError, match=r"run\.json has no `settings`"):
        read_runs([folder])
    (folder / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json is not JSON"):
        read_runs([folder])


def test_a_torn_last_line_is_dropped_and_an_earlier_one_is_named(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=8)
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"step": 7')
    assert len(read_runs([folder])[0].rows) == len(whole.splitlines())
    metrics.write_text("[]\n" + whole)
    with pytest.raises(DataError, match="line 1: not a row of metrics"):
        read_runs([folder])


def test_roles_and_policies_of_an_unfinished_run(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=8, sharing=("isolated",), finished=False)
    run = read_runs([folder])[0]
    assert run.roles == ["generator", "aggregator"]
    assert run.policies == {"generator": "generator", "aggregator": "aggregator"}
    assert run.summary is None


def test_sharing_that_is_left_out_is_what_the_algorithm_is_made_for(make_run, tmp_path):
    plan = {"items": 8, "sharing": (), "finished": False}
    policies = {
        name: set(
            read_runs([make_run(tmp_path / name, algorithm=name, **plan)])[0].policies.values()
        )
        for name in ("grpo", "magrpo", "magrpo_tree")
    }
    alone = {"generator", "aggregator"}
    assert policies == {"grpo": {"shared"}, "magrpo": alone, "magrpo_tree": alone}
    settings = [{}, {"sharing": None, "algorithm": "of another version"}, {"sharing": ["a=b"]}]
    assert [sharing_words(one) for one in settings] == [["shared"], ["shared"], ["a=b"]]


def test_the_task_of_a_run_is_the_workflows_own_where_none_is_named(make_run, tmp_path):
    run = read_runs([make_run(tmp_path / "run", items=8)])[0]
    settings = {**run.settings, "task": None}
    assert replace(run, settings=settings).task == "math"
    foreign = {**settings, "workflow": "absent_module:Class"}
    assert replace(run, settings=foreign).task == "default task"


def test_problem_sets_are_known_by_name_or_by_their_problems(make_run, tmp_path):
    one, two = (
        read_runs([make_run(tmp_path / name, items=8, task=name)])[0] for name in ("math", "code")
    )
    assert one.problem_set
    assert one.problem_set != two.problem_set
    named = {"protocol": {"problem_set": "f94b3837a6ee"}}
    assert replace(one, summary=named).problem_set == "f94b3837a6ee"


def test_episodes_with_lone_surrogates_and_nul_are_read(make_run, tmp_path):
    text = "a\x00b\ud800c\u2028d"
    folder = make_run(tmp_path / "run", items=8, replies=(text,))
    episode = read_episodes(folder / "transcripts" / "eval-000000.jsonl")[0]
    assert episode["calls"][0]["reply"] == text
    assert json.loads(json.dumps(episode)) == episode


def test_a_run_gets_its_report_inside(make_run, tmp_path, capsys):
    folder = make_run(tmp_path / "run", items=12)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"report  {folder / 'report.html'}\n"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_runs_of_several_directories_are_one_report(make_run, tmp_path, capsys):
    one, two = (make_run(tmp_path / name, items=12) for name in ("one", "two"))
    out = tmp_path / "both.html"
    assert main(["report", str(one), str(two), "--out", str(out)]) == 0
    assert "and 2 pages in" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "both-runs").iterdir()) == [
        "one.html",
        "two.html",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episodes", "-1"], "`episodes` must be at least 0, got -1"),
        (["--png", "plots"], "flowzoo[report]"),
    ],
)
def test_mistakes_are_one_line_before_any_work(
    words, message, make_run, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = make_run(tmp_path / "run", items=12)
    assert main(["report", str(folder), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "folder"], "got the directory folder: name a file with --out"),
        (["--out", "file/page.html"], "--out file/page.html: file exists and is a file: choose"),
        (["--png", "file"], "--png file: file exists and is a file: choose"),
        (["--png", "file/below/plots"], "exists and is a file: choose"),
    ],
)
def test_places_that_cannot_be_written_to_are_refused_before_runs_are_read(
    words, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert main(["report", "absent", *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_file_where_the_pages_of_runs_go_is_named(make_run, tmp_path, capsys):
    for name in ("a", "b"):
        make_run(tmp_path / name / "seed-0", items=4)
    out = tmp_path / "page.html"
    (tmp_path / "page-runs").touch()
    words = ["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(out)]
    assert main(words) == 2
    assert "page-runs exists and is a file" in capsys.readouterr().err
    assert not out.exists()
    assert main([*words, "--overview"]) == 0
    assert out.exists()


def test_a_folder_without_runs_is_status_2(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "no run was found" in capsys.readouterr().err


@pytest.mark.full
def test_plots_of_a_run_and_of_a_matrix_are_files(make_run, tmp_path):
    pytest.importorskip("matplotlib")
    make_run(tmp_path / "m" / "a$b_c" / "seed-0", items=40, gradients=True)
    make_run(tmp_path / "m" / "other" / "seed-0", items=40, sharing=("isolated",))
    out = tmp_path / "png"
    assert main(["report", str(tmp_path / "m" / "a$b_c"), "--png", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {
        "accuracy.png", "roles.png", "gradient-mass.png", "cosines.png",
    }  # fmt: skip
    assert main(["report", str(tmp_path / "m"), "--png", str(out / "m")]) == 0
    assert {path.name for path in (out / "m").iterdir()} == {
        "gains.png", "peak-terminal.png", "course-a-b_c.png", "course-other.png",
    }  # fmt: skip
    for path in out.rglob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5_000


def test_a_matrix_of_three_evaluations_has_no_plot_of_its_end(make_run, tmp_path):
    pytest.importorskip("matplotlib")
    for cell, sharing in (("one", "shared"), ("two", "isolated")):
        folder = tmp_path / "m" / cell / "seed-0"
        make_run(folder, items=40, course=(0.5, 0.6, 0.6), sharing=(sharing,))
    assert main(["report", str(tmp_path / "m"), "--png", str(tmp_path / "png")]) == 0
    names = {path.name for path in (tmp_path / "png").iterdir()}
    assert names == {"gains.png", "course-one.png", "course-two.png"}
