"""AEC environments of others as workflows."""

import itertools
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from pettingzoo import AECEnv, ParallelEnv

from flowzoo.agents.evaluation.alarms import Remedies, episode_alarms
from flowzoo.agents.policy_map import agent_names
from flowzoo.baselines.advantages.compute import compute
from flowzoo.baselines.diagnostics.silence import silences
from flowzoo.baselines.training.metrics import role_metrics
from flowzoo.envs import Call, Episode, EpisodeRecord, TextEnv, random_move
from flowzoo.envs.episode.recording import record
from flowzoo.envs.external.text_env import chat, is_legal, random_action
from flowzoo.envs.external.workflow import AECWorkflow, EnvSource, make_aec_workflow
from flowzoo.envs.tasks.task import SPLITS
from flowzoo.envs.testing.playthrough import play_with
from flowzoo.errors import DivergedError, UsageError
from flowzoo.seeding import key_rng


class Trade(AECEnv[str, Any, Any]):
    """Three traders take turns; every reply pays its length to the next trader, and half to the
    speaker. `carol` leaves after her first turn; the others after `rounds`.
    """

    metadata = {"name": "trade_v1"}  # noqa: RUF012 - as PettingZoo's environments have it

    def __init__(self, rounds: int = 2, end: str = "terminated") -> None:
        super().__init__()
        self.possible_agents = ["ann", "bob", "carol"]
        self.rounds, self.end, self.closed = rounds, end, False
        self.action_spaces = dict.fromkeys(self.possible_agents, Text(9))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.stock = np.random.default_rng(seed).integers(100)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.said: list[str] = []
        self.agent_selection = "ann"

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def observe(self, agent: str) -> Any:
        return f"stock {self.stock}; said: {' '.join(self.said)}"

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self.rewards[agent] += len(action) / 2
        self.rewards[following] += len(action)
        self.said.append(action)
        over = self.terminations if self.end == "terminated" else self.truncations
        if agent == "carol":
            over[agent] = True
        if len(self.said) == 2 * self.rounds + 1:
            over.update(dict.fromkeys(self.agents, True))
        self._accumulate_rewards()
        self.agent_selection = following
        if agent == "carol" or all(over.values()):
            self._deads_step_first()

    def close(self) -> None:
        self.closed = True


class Pick(Trade):
    """One agent picks the cell that the seed says, of those still free; an illegal one raises."""

    metadata = {"name": "pick_v0"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["player_0", "player_1"]
        cells = Discrete(4, start=1)
        self.action_spaces = dict.fromkeys(self.possible_agents, cells)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset(seed, options)
        self.free, self.agent_selection = {1, 2, 3, 4}, "player_0"

    def observe(self, agent: str) -> Any:
        mask = np.array([cell in self.free for cell in (1, 2, 3, 4)], np.int8)
        return {"observation": np.array(sorted(self.free)), "action_mask": mask}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self.free.remove(int(action))
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if not self.free:
            self.rewards = {"player_0": -1.0, "player_1": 1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = "player_1" if agent == "player_0" else "player_0"


def trade(rounds: int = 2, end: str = "terminated", **hooks: Any) -> TextEnv:
    return TextEnv(Trade(rounds, end), score_range=(0.0, 20.0), **hooks)


def plain_trade() -> Trade:
    return Trade()


def pick(opponent: str = "none", **hooks: Any) -> TextEnv:
    def describe(observation: Any, agent: str) -> str:
        return f"free: {observation['observation'].tolist()}"

    def parse(reply: str, env: Any, agent: str) -> int | None:
        return int(reply) if reply.isdigit() else None

    scripted = {"player_1": random_move} if opponent == "random" else {}
    return TextEnv(Pick(), describe, parse, scripted=scripted, score_range=(-1, 1), **hooks)


def endless() -> TextEnv:
    return trade(rounds=10_000)


def seats() -> TextEnv:
    return trade(roles={"ann": "seller", "carol": "seller"}, scored=("bob",))


def undying() -> Trade:
    class Undying(Trade):
        def _was_dead_step(self, action: Any) -> None:
            pass

    return Undying()


def said_score(kind: str = "float64") -> TextEnv:
    class Scored(Trade):
        def step(self, action: Any) -> None:
            super().step(action)
            for info in self.infos.values():
                info["score"] = np.dtype(kind).type(0.25)

    return TextEnv(Scored())


def numbers() -> Pick:
    return Pick()


def unseeded() -> Trade:
    class Unseeded(Trade):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            super().reset(seed, options)
            self.stock = next(CLOCK)

    return Unseeded()


CLOCK = iter(range(10**9))


def drifting() -> TextEnv:
    class Drifting(Trade):
        def observe(self, agent: str) -> Any:
            return super().observe(agent) + (f" at {next(CLOCK)}" if self.said else "")

    return TextEnv(Drifting(), score_range=(0, 20))


def parallel() -> Any:
    class Both(ParallelEnv[str, Any, Any]):
        possible_agents = ["a", "b"]  # noqa: RUF012

    return Both()


def nothing() -> int:
    return 3


def workflow(function: Callable[..., Any], **options: Any) -> AECWorkflow:
    return make_aec_workflow(f"{Path(__file__)}:{function.__name__}", **options)


def play(workflow: AECWorkflow, replies: Sequence[str], index: int = 0) -> EpisodeRecord:
    """The record of an episode with these replies, repeated as often as it takes."""
    episode = Episode(workflow, workflow.task.problem(index), f"e{index}")
    texts = itertools.cycle(replies)
    return record(play_with(episode, lambda turn: next(texts)))


def to_go(calls: Sequence[Call]) -> list[float]:
    """The targets of return-to-go, which `compute` gives as they are without a baseline."""
    from flowzoo.baselines.advantages.spec import AdvantageSpec

    spec = AdvantageSpec(target="return_to_go", mean="none", std="none", singleton="raw")
    return compute(calls, spec).values.tolist()


def test_agents_are_asked_in_turn_and_paid_what_the_environment_says():
    done = play(workflow(trade), ["aa", "b", "cccc", "d", "eee"])
    assert [call.agent for call in done.calls] == ["ann", "bob", "carol", "ann", "bob"]
    assert done.calls[1].messages[0]["content"].endswith("said: aa")
    # ann: 1 own, 4 from carol, .5 own, 3 from bob; bob: 2 + .5 + 1 + 1.5; carol: 1 + 2.
    assert done.returns == {"ann": 8.5, "bob": 5.0, "carol": 3.0}
    assert [call.reward for call in done.calls] == [8.5, 5.0, 3.0, 8.5, 5.0]
    # What was paid from a call until its agent's next; bob got 2 and carol 1 before their first.
    assert [call.immediate for call in done.calls] == [5.0, 1.5, 2.0, 3.5, 1.5]
    assert to_go(done.calls) == [8.5, 3.0, 2.0, 3.5, 1.5]
    assert done.score == pytest.approx((8.5 + 5 + 3) / 3 / 20)
    assert {name: done.facts[name] for name in ("steps", "illegal", "cut", "truncated")} == {
        "steps": 5, "illegal": 0, "cut": False, "truncated": False,
    }  # fmt: skip
    assert done.facts["return/carol"] == 3.0
    assert (done.workflow, done.task) == ("aec_v0", "trade_v1")


def test_team_credit_pays_everybody_the_score():
    done = play(workflow(trade, credit="team"), ["aa", "b", "cccc", "d", "eee"])
    assert {call.reward for call in done.calls} == {done.score}
    assert {call.parts["team"] for call in done.calls} == {done.score}
    mixed = play(workflow(trade, credit="mix", alpha=2.0), ["aa", "b", "cccc", "d", "eee"])
    assert [call.reward for call in mixed.calls] == [
        pytest.approx(2 * done.score + share) for share in (8.5, 5.0, 3.0, 8.5, 5.0)
    ]
    # The team's share is counted once, and every payment from the call on.
    assert to_go(mixed.calls)[3:] == [pytest.approx(2 * done.score + share) for share in (3.5, 1.5)]
    assert to_go(mixed.calls)[0] == pytest.approx(2 * done.score + 8.5)


def test_what_the_environment_truncates_still_pays():
    done = play(workflow(trade, end="truncated"), ["aa", "b", "cccc", "d", "eee"])
    assert done.facts["truncated"] is True
    assert done.returns == {"ann": 8.5, "bob": 5.0, "carol": 3.0}


def test_an_environment_without_end_is_cut_off_and_says_so():
    done = play(workflow(endless, max_steps=4), ["aa"])
    assert (done.facts["cut"], done.facts["steps"], len(done.calls)) == (True, 4, 4)
    assert done.returns == {"ann": 4.0, "bob": 5.0, "carol": 3.0}


def test_names_and_roles_are_the_environments_own_or_those_given():
    assert workflow(trade).agents == {"ann": ("ann", 0), "bob": ("bob", 0), "carol": ("carol", 0)}
    assert workflow(pick).agents == {"player_0": ("player", 0), "player_1": ("player", 1)}
    assert dict(workflow(pick, opponent="random").role_counts()) == {"player": ("player_0",)}
    named = workflow(seats)
    assert agent_names(named.role_counts()) == ["seller_0", "seller_1", "bob"]
    done = play(named, ["aa", "b", "cccc", "d", "eee"])
    assert [call.agent for call in done.calls] == ["seller_0", "bob", "seller_1", "seller_0", "bob"]
    assert [call.role for call in done.calls[:2]] == ["seller", "bob"]
    assert done.score == 5.0 / 20  # bob's alone


def test_a_score_in_the_infos_is_the_score():
    assert play(workflow(said_score), ["a"]).score == 0.25
    assert play(workflow(said_score, kind="float32"), ["a"]).score == 0.25


def test_a_return_outside_the_range_says_what_to_give():
    with pytest.raises(
        Exception, match=r"problem trade_v1/train/0/0: ann of trade_v1 got a return of 3, outside"
    ) as caught:
        play(workflow(plain_trade), ["a"])
    assert "\n" not in str(caught.value)


def test_wrong_replies_are_counted_and_replaced_by_legal_moves():
    done = play(workflow(pick), ["2", "2", "what?", "9"])
    assert [call.strict for call in done.calls] == [True, False, False, False]
    assert [call.lenient for call in done.calls] == [True, True, False, True]
    assert (done.facts["illegal"], done.facts["unreadable"], done.facts["steps"]) == (2, 1, 4)
    assert done.returns == {"player_0": -1.0, "player_1": 1.0}
    assert [call.reward for call in done.calls] == [-1.0, 0.0, -2.0, 0.0]  # less 1 where wrong
    again = play(workflow(pick), ["2", "2", "what?", "9"])
    assert [call.messages for call in again.calls] == [call.messages for call in done.calls]
    others = {
        play(workflow(pick), ["x"], index).calls[1].messages[0]["content"] for index in range(20)
    }
    assert len(others) == 4  # the moves differ between problems


def test_a_wrong_reply_may_lose_the_game():
    done = play(workflow(pick, illegal="end", format_penalty=0), ["2", "2"])
    assert [call.strict for call in done.calls] == [True, False]
    assert done.returns == {"player_0": 0.0, "player_1": -1.0}
    assert [call.reward for call in done.calls] == [0.0, -1.0]
    assert done.score == 0.25


def test_scripted_agents_play_by_the_problem_alone():
    built = workflow(pick, opponent="random")
    done = play(built, ["1", "2", "3", "4"])
    assert {call.agent for call in done.calls} == {"player_0"}
    assert done.returns == {"player_0": -1.0}
    assert done.facts["return/player_1"] == 1.0
    assert done == play(built, ["1", "2", "3", "4"])


def test_an_episode_forks_and_pickles_by_playing_the_replies_again():
    built = workflow(pick, opponent="random")
    episode = Episode(built, built.task.problem(3), "e")
    episode.reply("player_0", "what?")
    twins = [episode, episode.fork(), pickle.loads(pickle.dumps(episode))]
    for twin in twins:
        twin.reply("player_0", "nothing")
    assert twins[0].done
    assert record(twins[0]) == record(twins[1]) == record(twins[2])


def test_a_fork_of_an_environment_that_is_not_deterministic_is_refused():
    built = workflow(drifting)
    episode = Episode(built, built.task.problem(0), "e")
    episode.reply("ann", "a")
    with pytest.raises(DivergedError, match="asked something else"):
        episode.fork()


def test_problems_are_seeds_that_no_two_splits_share():
    task = workflow(trade).task
    results = {
        split: {task.problem(i, split).meta["reset"] for i in range(300)} for split in SPLITS[:4]
    }
    assert [len(seeds) for seeds in results.values()] == [300] * 4
    assert len(set.union(*results.values())) == 1200
    assert max(set.union(*results.values())) < 2**31
    assert task.problem(5, "test") == task.problem(5, "test")
    assert task.problem(5, "test").meta != workflow(trade, seed=1).task.problem(5, "test").meta


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (numbers, {}, r"acts by Discrete\(4, start=1\), not by text: return TextEnv"),
        (parallel, {}, "is a ParallelEnv.*parallel_to_aec"),
        (nothing, {}, "expected a pettingzoo.AECEnv or a TextEnv around one, got int"),
        (unseeded, {}, r"starts differently after reset\(seed="),
        (seats, {"color": "red"}, r"unexpected keyword argument 'color'; it takes \(\)"),
        (trade, {"illegal": "ignore"}, "unknown rule for illegal actions 'ignore'"),
        (trade, {"max_steps": 0}, "max_steps: expected a whole number of at least 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_in_one_line(function, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        workflow(function, **options)
    assert "\n" not in str(caught.value)


def test_an_agent_that_dies_and_stays_is_an_error():
    with pytest.raises(Exception, match="carol of trade_v1 has died and stays in `agents`"):
        play(workflow(undying), ["a"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere", "--env takes module:function or path/to/file.py:function, got 'nowhere'"),
        ("no_such_module:make", "importing no_such_module raised ModuleNotFoundError"),
        ("no/such/file.py:make", "there is no file no/such/file.py"),
        (f"{__file__}:missing", "has no 'missing'; it has .*pick"),
    ],
)
def test_a_spec_that_names_nothing_says_so(spec, message):
    with pytest.raises(UsageError, match=message) as caught:
        EnvSource(spec).make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"scripted": {"dave": random_move}}, "unknown agent of .* 'dave'"),
        ({"roles": {"dave": "x"}}, "unknown agent"),
        ({"scored": ("dave",)}, "unknown agent"),
        ({"scripted": dict.fromkeys(("ann", "bob", "carol"), random_move)}, "every agent of"),
        ({"score_range": (1, 1)}, "score_range"),
    ],
)
def test_hooks_for_agents_that_are_not_there_are_refused(hooks, message):
    with pytest.raises(UsageError, match=message):
        TextEnv(Trade(), **hooks)


def test_observations_of_text_need_no_hook():
    message = [{"role": "user", "content": "hello"}]
    for shown in (
        "hello",
        message,
        {"messages": message},
        {"observation": "hello", "action_mask": [1]},
    ):
        assert chat(shown) == message
    with pytest.raises(UsageError, match="type ndarray as chat messages"):
        chat({"observation": np.zeros(3)})


def test_legal_moves_are_those_of_the_mask_and_the_space():
    cells, mask = Discrete(4, start=1), np.array([0, 1, 0, 1], np.int8)
    assert [is_legal(cell, cells, mask) for cell in range(6)] == [
        False, False, True, False, True, False,
    ]  # fmt: skip
    drawn = {random_action(cells, mask, key_rng("draw", i)) for i in range(30)}
    assert drawn == {2, 4}
    assert {random_action(cells, None, key_rng("draw", i)) for i in range(60)} == {1, 2, 3, 4}
    with pytest.raises(UsageError, match="allows no action"):
        random_action(cells, np.zeros(4), key_rng("draw"))
    box = Dict({"x": Box(0, 1, (2,))})
    first, second = (random_action(box, None, key_rng("draw", 1)) for _ in range(2))
    assert np.array_equal(first["x"], second["x"])
    assert is_legal(first, box)


@pytest.mark.parametrize(
    ("maker", "options", "remedy"),
    [
        ("trade", {}, ""),
        ("trade", {"end": "truncated"}, "the limit of the environment"),
        ("trade", {"max_steps": 2}, "max_steps=N"),
    ],
)
def test_episodes_that_are_all_cut_off_raise_an_alarm(maker, options, remedy):
    workflow = make_aec_workflow(f"{__name__}:{maker}", **options)
    played = [Episode(workflow, workflow.task.problem(index)) for index in range(3)]
    records = [record(play_with(episode, lambda turn: "one")) for episode in played]
    texts = [alarm.text for alarm in episode_alarms(records, Remedies())]
    assert [remedy in text for text in texts] == [True] * bool(remedy)
    for prefix in ("eval/", ""):
        row = {"step": 4, **role_metrics(records, prefix)}
        found = [one.text for one in silences([row], {"env": "x.py:make"})]
        assert found == texts


ROOT = Path(__file__).resolve().parents[3]


def played(file: Path) -> EpisodeRecord:
    """An episode of the environment in `file` in which free cells are taken in their order."""
    workflow = make_aec_workflow(f"{file}:make", illegal="end")
    episode = Episode(workflow, workflow.task.problem(0), "0")
    return record(
        play_with(episode, lambda turn: min(re.findall(r"\d", turn.messages[0]["content"])))
    )


def test_the_example_of_the_page_plays_to_its_end():
    pytest.importorskip("pygame", reason="PettingZoo's classic games need pygame: flowzoo[dev]")
    example = played(ROOT / "examples" / "tictactoe.py")
    assert 3 <= len(example.calls) <= 5
    assert abs(example.returns["player_1"]) == 1
    assert example.facts["illegal"] == 0
