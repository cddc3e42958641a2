"""Checks of workflows: interfaces, leaks and episodes.

Episodes can be repeated, forked, truncated and batched, and rewards add up. Agents do not see
replies of phase-mates, gold answers or grades.
"""

import contextlib
import io
import pickle
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flowzoo.envs.api.aec import Guard, WorkflowEnv
from flowzoo.envs.api.parallel import ParallelWorkflowEnv
from flowzoo.envs.api.solo import SoloEnv, own_agents
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.recording import record, state_hash
from flowzoo.envs.episode.turn import prompt_digest
from flowzoo.envs.external.workflow import ResetTask
from flowzoo.envs.script import Effect, Grade, GradeResult, Run, RunCase, RunResult
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.testing.playthrough import (
    HOSTILE,
    PLAYTHROUGHS,
    expert_roles,
    guard,
    pickle_bytes,
    play_out,
    problem_at,
    require,
    sampled_reply,
    strict_warnings,
)
from flowzoo.envs.testing.slow_replies import time_limit
from flowzoo.envs.testing.task_checks import check_moved
from flowzoo.envs.workflow import Workflow
from flowzoo.sandbox.program import CallTest, CheckTest, StdinTest
from flowzoo.seeding import key_digest, key_rng

STEP_S = 20.0  # most CPU seconds of this process for a step after a hostile reply


def check_api(workflow: Workflow, cycles: int = 200) -> None:
    """Run PettingZoo's tests, with warnings as errors.

    These are `api_test`, `seed_test` and `render_test`, and for simultaneous workflows
    `parallel_api_test` and `parallel_seed_test`.
    """
    from pettingzoo import test

    with strict_warnings(workflow), contextlib.redirect_stdout(io.StringIO()):
        test.api_test(guard(workflow), num_cycles=cycles)
        test.seed_test(lambda: guard(workflow), num_cycles=cycles)
        # The stub says `() -> Env`, but render_test passes the render mode by keyword.
        test.render_test(partial(guard, workflow))  # type: ignore[arg-type]
        if workflow.simultaneous:
            test.parallel_api_test(ParallelWorkflowEnv(workflow), num_cycles=60)
            test.parallel_seed_test(lambda: ParallelWorkflowEnv(workflow), num_cycles=60)


def check_solo(workflow: Workflow) -> None:
    """Run Gymnasium's `check_env` on the single-role view of every role that is asked.

    The rewards of its steps must add up to the returns of the role's agents.
    """
    from gymnasium.utils.env_checker import check_env

    for role in sorted(expert_roles(workflow)):
        env = SoloEnv(workflow, role=role)
        with strict_warnings(workflow):
            check_env(env, skip_render_check=True)
        env.reset(seed=0)
        paid, over, count = 0.0, False, 0
        while not over:
            reply = sampled_reply(workflow, "solo", role, count)
            _, reward, terminated, truncated, _ = env.step(reply)
            paid, over, count = paid + reward, terminated or truncated, count + 1
        returns = env.record().returns
        earned = sum(returns[agent] for agent in own_agents(workflow, role))
        require(abs(paid - earned) < 1e-9, f"the view of {role} paid {paid}, returns: {earned}")


def check_hostile(workflow: Workflow) -> None:
    """Check that hostile replies, from every agent or one role, are scored and never raise."""
    for role in (None, *workflow.role_counts()):
        for name, text in HOSTILE.items():
            env = guard(workflow)
            env.reset(seed=0)
            for number, agent in enumerate(env.agent_iter()):
                _, reward, terminated, truncated, _ = env.last()
                require(reward == reward and abs(reward) < 1e6, f"{name} reply: reward {reward}")
                hostile = role is None or workflow.agents[agent][0] == role
                reply = text if hostile else sampled_reply(workflow, "hostile", number)
                with time_limit(f"the step of {agent} after the hostile reply {name!r}", STEP_S):
                    env.step(None if terminated or truncated else reply)


def check_phase_leaks(workflow: Workflow) -> None:
    """Check that observations and infos within a phase do not depend on phase-mates' replies."""
    for number in range(PLAYTHROUGHS):
        for phase in _parallel_phases(workflow, number):
            first, second = (_phase_views(workflow, number, phase, text) for text in ("a", "b"))
            require(
                first == second, f"in phase {phase}, an observation depends on a phase-mate's reply"
            )


def _parallel_phases(workflow: Workflow, number: int) -> list[int]:
    env = WorkflowEnv(workflow)
    env.reset(seed=number)
    turns = play_out(env.episode, "leak", number).turns
    return sorted({turn.phase for turn in turns if turn.slot > 0})


def _phase_views(workflow: Workflow, number: int, phase: int, variant: str) -> list[str]:
    env = WorkflowEnv(workflow)
    env.reset(seed=number)
    views = []
    while not env.episode.done:
        turn = env.episode.waiting[0]
        if turn.phase > phase:
            break
        fixed = sampled_reply(workflow, "leak", number, turn.agent, turn.turn)
        if turn.phase == phase:
            views.append(f"{turn.agent}: {env.observe(turn.agent)} {env.infos[turn.agent]}")
            fixed = f"{variant} {fixed}"
        env.step(fixed)
    return views


def pin_result(workflow: Workflow, problem: Problem, effect: Effect, truth: random.Random) -> Any:
    """The result of an effect, replaced by a result from `truth` if it shows ground truth."""
    # Ground truth means grades, and runs on hidden tests of the problem.
    if isinstance(effect, Grade):
        return GradeResult(float(truth.random() < 0.5), "pinned")
    hidden = {id(test) for test in problem.meta.get("hidden", ())}
    if isinstance(effect, Run) and any(id(test) in hidden for test in effect.tests):
        share = truth.choice((0.0, 0.5, 1.0))  # all, some or none pass
        statuses = ["AC" if truth.random() < share else "WA" for _ in effect.tests]
        cases = tuple(RunCase(status, "pinned", "") for status in statuses)
        return RunResult("WA" if "WA" in statuses else "AC", cases)
    return resolve(workflow.task, [(problem, effect)], workflow.judge)[0]


def play_pinned(workflow: Workflow, problem: Problem, number: int, truth: random.Random) -> Episode:
    """Play an episode with replies by `number` and ground truth by `truth`."""
    episode = Episode(workflow, problem, "pinned")
    while not episode.done:
        if episode.effects:
            episode.resolve(
                [pin_result(workflow, problem, effect, truth) for effect in episode.effects]
            )
            continue
        for turn in episode.waiting:
            episode.reply(turn.agent, sampled_reply(workflow, "pinned", number, turn.call))
    return episode


def planted_meta(meta: Mapping[str, object], canary: str) -> dict[str, Any]:
    """`meta` with the canary in the worked solution, further gold answers and hidden tests."""
    planted = {**meta, "solution": f"worked {canary}"}
    planted |= {name: (canary,) for name in ("golds", "gold_ids") if name in meta}
    if "hidden" in meta:
        # In the problem's style, since a script may run them.
        called = (CallTest((canary,), canary), CheckTest(f"assert {canary!r}"))
        planted["hidden"] = called if meta.get("entry") else (StdinTest(canary, canary),)
    return planted


def check_gold_leaks(workflow: Workflow) -> None:
    """Check that no prompt contains or depends on the gold answer.

    Worked solutions, further accepted answers and hidden tests are also gold.
    """
    for number in range(PLAYTHROUGHS):
        prompts = []
        for canary in ("CANARY-7f3a", "CANARY-91bc"):
            problem = problem_at(workflow, number)
            planted = replace(problem, gold=canary, meta=planted_meta(problem.meta, canary))
            # Ground truth is pinned: a difference can only come from a script that reads the gold
            # answer.
            episode = play_pinned(workflow, planted, number, random.Random(number))
            for turn in episode.turns:
                for message in turn.messages:
                    leaked = canary in message["content"]
                    require(not leaked, f"{turn.agent} was shown the gold answer")
            prompts.append([prompt_digest(turn.messages) for turn in episode.turns])
        require(prompts[0] == prompts[1], "a prompt depends on the gold answer")


def check_truth_blindness(workflow: Workflow) -> None:
    """Check that the course and the answer of an episode do not depend on ground truth.

    Ground truth means grades and results on hidden tests.
    """
    for number in range(PLAYTHROUGHS):
        courses = []
        for seed in range(4):
            problem = problem_at(workflow, number)
            truth = key_rng("grades", number, seed)
            episode = play_pinned(workflow, problem, number, truth)
            asks = [(turn.agent, prompt_digest(turn.messages)) for turn in episode.turns]
            courses.append((asks, episode.finished().answer))
        same = all(course == courses[0] for course in courses)
        require(same, "the script's course or answer depends on grades (ground truth)")


ALONE = 20  # number of episodes that are played together and alone


def check_seeds(workflow: Workflow, episodes: int = 5) -> None:
    """Check that equal seeds give equal episodes, and different seeds different problems."""

    def trace(seed: int) -> list[Any]:
        env = guard(workflow)
        rows: list[object] = []
        for number in range(episodes):
            env.reset(seed=seed if number == 0 else None)
            for agent, (*seen, info) in _expert_turns(env, workflow, 0.5, number):
                rows.append((agent, *seen, repr(info)))
        return rows

    require(trace(1) == trace(1), "two runs with equal seeds differ")
    require(trace(1) != trace(2), "two runs with different seeds are equal")


def check_processes(workflow: Workflow) -> None:
    """Check that another process asks the same."""
    check_moved(workflow, prompt_digests)


def prompt_digests(workflow: Workflow) -> dict[str, str]:
    """Digests of the prompts of a few episodes."""
    episodes = [
        play_pinned(workflow, problem_at(workflow, number), number, random.Random(number))
        for number in range(ALONE)
    ]
    return {
        f"a prompt of episode {number}": key_digest(
            *(message["content"] for turn in episode.turns for message in turn.messages)
        ).hex()
        for number, episode in enumerate(episodes)
    }


def check_returns(workflow: Workflow, episodes: int = 20) -> None:
    """Check that rewards from `last()`, with dead steps, add up to each agent's return."""
    env = guard(workflow)
    for number in range(episodes):
        env.reset(seed=number)
        paid = dict.fromkeys(env.possible_agents, 0.0)
        for agent, (_, reward, *_) in _expert_turns(env, workflow, 0.7, number):
            paid[agent] += reward
        returns = env.record().returns
        require(paid == dict(returns), f"last() paid {paid}, the record says {dict(returns)}")


def _expert_turns(
    env: Guard, workflow: Workflow, skill: float, seed: int
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield agents with the values of `last()` while experts play the episode."""
    respond = workflow.responder(env.env.episode.problem, skill, seed)
    for agent in env.agent_iter():
        obs, _, terminated, truncated, _ = last = env.last()
        yield agent, last
        chat = obs["messages"] if obs else []
        is_over = terminated or truncated
        env.step(None if is_over else respond(workflow.agents[agent][0], chat))


def check_budget(workflow: Workflow) -> None:
    """Check that `max_cycles` limits the asks of an agent; longer episodes get reward 0."""
    problem = problem_at(workflow, 0)
    needed = _most_asks(play_out(Episode(workflow, problem), "budget"))
    for limit in range(1, needed + 1):
        episode = play_out(Episode(workflow, problem, max_cycles=limit), "budget")
        asks = _most_asks(episode)
        require(asks <= limit, f"an agent was asked {asks} times under max_cycles={limit}")
        short = limit < needed
        require(episode.truncated == short, f"truncated is {not short} under max_cycles={limit}")
        paid = set(record(episode).returns.values())
        require(not short or paid == {0.0}, f"a truncated episode paid {paid}")


def _most_asks(episode: Episode) -> int:
    return max(Counter(turn.agent for turn in episode.turns).values(), default=0)


def check_forks(workflow: Workflow) -> None:
    """Check that at every step forks and pickles have equal prompts and states and end equally.

    An impure script fails here, since its replay differs.
    """
    pickle_bytes(workflow)
    env = WorkflowEnv(workflow)
    env.reset(seed=3)
    copies: list[WorkflowEnv] = []
    while env.agents:
        state = state_hash(env.episode)
        thawed = pickle.loads(pickle.dumps(env))  # noqa: S301 - made one line before
        for twin in (env.fork(), thawed):
            require(state_hash(twin.episode) == state, "a copy has another state hash")
            original = [prompt_digest(turn.messages) for turn in env.episode.waiting]
            forked = [prompt_digest(turn.messages) for turn in twin.episode.waiting]
            require(original == forked, "a copy has other prompts")
            require(twin.agent_selection == env.agent_selection, "a copy selects another agent")
            require(twin.last() == env.last(), "last() of a copy differs")
            copies.append(twin)
        env.step(_forked_reply(env))
    final = record(env.episode)
    for twin in copies:
        while twin.agents:
            twin.step(_forked_reply(twin))
        require(record(twin.episode) == final, "a copy with the same replies ended differently")


def _forked_reply(env: WorkflowEnv) -> str | None:
    if env.episode.done:
        return None
    return sampled_reply(env.workflow, "fork", env.episode.waiting[0].call)


def check_isolation(workflow: Workflow, episodes: int = 200) -> None:
    """Advance many episodes in random order, with their effects in shared batches.

    No problem's text may reach another's prompts, and an episode must end as it does alone.
    """
    problems = [_mark(problem_at(workflow, index), index) for index in range(episodes)]
    finished = [Episode(workflow, problem, str(number)) for number, problem in enumerate(problems)]
    _move_together(finished, random.Random(0))
    require(
        isinstance(workflow.task, ResetTask) or any(map(_shows_problem, finished)),
        "no prompt has the text of the problem: write self.task.prompt(problem) into one, or, for "
        'a game without a question, default_task = "flowzoo.envs:ResetTask" into the class',
    )
    for episode in finished:
        marker = _marker(episode.key)
        for turn in episode.turns:
            for message in turn.messages:
                rest = message["content"].replace(marker, "")
                require("marker-" not in rest, f"{turn.agent} saw text of another episode")
    for episode in finished[:ALONE]:
        alone = Episode(workflow, episode.problem, episode.key)
        _move_together([alone], random.Random(1))
        require(record(alone) == record(episode), "an episode ends differently among others")


def _shows_problem(episode: Episode) -> bool:
    text = f"({_marker(episode.key)})"  # in parentheses it is no part of a reply
    return any(text in message["content"] for turn in episode.turns for message in turn.messages)


def _move_together(episodes: list[Episode], rng: random.Random) -> None:
    alive = list(episodes)
    while alive:
        few = rng.sample(alive, min(len(alive), 16))
        jobs = [(e, (e.problem, effect)) for e in few for effect in e.effects]
        if jobs:
            workflow = few[0].workflow
            results = resolve(workflow.task, [job for _, job in jobs], workflow.judge)
            for episode in few:
                own_results = [r for (of, _), r in zip(jobs, results, strict=True) if of is episode]
                if own_results:
                    episode.resolve(own_results)
        for episode in few:
            if episode.waiting:
                turn = rng.choice(episode.waiting)
                text = sampled_reply(episode.workflow, episode.key, turn.call)
                episode.reply(turn.agent, f"{_marker(episode.key)} {text}")
        alive = [episode for episode in alive if not episode.done]


def _marker(key: str | int) -> str:
    return f"marker-{key}-end"


def _mark(problem: Problem, number: int) -> Problem:
    return replace(problem, text=f"{problem.text} ({_marker(number)})")
