"""Gymnasium: vector environments, wrappers, videos."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import wrappers
from gymnasium.utils.env_checker import check_env
from rows import Row, report

import flowzoo  # noqa: F401 - registers the environments

NAME = "flowzoo/Voting-v0"


def vector(mode: str) -> Any:
    """Two environments, an episode each."""

    def check() -> None:
        envs = gymnasium.make_vec(NAME, num_envs=2, vectorization_mode=mode, role="aggregator")
        observed, _ = envs.reset(seed=0)
        assert observed in envs.observation_space
        replies = ("\\boxed{1}", "several words, π")
        *_, infos = envs.step(replies)
        assert [row[-1]["reply"] for row in infos["transcript"]] == list(replies)
        envs.close()

    return check


def episode(env: Any) -> Any:
    """Play an episode with random replies; the last info."""
    env.reset(seed=0)
    while True:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            return info


def wrapped(wrap: Any) -> Any:
    """An episode in a wrapped environment."""
    return lambda: episode(wrap(gymnasium.make(NAME)))


def statistics() -> None:
    """The return of an episode, from a wrapper."""
    info = episode(wrappers.RecordEpisodeStatistics(gymnasium.make(NAME)))
    assert info["episode"]["l"] == 3


def video() -> None:
    """A film of an episode, a frame per turn."""
    with tempfile.TemporaryDirectory() as folder:
        env = wrappers.RecordVideo(
            gymnasium.make(NAME, render_mode="rgb_array"), folder, lambda number: True
        )
        episode(env)
        env.close()
        (film,) = Path(folder).glob("*.mp4")
        assert film.stat().st_size > 1000


def messages_only(observation: Any) -> Any:
    """The last message."""
    return {"messages": observation["messages"][-1:]}


ROWS = [
    Row("`make`, `check_env`", lambda: check_env(gymnasium.make(NAME).unwrapped)),
    Row('`make_vec(vectorization_mode="sync")`', vector("sync")),
    Row('`make_vec(vectorization_mode="async")`, in shared memory', vector("async")),
    Row("`RecordEpisodeStatistics`", statistics),
    Row("`RecordVideo`", video, using='`render_mode="rgb_array"` (extra `report`)'),
    Row("`TimeLimit`", wrapped(lambda env: wrappers.TimeLimit(env, 2))),
    Row("`DelayObservation`", wrapped(lambda env: wrappers.DelayObservation(env, 1))),
    Row(
        "`TransformObservation`",
        wrapped(lambda e: wrappers.TransformObservation(e, messages_only, e.observation_space)),
    ),
    Row(
        "`TransformAction`",
        wrapped(lambda env: wrappers.TransformAction(env, str.strip, env.action_space)),
    ),
    Row(
        "`TransformReward`",
        wrapped(lambda env: wrappers.TransformReward(env, lambda r: 2 * float(r))),
    ),
    Row(
        "`FlattenObservation`",
        wrapped(wrappers.FlattenObservation),
        error="Messages",
        why="a chat has no array form",
    ),
    Row(
        "`FrameStackObservation`",
        wrapped(lambda env: wrappers.FrameStackObservation(env, 2)),
        using="a padding of an empty chat; stacks are tuples",
    ),
]

if __name__ == "__main__":
    report("Gymnasium", ("gymnasium", "moviepy"), ROWS)
