"""Judges in rollouts: batches, the cache, what a script gets, records, and replays without them."""

import asyncio
import json
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from endpoint import chat, serving
from policies import Replies
from processes import run_python

from flowzoo.agents import Completion, PolicyMap, Request, Sampling, specs
from flowzoo.agents.answers import AnswerCache
from flowzoo.agents.evaluation.evaluate import EvaluationDirectory, evaluate, record_from_json
from flowzoo.agents.evaluation.summary import judge_summary, kappa, summarize
from flowzoo.agents.evaluation.usage import Budget, BudgetError, Meter, Price
from flowzoo.agents.judge import JudgePolicy
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.settings import TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.cli import main
from flowzoo.commands import policies as policies_of_commands
from flowzoo.commands.policies import PolicyOptions, open_policy_map
from flowzoo.envs import (
    Ask,
    EpisodeRecord,
    Grade,
    Judge,
    Outcome,
    Workflow,
    WorkflowError,
    make_env,
    make_workflow,
)
from flowzoo.envs.episode.recording import record
from flowzoo.envs.readers.judgments import judged_text, scripted_judge, verdict_line
from flowzoo.envs.records import Usage
from flowzoo.envs.testing import check_workflow
from flowzoo.errors import DataError, UsageError


class Pick(Workflow):
    """Two writers; the judge's favorite is the answer, the first where none is readable."""

    name = "pick_v0"
    roles: ClassVar = {"writer": 2}
    asks_judge: ClassVar = True

    def play(self, problem):
        """Grades are mixed with the questions, to come back in their places."""
        prompt = self.task.prompt(problem)
        drafts = yield [Ask(f"writer_{n}", prompt, self.task.answer) for n in range(2)]
        grade, first, second, other = yield [
            Grade(drafts[0].strict, of=drafts[0]),
            *(Judge(draft, "Is it right?", (0, 10), "right") for draft in drafts),
            Grade(drafts[1].strict, of=drafts[1]),
        ]
        scores = [first.score, second.score]
        best = int((scores[1] or 0.0) > (scores[0] or 0.0))
        facts = {"scores": scores, "best": best}
        return Outcome(drafts[best].strict, (grade, other)[best].score, facts)


class Silent(Pick):
    """Yields Judge without saying so."""

    asks_judge: ClassVar = False


class Named(Pick):
    """Has a role of the name that the judge's policy has."""

    roles: ClassVar = {"writer": 2, "judge": 1}


class Length(Replies):
    """A judge who likes long replies and cannot read those with a 7."""

    def __init__(self, batching: Any = "static", **fields: Any) -> None:
        super().__init__(lambda request: Completion(length(request), **fields), "length", batching)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def length(request: Request) -> str:
    text = judged_text(request.messages)
    return "Hm." if "7" in text else verdict_line(request.messages, min(1.0, len(text) / 50))


PICK = make_workflow(Pick)
JOBS = [EpisodeJob(PICK.task.problem(index)) for index in range(12)]


def policies(judge: Any) -> PolicyMap:
    return PolicyMap({"writer": ScriptedPolicy(PICK, 0.6)}).with_judge(judge)


def played(judge: Any, **options: Any) -> list[EpisodeRecord]:
    return Rollout(PICK, policies(judge), **options).run(JOBS)


def cached(policy: Any, path: Path, identity: str = "length") -> JudgePolicy:
    return JudgePolicy("judge", lambda: policy, identity=lambda: identity, cache=path)


def test_conformance_with_a_judge_of_the_checks():
    check_workflow(PICK)


def test_verdicts_of_all_episodes_are_one_batch_and_equal_in_every_order():
    judge = Length()
    records = played(judge)
    assert judge.sizes == [24]
    assert records == played(Length("stream"), deterministic=False, in_flight=3)
    scores = [score for row in records for score in row.facts["scores"]]
    assert None in scores, "unreadable verdicts come as None"
    summary = judge_summary(records)
    assert summary["unreadable"] == scores.count(None)
    assert summary["verdicts"] == len(scores)
    readable = [score for score in scores if score is not None]
    assert summary["score"] == pytest.approx(sum(readable) / len(readable))
    truths = [call.role_score for row in records for call in row.calls]
    pairs = [(s >= 0.5, t == 1) for s, t in zip(scores, truths, strict=True) if s is not None]
    assert summary["agreement"] == sum(a == b for a, b in pairs) / len(pairs)
    assert summarize(records)["judge"] == summary
    assert judge_summary([]) == {}
    assert kappa(0.75, 0.5, 0.5) == "0.50"
    assert kappa(1.0, 1.0, 1.0) == "undefined"


def test_records_hold_prompts_and_verdicts_and_come_back_from_json():
    (first, *_) = records = played(Length())
    assert [judgment.call for judgment in first.judgments] == [0, 1]
    assert judged_text(first.judgments[0].messages) == first.calls[0].reply
    assert first.judgments[0].truth == first.calls[0].role_score
    text = json.dumps([row.to_json() for row in records])
    assert [record_from_json(row) for row in json.loads(text)] == records


def test_the_function_of_an_environment_judges_and_replays_need_none():
    asked: list[str] = []

    def judge(messages: list[dict[str, str]]) -> str:
        asked.append(judged_text(messages))
        return verdict_line(messages, 0.7)

    env = make_env(PICK.__class__, judge=judge)
    env.reset(seed=3)
    for reply in ("\\boxed{1}", "\\boxed{2}"):
        env.step(reply)
    assert asked == ["\\boxed{1}", "\\boxed{2}"]
    episode = env.unwrapped.episode
    assert episode.finished().facts["scores"] == pytest.approx([0.7, 0.7])
    assert record(episode.fork()) == record(episode)
    object.__setattr__(episode.workflow, "judge", None)
    assert record(pickle.loads(pickle.dumps(episode))) == record(episode)
    assert len(asked) == 2
    judged = make_workflow(Pick, judge=scripted_judge)
    alone = Rollout(judged, PolicyMap({"writer": ScriptedPolicy(PICK, 0.6)})).run(JOBS[:3])
    assert all(score in (0.0, 0.5, 1.0) for row in alone for score in row.facts["scores"])


@pytest.mark.parametrize("cut", [{"finish": "length"}, {"shortened": 5}])
def test_a_verdict_of_a_cut_prompt_or_reply_is_unreadable(cut):
    assert {score for row in played(Length(**cut)) for score in row.facts["scores"]} == {None}


def test_trees_ask_for_every_branch():
    settings = TreeSettings(candidates=3, value="rollout")
    judge = Length()
    batch = TreeRollout(PICK, policies(judge), settings).sample(JOBS[:4])
    assert len(batch.rows) == 4 * 2 * 3
    # Branches: the pair of first candidates, two others a writer, and perhaps the one executed.
    assert 4 * 5 * 2 <= sum(judge.sizes) <= 4 * 6 * 2


# -- the cache ---------------------------------------------------------------------------------


def test_equal_questions_are_asked_once_and_never_again(tmp_path):
    judge, path = Length(), tmp_path / "a" / "judge.sqlite"
    records = played(cached(judge, path))
    assert judge.sizes[0] < 24, "equal replies to one problem are one question"
    again = Length()
    assert played(cached(again, path)) == records
    assert again.sizes == []
    played(cached(again, path, identity="another model"))
    sampled = JudgePolicy(
        "judge", lambda: again, identity=lambda: "length", cache=path, sampling=Sampling(0.5)
    )
    played(sampled)
    assert again.sizes == judge.sizes * 2
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=r"judge.sqlite is no cache .*move the file away"):
        played(cached(again, path))


def test_processes_share_the_cache_and_the_first_reply_stands(tmp_path):
    path = tmp_path / "judge.sqlite"
    program = (
        "import sys; from pathlib import Path; from flowzoo.agents.answers import AnswerCache; "
        "AnswerCache(Path(sys.argv[1])).put('k', '\\ud800 first')"
    )
    run_python(program, str(path))

    def add(number: int) -> str:
        cache = AnswerCache(path)
        cache.put("k", "late")
        cache.put("n", number)
        return cache.get("n")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(add, range(16)))) == 1
    assert AnswerCache(path).get("k") == "\ud800 first"
    assert AnswerCache(path).get("other") is None


def test_a_verdict_that_a_request_s_limits_cut_is_not_the_one_of_others(tmp_path):
    def reply(request: Request) -> Completion:
        cut = request.max_tokens or request.max_prompt
        return Completion("Sc", finish="length") if cut else Completion("Score: 1")

    asked, messages = Replies(reply), [{"role": "user", "content": "Is it right?"}]
    judge = cached(asked, tmp_path / "judge.sqlite")

    def verdict(**limits: int) -> str:
        request = Request(("judge", "x"), "judge", "judge", messages, **limits)
        return asyncio.run(judge.generate([request]))[0].text

    for _ in range(2):
        assert verdict(max_tokens=2) == verdict(max_prompt=9) == "Sc"
        assert verdict() == "Score: 1"
    assert len(asked.requests) == 3
    limits: list[tuple[int | None, int | None]] = [(None, 2), (9, None), (None, None), (9, 2)]
    earlier = [judge.earlier_replies([messages], *each)[0] for each in limits]
    assert [done and done.text for done in earlier] == ["Sc", "Sc", "Score: 1", None]


def test_a_judge_may_be_an_endpoint_with_a_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path))
    endpoints, prices = tmp_path / "endpoints.toml", tmp_path / "prices.toml"
    prices.write_text("judge-model = { input = 1, output = 1 }")
    judge = ["--policy", "scripted:0.5", "judge=openai:judge-model@fast"]
    files = ["--endpoints", str(endpoints), "--prices", str(prices)]
    args = ["eval", f"{__file__}:Pick", *judge, *files, "--n", "3", "--json"]
    with serving() as first, serving() as second:
        for server in (first, second):
            server.answer = lambda body, count: chat(verdict_line(body["messages"], 0.5))
        for server in (first, first, second):  # another server is asked again
            endpoints.write_text(f'[fast]\nurl = "{server.url}"')
            assert main(args) == 0
            usage = json.loads(capsys.readouterr().out.splitlines()[-2])["usage"]
            assert usage["judge"]["cost"] == pytest.approx(usage["judge"]["calls"] * 10 / 1e6)
        assert len(first.seen) == len(second.seen) == usage["judge"]["calls"]
        assert {(body["model"], body["temperature"]) for body in first.seen} == {("judge-model", 0)}


# -- messages ----------------------------------------------------------------------------------


def test_what_is_missing_is_said_before_anything_is_played():
    writer = PolicyMap({"writer": ScriptedPolicy(PICK)})
    with pytest.raises(UsageError, match=r"asks a judge, and no policy is one: add --policy judge"):
        Rollout(PICK, writer)
    env = make_env(Pick)
    env.reset(seed=0)
    env.step("1")
    with pytest.raises(UsageError, match=r"env\(judge=FUNCTION\)"):
        env.step("2")
    with pytest.raises(UsageError, match="has a role named 'judge'"):
        make_workflow(Named)
    with pytest.raises(UsageError, match="single_v0 does not use a judge"):
        make_workflow("single", judge=scripted_judge)
    with pytest.raises(UsageError, match="a judge is a policy: --policy judge=POLICY"):
        make_workflow(Pick, judge="openai:x@http://y")
    env = make_env(Pick, judge=lambda messages: None)
    env.reset(seed=0)
    env.step("1")
    with pytest.raises(UsageError, match="`judge` must return a str, got NoneType"):
        env.step("2")


def bad(*question: Any) -> type[Pick]:
    class Bad(Pick):
        def play(self, problem):
            draft = yield Ask("writer_0", "?")
            yield Judge(draft, *question)

    return Bad


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Silent, "set `asks_judge = True`"),
        (bad(" "), "Judge takes a question and scale"),
        (bad("?", (1, 0)), "Judge takes a question and scale"),
        (bad("?", (0, 1 / 3)), "at most six digits"),
        (bad("?", (0, float("inf"))), "at most six digits"),
        (bad(3), r"Judge\(question=...\) takes str, got int"),
    ],
)
def test_wrong_questions(kind, message):
    workflow = make_workflow(kind)
    policy_map = PolicyMap({"writer": ScriptedPolicy(PICK)}).with_judge(Length())
    with pytest.raises(WorkflowError, match=message):
        Rollout(workflow, policy_map).run(JOBS[:1])


def test_commands(tmp_path, capsys):
    name = f"{__file__}:Pick"
    judge = ["--policy", "scripted:0.5", "judge=scripted:1"]
    out = tmp_path / "results"
    assert main(["eval", name, *judge, "--n", "5", "--out", str(out), "--lengths", "judge=/9"]) == 0
    printed = capsys.readouterr().out
    assert "judge: 10 verdicts, 0 unreadable; agrees with the role score on 100.0 % of 10" in (
        " ".join(printed.split())
    )
    protocol = json.loads((out / "summary.json").read_text())["protocol"]
    assert protocol["policies"]["judge"] == "judge (scripted:1)"
    assert main(["play", name, *judge]) == 0
    assert "judge on writer_1, right: " in capsys.readouterr().out
    assert main(["eval", name, "--policy", "scripted:0.5"]) == 2
    assert "--policy judge=POLICY" in capsys.readouterr().err
    assert main(["eval", "single", *judge]) == 2
    assert "this one has none" in capsys.readouterr().err


def test_a_budget_counts_the_tokens_of_a_judge_and_goes_on_where_it_stopped(tmp_path):
    problems = [job.problem for job in JOBS]
    asked = Length(usage=Usage(100, 10))  # tokens of a prompt and of a reply
    folder = tmp_path / "evaluation"

    def evaluation(budget: Budget, cache: str = "a") -> tuple[Meter, dict[str, Any]]:
        judge = JudgePolicy("judge", lambda: asked, cache=tmp_path / cache, sampling=Sampling(0.0))
        meter = Meter({"judge": Price("m", 2.0, 5.0)}, budget)
        with closing(EvaluationDirectory(folder, {})) as store:
            return meter, evaluate(PICK, policies(judge), problems, store=store, meter=meter)[1]

    meter, summary = evaluation(Budget())
    questions = sum(asked.sizes)
    assert 0 < questions < 24
    assert meter.tokens == 110 * questions
    assert meter.cost == pytest.approx(questions * (100 * 2 + 10 * 5) / 1e6)
    judge = {"calls": questions, "prompt_tokens": 100 * questions, "output_tokens": 10 * questions}
    assert summary["usage"]["judge"] == judge | {"cost": pytest.approx(meter.cost)}
    assert summary["usage"]["cost"] == summary["usage"]["judge"]["cost"]
    # The same from episodes and verdicts on disk, without a question.
    assert evaluation(Budget())[1]["usage"] == summary["usage"]
    assert sum(asked.sizes) == questions
    with pytest.raises(UsageError, match="earlier verdicts are not in its cache any more"):
        evaluation(Budget(tokens=10**9), "other")
    folder = tmp_path / "limited"
    problems = problems[:1]
    evaluation(Budget(tokens=10**9))
    problems = [job.problem for job in JOBS]
    for budget in (Budget(tokens=100), Budget(cost=1e-5)):
        with pytest.raises(BudgetError):
            evaluation(budget)
    assert sum(asked.sizes) == questions


def test_a_budget_refuses_a_judge_that_counts_no_tokens(tmp_path):
    class Silent(Length):
        sampling = Sampling(0.0)

    with pytest.raises(UsageError, match="does not count tokens"):
        evaluate(PICK, policies(Silent()), [JOBS[0].problem], meter=Meter({}, Budget(tokens=9)))


def test_the_engine_of_a_judge_has_its_share_of_the_cache(monkeypatch):
    sizes = []

    def make_policy(spec: str, *, engine_memory: float, **options: Any) -> Replies:
        sizes.append(engine_memory)
        return Replies()

    for module in (specs, policies_of_commands):
        monkeypatch.setattr(module, "make_policy", make_policy)
    options = PolicyOptions(("pocket", "judge=pocket"), engine="vllm", engine_memory=1.0)
    with open_policy_map(PICK, options, seed=0):
        assert sizes == [0.5, 0.5]


def test_the_table_has_the_tokens_of_the_judge(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prices = tmp_path / "prices.toml"
    name = f"{__file__}:Pick"
    line = ["eval", name, "--policy", "scripted:0.5", "judge=pocket", "--n", "2"]
    line += ["--prices", str(prices), "--max-cost", "1"]
    prices.write_text("", encoding="utf-8")
    assert main(line) == 2
    assert "unknown model in the price file" in capsys.readouterr().err
    prices.write_text('"pocket" = { input = 1.0, output = 1.0 }', encoding="utf-8")
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert re.search(r"judge +[1-4] ", printed)
    assert re.search(r"cost \$0\.\d+: .*judge \$0\.00", printed)
