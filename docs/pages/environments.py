"""A page for every environment: its graph, its docstring, an episode that was played now, prompts.

The episode is the one that `flowzoo play NAME --policy scripted:0.8` shows: the first validation
problem, and scripted experts that do their job with probability 0.8. The graph has the turns of
the first problems, played at 0.5, so that loops and refusals happen.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from html import escape
from itertools import groupby
from pathlib import Path

from flowzoo.agents import PolicyMap, Request
from flowzoo.agents.specs import make_policy
from flowzoo.envs import WORKFLOWS, Episode, Reply, Workflow, make_workflow
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.recording import answered_turns, episode_rewards
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.render import facts_line, printable, remarks, verdict
from flowzoo.envs.tasks.task import get_problem
from pages.graphs import graph

POLICY = "scripted:0.8"
SEED = 0
EXAMPLES = "examples/games.py"
GAMES = {
    f"{cls.lower()}_v0": f"{Path(__file__).parents[2] / EXAMPLES}:{cls}"
    for cls in ("Throws", "Commons")
}
"""Workflows of the examples by name, as `file.py:Class`."""
DRAWN, HALF = 8, "scripted:0.5"
"""Episodes of a graph, and their policy."""


def environment_pages() -> dict[str, str]:
    """File name -> page."""
    pages = {}
    for name in (*WORKFLOWS, *GAMES):
        workflow = make_workflow(GAMES.get(name, name))
        episode = asyncio.run(played(workflow, POLICY))
        pages[f"{name}.md"] = page_of(name, workflow, episode)
    return pages


async def played(workflow: Workflow, policy: str, index: int = 0) -> Episode:
    """An episode of scripted experts on a validation problem, to its end."""
    policy_map = PolicyMap.shared(make_policy(policy, oracle=workflow), workflow.role_counts())
    problem = get_problem(workflow.task, index, "validation")
    episode = Episode(workflow, problem, f"{problem.id}#0")
    while not episode.done:
        if episode.effects:
            jobs = [(problem, effect) for effect in episode.effects]
            episode.resolve(resolve(workflow.task, jobs))
            continue
        for turn in episode.waiting:
            key = (SEED, problem.id, 0, turn.agent, turn.turn)
            role = workflow.agents[turn.agent][0]
            request = Request(key, turn.agent, role, turn.messages, problem.id)
            (completion,) = await policy_map.policy(turn.agent).generate([request])
            episode.reply(turn.agent, completion.text)
    return episode


def graph_of(workflow: Workflow) -> str:
    """The order of turns in some episodes, drawn."""
    episodes = []
    for index in range(DRAWN):
        turns = [turn for turn, _ in answered_turns(asyncio.run(played(workflow, HALF, index)))]
        phases = groupby(turns, key=lambda turn: turn.phase)
        episodes.append([tuple(turn.agent for turn in phase) for _, phase in phases])
    roles = list(workflow.role_counts())
    numbers = {agent: roles.index(role) for agent, (role, _) in workflow.agents.items()}
    return graph(episodes, numbers)


def page_of(name: str, workflow: Workflow, episode: Episode) -> str:
    """The page, in Markdown."""
    title, before, history = words_of(name, workflow)
    return "\n".join(
        [
            title,
            "",
            html_block(graph_of(workflow)),
            "",
            "Agents of a row are asked at the same time, and an arrow leads to those asked next.",
            before,
            "",
            "## Creation by name",
            registered(name, workflow),
            "",
            "## An episode",
            f"What `flowzoo play {word_of(name)} --policy {POLICY}` plays: scripted "
            f"experts that are right with probability {POLICY.partition(':')[2]}. What an agent "
            "was asked is behind its *asked*.",
            "",
            html_block(transcript(episode)),
            *prompts_of(workflow),
            "",
            history,
            "",
        ]
    )


def words_of(name: str, workflow: Workflow) -> tuple[str, str, str]:
    """The title of a page, what stands before the episode, and the history of its versions."""
    cls = type(workflow)
    if name in GAMES:
        return f"# {cls.__name__}", f"\n{inspect.getdoc(cls)}", ""
    docstring = inspect.getdoc(sys.modules[cls.__module__]) or ""
    title, _, text = docstring.partition("\n")
    before, mark, history = text.partition("\n## Version history")
    return title, before, f"{mark.strip()}{history}"


def word_of(name: str) -> str:
    """The name of a workflow in commands."""
    spec = GAMES.get(name)
    return f"{EXAMPLES}:{spec.rpartition(':')[2]}" if spec else name.rsplit("_", 1)[0]


def registered(name: str, workflow: Workflow) -> str:
    """Calls that make the environment by its registered name."""
    base, version = name.rsplit("_", 1)
    camel = "".join(part.capitalize() for part in base.split("_"))
    role = next(iter(workflow.role_counts()))
    if name in GAMES:
        named = f'workflow="{word_of(name)}"'
        lines = [
            f'pettingzoo.make("aec", "flowzoo/workflow-v0", {named})',
            f'gymnasium.make("flowzoo:flowzoo/Workflow-v0", {named}, role="{role}")',
        ]
        return "\n".join(["```python", *lines, "```"])
    lines = [f'pettingzoo.make("aec", "flowzoo/{base.replace("_", "-")}-{version}")']
    if workflow.simultaneous:
        lines.append(f'pettingzoo.make("parallel", "flowzoo/{base.replace("_", "-")}-{version}")')
    lines.append(f'gymnasium.make("flowzoo:flowzoo/{camel}-{version}", role="{role}")')
    return "\n".join(["```python", *lines, "```"])


def html_block(html: str) -> str:
    """HTML as it is; the caller has escaped it."""
    return f"{'`' * 12}{{raw}} html\n{html}\n{'`' * 12}"


def transcript(episode: Episode) -> str:
    """The episode in HTML: problem, replies with their prompts, what followed, and the verdict."""
    roles = list(episode.workflow.role_counts())
    parts = [f'<div class="transcript"><pre class="problem">{text_of(episode.problem.text)}</pre>']
    turns = answered_turns(episode)
    for turn, reply in turns:
        if turn.slot == 0 and turn.phase > 0:
            parts += remarks_of(episode, turn.phase - 1)
        number = roles.index(episode.workflow.agents[turn.agent][0])
        parts.append(turn_of(turn, reply, number))
    parts += remarks_of(episode, turns[-1][0].phase)
    good = "good" if episode_rewards(episode).score > 0 else "bad"
    parts.append(f'<pre class="verdict {good}">{text_of(verdict(episode))}</pre>')
    parts.append(f'<p class="facts">{text_of(facts_line(episode))}</p></div>')
    return "\n".join(parts)


def turn_of(turn: Turn, reply: Reply, number: int) -> str:
    """One reply, below the name of its agent, with the prompt folded away."""
    prompt = "\n\n".join(f"{message['role']}: {message['content']}" for message in turn.messages)
    read = "unreadable" if reply.strict is None else ""
    return (
        f'<div class="turn role-{number}"><p class="agent">{text_of(turn.agent)}'
        f'<span>phase {turn.phase}</span><span class="bad">{read}</span></p>'
        f"<details><summary>asked</summary><pre>{text_of(prompt)}</pre></details>"
        f"<pre>{text_of(turn.said)}</pre></div>"
    )


def remarks_of(episode: Episode, phase: int) -> list[str]:
    """Results of programs and searches after a phase."""
    return [f'<p class="remark">{text_of(line)}</p>' for line in remarks(episode, phase)]


def text_of(text: str) -> str:
    """Text as HTML shows it: escaped, long ones with their middle cut out."""
    return escape(printable(text))


def prompts_of(workflow: Workflow) -> list[str]:
    """The workflow's own texts, as agents read them."""
    if not workflow.prompts:
        return []
    fence = "`" * 8
    blocks = [
        f"`{key}`\n\n{fence}text\n{text}\n{fence}\n" for key, text in workflow.prompts.items()
    ]
    return [
        "",
        "## Prompts",
        "The workflow's own texts; what is in braces is filled in.",
        "",
        *blocks,
    ]
