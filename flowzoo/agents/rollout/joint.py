"""Joint nodes as MAGRPO samples them: a tree of phases whose edges are joint actions.

At a node (a phase; a single ask is a phase of one) every agent gives G candidates. Every joint
action is a child, a fork in which the episode goes on, so every leaf is a finished episode. A row
is one (node, agent, candidate); its value is the mean over the joint actions that contain it.
Differs from CoMLRL (the released code of arXiv:2508.04652), which sums over combinations in its
cross mode and expands all children of every node.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.branches import (
    Choice,
    Phase,
    check_replayable,
    fork_with_replies,
    held_down,
    resolve_effects,
    sample_phase,
)
from flowzoo.agents.rollout.drivers import finished_record
from flowzoo.agents.rollout.engine import Play, PlayBatch, Response
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.agents.rollout.settings import JointSettings
from flowzoo.envs import Call, Episode, EpisodeRecord, Workflow
from flowzoo.seeding import key_rng

NodePath = tuple[int, ...]
"""Number of the child at every node, from the root on."""
RowKey = tuple[NodePath, int, int]
"""A row: path of the node, call number, candidate."""


class JointBranch(NamedTuple):
    """Path from the root to an episode."""

    path: NodePath = ()
    answers: Mapping[int, Response] = MappingProxyType({})
    """By call number."""
    row_keys: Mapping[int, RowKey] = MappingProxyType({})
    """The row of every call."""

    def then(self, phase: Phase, choice: Choice, number: int) -> "JointBranch":
        """One step further: a joint action, which is child `number` of its node."""
        chosen = zip(phase.turns, choice, strict=True)
        row_keys = {turn.call: (self.path, turn.call, candidate) for turn, candidate in chosen}
        answers = {**self.answers, **phase.chosen(choice)}
        return JointBranch((*self.path, number), answers, {**self.row_keys, **row_keys})


class JointLeaf(NamedTuple):
    """A finished episode."""

    record: EpisodeRecord
    row_keys: Mapping[int, RowKey]
    """The row of every call."""
    returns: Sequence[float]
    """Per call, the sum of its agent's rewards from it on."""


class JointNode(NamedTuple):
    """A phase with its children."""

    path: NodePath
    phase: Phase
    choices: Sequence[Choice]
    children: "Sequence[JointNode | JointLeaf]"


def path_text(path: NodePath) -> str:
    """A path in writing, `0.3.1`."""
    return ".".join(map(str, path))


def joint_actions(count: int, agents: int, most: int, draw: Sequence[int | str]) -> list[Choice]:
    """Joint actions of `agents` with `count` candidates each, every candidate in equally many."""
    # They come in blocks of `count`: in a block, each further agent's candidate is the first one's
    # plus a fixed offset, modulo `count`. The first block is the aligned one; the others are drawn
    # with the key `draw`, as many as `most` joint actions allow.
    blocks = count ** (agents - 1)
    further = min(most // count, blocks) - 1
    drawn = key_rng(*draw).sample(range(1, blocks), further) if further > 0 else []
    actions: list[Choice] = []
    for block in (0, *drawn):
        offsets = [0, *(block // count**power % count for power in range(agents - 1))]
        actions += [tuple((j + offset) % count for offset in offsets) for j in range(count)]
    return actions


def split_budget(budget: int, parts: int) -> list[int]:
    """`budget` in `parts` whole numbers that differ by at most one, the larger ones first."""
    return [budget // parts + (index < budget % parts) for index in range(parts)]


def returns_of(calls: Sequence[Call]) -> list[float]:
    """Per call, the team's share of it and what it and later calls of its agent earn themselves."""
    return [
        (call.reward if call.share is None else call.share + call.immediate)
        + sum(later.immediate for later in calls[index + 1 :] if later.agent == call.agent)
        for index, call in enumerate(calls)
    ]


def weighted_leaves(
    tree: JointNode | JointLeaf, weight: float = 1.0
) -> Iterator[tuple[float, JointLeaf]]:
    """The leaves below, each with its weight in the mean over children of means over children …"""
    if isinstance(tree, JointLeaf):
        yield weight, tree
        return
    for child in tree.children:
        yield from weighted_leaves(child, weight / len(tree.children))


def values_of(tree: JointNode | JointLeaf) -> dict[RowKey, float]:
    """Value of every row below."""
    row_values: dict[RowKey, float] = {}
    if isinstance(tree, JointLeaf):
        return row_values
    for child in tree.children:
        row_values |= values_of(child)
    for slot, turn in enumerate(tree.phase.turns):
        values: list[float] = []
        shares: list[float] = []
        silent: list[bool] = []
        for candidate in range(len(tree.phase.answers[slot])):
            below = [
                list(weighted_leaves(child))
                for choice, child in zip(tree.choices, tree.children, strict=True)
                if choice[slot] == candidate
            ]
            worth = [sum(w * leaf.returns[turn.call] for w, leaf in leaves) for leaves in below]
            paid = [
                sum(w * leaf.record.calls[turn.call].team_share for w, leaf in leaves)
                for leaves in below
            ]
            values.append(sum(worth) / len(worth))
            shares.append(sum(paid) / len(paid))
            silent.append(below[0][0][1].record.calls[turn.call].abstained)
        for candidate, value in enumerate(held_down(values, shares, silent)):
            row_values[tree.path, turn.call, candidate] = value
    return row_values


class JointRollout(Sampler):
    """Plays every job as a tree of joint actions.

    The records are the leaves, each a separate episode (`problem#sample/0.3.1`); a row belongs to
    the first leaf that contains it.
    """

    def __init__(
        self,
        workflow: Workflow,
        policy_map: PolicyMap,
        settings: JointSettings | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(workflow, policy_map, **rest)
        check_replayable(workflow)
        self.settings = settings or JointSettings()

    def play(self, workflow: Workflow, job: EpisodeJob) -> Play:
        """The play of one job; returns its `RolloutBatch`."""
        episode = Episode(workflow, job.problem, f"{job.key}/")
        yield from resolve_effects(self.policy_map, [episode])
        root = yield from self.grow(job, episode, self.settings.leaves, JointBranch())
        return self.sampled(job, root)

    def grow(
        self, job: EpisodeJob, episode: Episode, budget: int, joint_branch: JointBranch
    ) -> Play:
        """The tree below `episode`, which has no effects pending; returns a node or a leaf."""
        # A node with a budget of B leaves has at most min(G, B) candidates, and its children share
        # B evenly: with G = 4 and 16 leaves two phases branch, and later ones go on with one
        # candidate, instead of G^T leaves.
        if episode.done:
            done = finished_record(episode, joint_branch.answers)
            return JointLeaf(done, joint_branch.row_keys, returns_of(done.calls))
        count = min(self.settings.candidates, budget)
        key = (self.seed, job.problem.id, job.sample)
        path = path_text(joint_branch.path)
        phase = yield from sample_phase(self.policy_map, episode, key, count, (path,))
        most = count if self.settings.joint == "aligned" else budget
        choices = joint_actions(count, len(phase.turns), most, ("joint", *key, path))
        joint_branches = [
            joint_branch.then(phase, choice, number) for number, choice in enumerate(choices)
        ]
        branches = [
            fork_with_replies(episode, phase, choice, f"{job.key}/{path_text(further.path)}")
            for choice, further in zip(choices, joint_branches, strict=True)
        ]
        yield from resolve_effects(self.policy_map, branches)
        parts = zip(branches, split_budget(budget, len(choices)), joint_branches, strict=True)
        children = yield PlayBatch([self.grow(job, *part) for part in parts])
        return JointNode(joint_branch.path, phase, choices, children)

    def sampled(self, job: EpisodeJob, root: JointNode | JointLeaf) -> RolloutBatch:
        """The leaves, and every row once."""
        values = values_of(root)
        records: list[EpisodeRecord] = []
        rows: dict[RowKey, Call] = {}
        for _, leaf in weighted_leaves(root):
            calls: list[Call] = []
            for number, call in enumerate(leaf.record.calls):
                spot = leaf.row_keys[number]
                node = f"{job.key}/{path_text(spot[0])}"
                call = replace(call, node=node, candidate=spot[2], value=values[spot])
                calls.append(call)
                rows.setdefault(spot, call)
            records.append(replace(leaf.record, calls=tuple(calls)))
        return RolloutBatch(records, list(rows.values()))
