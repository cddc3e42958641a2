"""Rubrics: what a file may say, what an episode earns, and verdicts that cannot be read."""

import pickle
from pathlib import Path
from typing import ClassVar

import pytest

from flowzoo.envs import Ask, Outcome, Rubric, UngradedError, Workflow, make_env, make_workflow
from flowzoo.envs.readers.judgments import judged_text, verdict_line
from flowzoo.errors import DataError, UsageError

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
    env = make_env("single", episode_reward=rubric(tmp_path), judge=lambda messages: "Fine!")
    env.reset(seed=0)
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
    env = make_env(Quiet, episode_reward=rubric(tmp_path, text), judge=judge)
    env.reset(seed=0)
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
    env = make_env("single", episode_reward=reward)
    env.reset(seed=0)
    with pytest.raises(UsageError, match="criterion a: expected a number from 0 to 1"):
        env.step("\\boxed{1}")
