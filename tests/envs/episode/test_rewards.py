"""Rewards of episodes: pay, credit rules, interim scores, rubrics, records."""

import hashlib
import json
import pickle
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from processes import run_python

from flowzoo.agents.evaluation.evaluate import record_from_json
from flowzoo.agents.evaluation.summary import has_pay, role_pay, summarize
from flowzoo.cli import main
from flowzoo.envs import (
    Ask,
    Episode,
    EpisodeRecord,
    Grade,
    InterimScore,
    Outcome,
    Payoffs,
    ResetTask,
    RoleScore,
    Rubric,
    UngradedError,
    Workflow,
    WorkflowError,
    make_env,
    make_workflow,
)
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.episode.recording import record
from flowzoo.envs.readers.judgments import judged_text, verdict_line
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import advance
from flowzoo.envs.workflow import FinishedEpisode
from flowzoo.errors import DataError, UsageError
from flowzoo.seeding import key_rng
from tests.envs.playing import opened, play_experts, play_lists


def played(name: str, task: str | None = None) -> WorkflowEnv:
    """An environment after an episode of sampled replies."""
    env = WorkflowEnv(make_workflow(name, task))
    env.reset(seed=3)
    for agent in env.agent_iter():
        over = env.terminations[agent] or env.truncations[agent]
        env.step(None if over else env.action_space(agent).sample())
    return env


@pytest.mark.parametrize(
    ("name", "task"), [("voting_v0", "math"), ("search_team_v0", None), ("writing_pair_v0", None)]
)
def test_plain_values_are_those_of_asdict(name, task):
    record = played(name, task).record()
    calls = tuple(
        replace(call, prompt_ids=(1, 2), output_ids=[3], logps=(-0.1,)) for call in record.calls
    )
    facts: dict[str, Any] = {**record.facts, "list": [1, {"a": (2, 3)}], "none": None}
    record = replace(record, calls=calls, facts=facts)
    values = asdict(record)
    assert values.pop("judgments") == ()  # left out where no judge was asked
    assert values.pop("pay") == {}  # and where no agent has pay of its own
    for call in values["calls"]:  # left out where there are none
        assert (call.pop("tools"), call.pop("fault"), call.pop("writers")) == ((), "", ())
    assert json.dumps(record.to_json()) == json.dumps(values)
    again = record_from_json(json.loads(json.dumps(record.to_json())))
    assert json.dumps(again.to_json()) == json.dumps(values)


@pytest.mark.parametrize(("options", "levels"), [({"level": "2-3"}, [2, 3]), ({}, [1, 1])])
def test_a_record_has_the_level_of_its_problem(options, levels):
    workflow = make_workflow("single_v0", "math", **options)
    for index, level in enumerate(levels):
        env = WorkflowEnv(workflow)
        env.reset(options={"index": index})
        for agent in env.agent_iter():
            env.step(None if env.terminations[agent] else "4")
        assert env.record().level == level


def test_the_mappings_of_plain_values_are_the_callers_own():
    record = played("voting_v0", "math").record()
    row = record.to_json()
    row["calls"][0]["parts"]["team"] = row["facts"]["chosen"] = row["returns"]["x"] = 7
    row["calls"][0]["messages"][0]["content"] = "changed"
    assert 7 not in (record.calls[0].parts["team"], record.facts["chosen"], len(record.returns))
    assert record.calls[0].messages[0]["content"] != "changed"


def test_a_hash_is_of_all_that_was_said_behind_kinds_and_lengths():
    env = played("voting_v0", "math")
    episode, record = env.episode, env.record()
    hasher = hashlib.blake2b(episode.workflow.spec_digest, digest_size=16)

    def feed(kind: str, text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        hasher.update(f"{kind}{len(raw)}:".encode() + raw)

    feed("p", episode.problem.id)
    feed("p", episode.problem.text)
    results = [hasher.hexdigest()]
    for entry in episode.log:
        feed(*(("r", entry) if isinstance(entry, str) else ("e", repr(tuple(entry)))))
        results.append(hasher.hexdigest())
    lengths = [turn.logged for turn in episode.turns]
    assert [call.state_hash for call in record.calls] == [results[length] for length in lengths]
    assert len(set(lengths)) == 2


def minus(episode: FinishedEpisode) -> float:
    """A reward of one's own: 3 for a right answer, -2 for a wrong one and -2.5 without any."""
    return 5.0 * episode.score - 2.0 - 0.5 * (episode.answer is None)


def test_what_could_not_be_read_is_paid_what_no_answer_is():
    env = WorkflowEnv(make_workflow("voting_v0", "math", episode_reward=minus))
    env.reset(seed=3)
    task, problem = env.workflow.task, env.episode.problem
    right = task.solve(problem, random.Random(0), True)
    for reply in (right, right, "who knows", "\\boxed{1}"):
        env.step(reply)
    record = env.record()
    assert record.score == 3.0
    assert [call.reward for call in record.calls] == [3.0, 3.0, -2.5, 3.0]
    assert [call.parts["team"] for call in record.calls] == [3.0, 3.0, -2.5, 3.0]
    assert [call.abstained for call in record.calls] == [False, False, True, False]
    assert list(record.returns.values()) == [3.0, 3.0, -2.5, 3.0]
    remaining = WorkflowEnv(
        make_workflow("voting_v0", "math", preset="paper", episode_reward=minus)
    )
    remaining.reset(seed=3)
    for reply in (right, right, "who knows", "\\boxed{1}"):
        remaining.step(reply)
    assert [call.reward for call in remaining.record().calls] == [3.0] * 4
    assert not any(call.abstained for call in remaining.record().calls)


def test_an_episode_that_was_cut_off_is_paid_what_no_answer_is():
    env = WorkflowEnv(make_workflow("eval_opt_v0", "math", episode_reward=minus), max_cycles=1)
    env.reset(seed=3)
    while not all(env.truncations.values()):
        env.step("#### 0\nREJECT")
    record = env.record()
    assert (record.truncated, record.score) == (True, -2.5)
    assert {call.reward for call in record.calls} == {-2.5}
    assert set(record.returns.values()) == {-2.5}


def test_a_reward_is_computed_once_an_episode():
    paid = iter([0.25, 0.75])
    env = WorkflowEnv(
        make_workflow("single_v0", "math", episode_reward=lambda episode: next(paid)),
        render_mode="ansi",
    )
    env.reset(seed=3)
    env.step("\\boxed{1}")
    assert env.last()[1] == 0.25
    env.infos["generator_0"]["parts"][0]["team"] = 7.0
    assert "score 0.25" in env.render()
    for results in (env.record(), env.record()):
        assert (results.score, results.returns) == (0.25, {"generator_0": 0.25})
        assert results.calls[0].parts["team"] == 0.25
        results.calls[0].parts["team"] = results.returns["generator_0"] = 7.0
    env.reset(seed=3)
    env.step("\\boxed{1}")
    assert env.record().score == 0.75


@dataclass(frozen=True)
class Bid(Workflow):
    """Two bidders in two rounds, paid as `payoffs` says."""

    name: ClassVar[str] = "bid_v0"
    roles: ClassVar[dict[str, int]] = {"bidder": 2}
    default_task: ClassVar[str] = "flowzoo.envs:ResetTask"
    score_range: ClassVar[tuple[float, float]] = (-4.0, 4.0)
    payoffs: Any = None
    score: float | None = None

    def play(self, problem):
        for _ in range(2):
            yield [Ask(f"bidder_{i}", "Bid.", str.strip) for i in range(2)]
        return Outcome(score=self.score, payoffs=self.payoffs)


@dataclass(frozen=True)
class Scored(Workflow):
    """Role scores of two roles, and a grade if `graded`."""

    name: ClassVar[str] = "scored_v0"
    roles: ClassVar[dict[str, int]] = {"maker": 2, "seller": 1}
    graded: bool = False

    def play(self, problem):
        made = yield [Ask(f"maker_{i}", "Make.") for i in range(2)]
        sold = yield Ask("seller_0", "Sell.")
        for reply, value in zip([*made, sold], (0.0, 0.5, 1.0), strict=True):
            yield RoleScore(reply, value)
        if self.graded:
            yield Grade(sold.text)
        return Outcome(score=0.75)


def paid_as(name: type[Workflow], **options: Any) -> EpisodeRecord:
    workflow = make_workflow(name, **options)
    turns = 2 if name is Bid else 1
    replies = {agent: ["x", "y"][:turns] for agent in workflow.agents}
    return play_lists(workflow, workflow.task.problem(0), replies)


def test_pay_may_be_negative_and_comes_with_the_last_call():
    payoffs = Payoffs({"bidder_0": -3.5, "bidder_1": 1.5})
    record = paid_as(Bid, payoffs=payoffs, credit="local")
    assert record.pay == record.returns == {"bidder_0": -3.5, "bidder_1": 1.5}
    assert record.score == (-1.0 + 4) / 8  # the mean return on the workflow's scale
    assert [call.reward for call in record.calls] == [-3.5, 1.5, -3.5, 1.5]
    assert [call.immediate for call in record.calls] == [0.0, 0.0, -3.5, 1.5]
    team = paid_as(Bid, payoffs=payoffs)
    assert team.pay == payoffs.returns
    assert {call.reward for call in team.calls} == {record.score}
    assert record_from_json(record.to_json()).pay == record.pay


def test_a_score_beside_pay_is_the_scripts():
    payoffs = Payoffs({"bidder_0": 100.0, "bidder_1": -2.0})
    assert paid_as(Bid, payoffs=payoffs, score=4.0).score == 1.0


@pytest.mark.parametrize(
    ("payoffs", "fault"),
    [
        (Payoffs({"bidder_0": 1.0}), r"must name every agent \(bidder_0, bidder_1\), got bidder_0"),
        (Payoffs({}), r"must name every agent .* got none"),
        (Payoffs({"bidder_0": 1.0, "bidder_1": float("nan")}), "pay of bidder_1 must be a finite"),
        (Payoffs({"bidder_0": "2", "bidder_1": 0.0}), "pay of bidder_0 must be a finite number"),
        (Payoffs({"bidder_0": 9.0, "bidder_1": 9.0}), "from -4 to 4, got 9.0: declare"),
        ({"bidder_0": 1.0, "bidder_1": 1.0}, r"payoffs must be Payoffs\(\{agent: pay\}\), got"),
    ],
)
def test_impossible_pay_is_the_scripts_error(payoffs, fault):
    with pytest.raises(WorkflowError, match=fault) as caught:
        paid_as(Bid, payoffs=payoffs)
    assert "bid_v0 (" in str(caught.value)
    assert "problem environment/train/0/0" in str(caught.value)


def test_role_scores_are_pay_where_nothing_is_graded():
    paid, truth = paid_as(Scored), paid_as(Scored, graded=True)
    assert paid.pay == {"maker_0": 0.0, "maker_1": 0.5, "seller_0": 1.0}
    assert truth.pay == {}
    assert role_pay([paid, paid]) == {"maker": [0.25], "seller": [1.0]}
    assert summarize([paid])["pay"] == {"maker": 0.25, "seller": 1.0}
    assert not has_pay([paid, truth])  # a script that grades at times says how good replies are
    assert "pay" not in summarize([paid, truth])
    assert not has_pay([paid_as(Scored, graded=True)])


def test_a_game_needs_no_questions():
    task = make_workflow(Bid).task
    assert isinstance(task, ResetTask)
    first, other = task.problem(0), task.problem(1)
    assert (first.text, first.gold) != (other.text, "")
    assert first.gold == ""
    assert first.rng().random() != other.rng().random()


RULES = """
def rule(parts):
    return 10 * parts["local"] - parts["team"]

def text(parts):
    return "x"

def nan(parts):
    return float("nan")

def shape(parts):
    return [1.0, 2.0]

def raises(parts):
    return parts["nothing"]

number = 3
"""


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cred.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)


def rewards(workflow: Any) -> list[float]:
    """Rewards of the calls of an episode of right experts."""
    return [call.reward for call in record(play_experts(workflow, workflow.task.problem(0))).calls]


def test_a_rule_given_by_name_pays_as_the_function_does():
    named = make_workflow("voting_v0", credit="cred.py:rule")
    given = make_workflow("voting_v0", credit=lambda parts: 10 * parts["local"] - parts["team"])
    assert rewards(named) == rewards(given) == [9.0] * 4
    assert named == make_workflow("voting_v0", credit="cred.py:rule")
    assert list(named.functions) == ["credit=cred.py:rule"]
    assert given.functions == {}


def test_its_text_is_a_setting_of_the_workflow():
    before = make_workflow("voting_v0", credit="cred.py:rule")
    Path("cred.py").write_text(RULES.replace("10", "20"))
    after = make_workflow("voting_v0", credit="cred.py:rule")
    assert before.spec_digest != after.spec_digest
    assert before != after
    assert before.functions != after.functions


def test_another_process_loads_it_by_its_name():
    workflow = make_workflow("voting_v0", credit="cred.py:rule")
    assert rewards(pickle.loads(pickle.dumps(workflow))) == [9.0] * 4
    Path("workflow.pickle").write_bytes(pickle.dumps(workflow))
    script = (
        'import pickle; workflow = pickle.load(open("workflow.pickle", "rb"))\n'
        'print(workflow.credit({"local": 1, "team": 1}))'
    )
    assert run_python(script) == "9\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text", "credit cred.py:text must return a number, got str 'x'"),
        ("nan", "credit cred.py:nan must return a finite number, got nan"),
        ("shape", r"credit cred.py:shape must return a number, got list \[1.0, 2.0\]"),
    ],
)
def test_a_rule_that_returns_no_number_is_named(name, message):
    with pytest.raises(UsageError, match=message):
        rewards(make_workflow("voting_v0", credit=f"cred.py:{name}"))


def test_what_raises_in_a_rule_says_whose_it_was():
    with pytest.raises(KeyError) as caught:
        rewards(make_workflow("voting_v0", credit="cred.py:raises"))
    assert caught.value.__notes__ == ["raised by credit cred.py:raises"]
    with pytest.raises(UsageError, match=r"credit .*test_rewards.*<lambda> must return a"):
        rewards(make_workflow("voting_v0", credit=lambda parts: None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"credit": "cred.py:rul"}, "credit cred.py:rul: cred.py has no 'rul'; it has"),
        ({"credit": "cred.py:number"}, "credit cred.py:number must be callable, got int"),
        ({"credit": "no.py:rule"}, "credit: there is no file no.py"),
        ({"credit": "loca"}, "unknown credit 'loca'.*Did you mean 'local'.*file.py:function"),
        ({"credit": 3}, "unknown credit 3"),
        ({"episode_reward": "cred.py:rule"}, "episode_reward: expected a function, got .*--reward"),
    ],
)
def test_what_is_no_rule_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        make_workflow("voting_v0", **options)


def test_an_evaluation_goes_on_with_the_same_rule_alone(capsys):
    arguments = ["eval", "voting", "--policy", "scripted:1", "--n", "2", "--out", "out"]
    arguments += ["--options", "credit=cred.py:rule"]
    assert main(arguments) == 0
    assert main(arguments) == 0
    assert list(json.loads(Path("out/run.json").read_text())["settings"]["functions"]) == [
        "credit=cred.py:rule"
    ]
    Path("cred.py").write_text(RULES.replace("10", "20"))
    assert main(arguments) == 2
    assert "other settings (functions)" in " ".join(capsys.readouterr().err.split())


LATE = {"orchestrator"}
"""Roles whose score is known only when others have answered."""


@dataclass(frozen=True)
class Says(Workflow):
    """Stands at what the writer says, once."""

    name: ClassVar[str] = "says_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}
    score: Any = 0.5

    def play(self, problem):
        yield Ask("writer_0", "write")
        yield InterimScore(self.score)
        reply = yield Ask("writer_0", "again")
        return Outcome(reply.text, 1.0)


def test_a_standing_holds_is_replayed_and_pays_nothing():
    workflow = Says(MathTask())
    episode = Episode(workflow, workflow.task.problem(0), "e")
    assert (episode.interim_score, episode.interim_phase) == (None, 0)
    episode.reply("writer_0", "x")
    for twin in (episode, episode.fork(), pickle.loads(pickle.dumps(episode))):
        assert (twin.interim_score, twin.interim_phase) == (0.5, 1)
    episode.reply("writer_0", "y")
    assert (episode.interim_score, episode.interim_phase) == (0.5, 1)
    assert [call.reward for call in record(episode).calls] == [1.0, 1.0]


@pytest.mark.parametrize("score", [1.5, -0.1, float("nan"), "high"])
def test_an_impossible_standing_is_the_scripts_error(score):
    workflow = Says(MathTask(), score=score)
    episode = Episode(workflow, workflow.task.problem(0))
    with pytest.raises(WorkflowError, match=r"InterimScore takes a number|not supported"):
        episode.reply("writer_0", "x")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("voting_v0", "math"),
        ("eval_opt_v0", "math"),
        ("orch_workers_v0", "math"),
        ("reasoner_tool_v0", "math"),
        ("search_team_v0", "search"),
        ("tool_planner_v0", "plan_path"),
        ("coder_tester_v0", "code"),
        ("code_pair_v0", "code"),
    ],
)
def test_role_scores_are_known_before_the_next_agent_is_asked(name, task):
    """So that tree sampling can value replies at once; and a standing is the score to come."""
    workflow = make_workflow(name, task)
    phases = 0
    for index in range(4):
        problem = workflow.task.problem(index)
        episode = Episode(workflow, problem, "e")
        rng = key_rng("standing", index)
        advance(episode)
        while not episode.done:
            for turn in episode.waiting:
                role = workflow.agents[turn.agent][0]
                right = rng.random() < 0.5
                episode.reply(
                    turn.agent, workflow.expert(role, turn.observe(), problem, rng, right)
                )
            advance(episode)
            phases += 1
            for turn in episode.turns:
                is_scored = turn.reply is None or turn.call in episode.role_scores
                late = workflow.agents[turn.agent][0] in LATE
                assert is_scored or (late and not episode.done), turn.agent
        if episode.interim_score is not None:
            assert episode.interim_score == pytest.approx(episode.finished().score)
    assert phases > 4


MINE = "def brief(episode):\n    return 1.0 if len(episode.replies) == 2 else 0.5\n"
FILE = """
[[criterion]]
name = "right"
weight = 2
function = "score"

[[criterion]]
name = "brief"
function = "{folder}/mine.py:brief"

[[criterion]]
name = "clear"
weight = 0.5
question = "Is it clear?"
scale = [1, 5]
role = "generator"

[[criterion]]
name = "honest"
weight = 0.5
question = "Is it honest?"
"""


def rubric(folder: Path, text: str = FILE) -> Rubric:
    (folder / "mine.py").write_text(MINE)
    path = folder / "rubric.toml"
    path.write_text(text.replace("{folder}", str(folder)))
    return Rubric(str(path))


def judge(messages: list[dict[str, str]]) -> str:
    """0.75 for clear, 0.25 for honest."""
    return verdict_line(messages, 0.75 if "clear" in messages[-1]["content"] else 0.25)


def test_a_rubric_is_the_weighted_mean_of_its_criteria(tmp_path):
    asked: list[str] = []

    def noted(messages: list[dict[str, str]]) -> str:
        asked.append(judged_text(messages))
        return judge(messages)

    reward = rubric(tmp_path)
    env = make_env("voting", n_votes=1, episode_reward=reward, judge=noted)
    env.reset(options={"index": 0}, seed=0)
    gold = env.unwrapped.episode.problem.gold
    env.step(f"\\boxed{{{gold}}}")
    env.step("\\boxed{1}")
    done = env.record()
    facts = {name: value for name, value in done.facts.items() if name.startswith("rubric/")}
    assert facts == {"rubric/clear": 0.75, "rubric/honest": 0.25}
    assert asked == [f"\\boxed{{{gold}}}", "\\boxed{1}"], "of the role, and the last one"
    assert done.score == pytest.approx((2 * 1 + 1 + 0.5 * 0.75 + 0.5 * 0.25) / 4)
    assert [(row.name, row.call) for row in done.judgments] == [("clear", 0), ("honest", 1)]
    again = pickle.loads(pickle.dumps(reward))
    assert again.criteria == reward.criteria
    (tmp_path / "mine.py").write_text(MINE + "\n")
    assert Rubric(reward.path).digest != reward.digest


def test_an_unreadable_verdict_is_no_reward(tmp_path):
    env = opened(
        make_env("single", episode_reward=rubric(tmp_path), judge=lambda messages: "Fine!")
    )
    with pytest.raises(UngradedError, match="verdict on criterion 'clear' could not be read"):
        env.step("\\boxed{1}")


class Quiet(Workflow):
    """A writer, and a critic who is never asked."""

    name = "quiet_v0"
    roles: ClassVar = {"writer": 1, "generator": 1}

    def play(self, problem):
        """One reply."""
        yield Ask("writer_0", "?")
        return Outcome(score=1.0)


def test_a_role_that_wrote_nothing_earns_nothing(tmp_path):
    text = FILE[FILE.index('[[criterion]]\nname = "clear"') :]
    env = opened(make_env(Quiet, episode_reward=rubric(tmp_path, text), judge=judge))
    env.step("Hello.")
    done = env.record()
    assert (done.score, len(done.judgments)) == (0.25 / 2, 1)
    with pytest.raises(UsageError, match="unknown role of criterion 'clear' 'generator'"):
        make_workflow("code_pair", "code", episode_reward=rubric(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected only tables"),
        ("weight = 1", "expected only tables"),
        ("[[criterion]]\nname = 3", "needs a name, got"),
        ("[[criterion]]\nname = 'a'", "exactly one of `function` and `question`"),
        (
            "[[criterion]]\nname = 'a'\nfunction = 'score'\nquestion = '?'",
            "exactly one of `function`",
        ),
        ("[[criterion]]\nname = 'a'\nquestoin = '?'", "unknown key .* Did you mean 'question'"),
        ("[[criterion]]\nname = 'a'\nquestion = '?'\nweight = 0", "above 0, got 0"),
        ("[[criterion]]\nname = 'a'\nquestion = '?'\nweight = -1", "of at least 0, got -1"),
        ("[[criterion]]\nname = 'a'\nquestion = '?'\nweight = nan", "expected a number"),
        ("[[criterion]]\nname = 'a'\nquestion = '?'\nscale = [1, 1]", "scale must be"),
        ("[[criterion]]\nname = 'a'\nquestion = '?'\nscale = 'wide'", "scale must be"),
        ("[[criterion]]\nname = 'a'\nfunction = 'score'\nscale = [0, 1]", "belong to a `question`"),
        ("[[criterion]]\nname = 'a'\nfunction = 'nowhere.py:f'", "there is no file nowhere.py"),
        ("[[criterion]]\nname = 'a'\nfunction = 3", "must be texts"),
        ("[[criterion]]\nname = 'a'\nfunction = 'score'\n" * 2, "a unique name"),
        ("[[criterion", "is not TOML"),
    ],
)
def test_what_a_file_may_not_say(tmp_path, text, message):
    with pytest.raises((UsageError, DataError), match=message):
        rubric(tmp_path, text)


def test_there_is_no_file():
    with pytest.raises(DataError, match=r"no.toml cannot be read: No such file"):
        Rubric("no.toml")


@pytest.mark.parametrize("value", ["2", "True", "None", "float('nan')"])
def test_functions_return_shares(tmp_path, value):
    reward = rubric(tmp_path, "[[criterion]]\nname = 'a'\nfunction = '{folder}/mine.py:brief'")
    (tmp_path / "mine.py").write_text(f"def brief(episode):\n    return {value}\n")
    reward = Rubric(reward.path)
    assert reward.judged == ()
    env = opened(make_env("single", episode_reward=reward))
    with pytest.raises(UsageError, match="criterion a: expected a number from 0 to 1"):
        env.step("\\boxed{1}")
