import sys

import pytest

from flowzoo.cli import main


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
