import sys

import gymnasium
import numpy as np
import pytest
from processes import run_python

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.envs import make_env
from flowzoo.envs import render as picture
from flowzoo.envs.render import RGB, TextLine, fold, picture_lines
from flowzoo.errors import MissingExtraError, UsageError

SHAPE = (picture.HEIGHT, picture.WIDTH, 3)


def inked(frame: np.ndarray, color: str) -> int:
    """The number of pixels with exactly this color."""
    return int((frame == RGB[color]).all(-1).sum())


def test_frames_have_one_shape_and_change_with_every_phase():
    env = make_env("voting_v0", render_mode="rgb_array")
    env.reset(seed=0)
    frames = [env.render()]
    for text in ("one \\boxed{1}", "π ≤ √2 Ж", "x " * 4000, "\\boxed{2}"):
        env.step(text)
        frames.append(env.render())
    assert {(frame.shape, frame.dtype.name) for frame in frames} == {(SHAPE, "uint8")}
    assert np.array_equal(frames[0], frames[2])  # the phase is open: nothing is shown of it
    assert (frames[2] != frames[3]).any()
    assert (frames[3] != frames[4]).any()
    assert np.array_equal(frames[-1], env.render())
    assert inked(frames[-1], "red") > inked(frames[0], "red") == 0  # the verdict, in its color
    assert inked(frames[0], "cyan") > 0


def test_the_end_is_in_the_picture_however_long_the_episode_is():
    env = make_env("eval_opt_v0", render_mode="rgb_array", max_rounds=3)
    env.reset(seed=0)
    while not any(env.terminations.values()):
        env.step("line\n" * 60)
    lines = picture_lines(env.unwrapped.episode)
    assert len(lines) > 200
    assert inked(env.render(), "red") > 0


def test_text_is_folded_and_boards_keep_their_spaces():
    board = TextLine("#   @  #", "plain")
    assert fold(board, 10) == [board]
    pieces = fold(TextLine("word " * 50, "dim"), 40)
    assert max(len(piece.text) for piece in pieces) <= 40
    assert "".join(piece.text for piece in pieces) == "word " * 50
    assert fold(TextLine("", "dim"), 40) == [TextLine("", "dim")]


def test_the_other_faces_draw_too():
    env = gymnasium.make("flowzoo/Voting-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == SHAPE
    from flowzoo import writing_pair_v0

    pair = writing_pair_v0.parallel_env(render_mode="rgb_array")
    pair.reset(seed=0)
    assert pair.render().shape == SHAPE


@pytest.mark.parametrize("module", picture.NEEDED)
def test_pictures_are_offered_where_they_can_be_drawn(module):
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import gymnasium\n"
        "from flowzoo import voting_v0, writing_pair_v0\n"
        "for env in (voting_v0.env(), writing_pair_v0.parallel_env(),\n"
        "            gymnasium.make('flowzoo/Voting-v0')):\n"
        "    print(*env.metadata['render_modes'])\n"
    )
    assert run_python(code).splitlines() == ["human ansi"] * 3
    assert "rgb_array" in make_env("voting_v0").metadata["render_modes"]


@pytest.mark.parametrize("module", picture.NEEDED)
def test_what_is_missing_is_said_when_the_environment_is_made(module, monkeypatch):
    picture.picture_font.cache_clear()
    assert picture.can_draw()
    monkeypatch.setitem(sys.modules, module, None)
    assert not picture.can_draw()
    with pytest.raises(MissingExtraError, match=r"flowzoo\[report\]"):
        make_env("voting_v0", render_mode="rgb_array")
    with pytest.raises(UsageError, match="rgb_array"):
        make_env("voting_v0", render_mode="rgb")
