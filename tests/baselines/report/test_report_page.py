import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from flowzoo.baselines.report.html import as_json, render
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.transcripts import LONGEST, Texts, pack, shorten
from flowzoo.baselines.report.write import page_names, write_report

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
