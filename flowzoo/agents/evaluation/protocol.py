"""Protocol of a measurement: figures are comparable if their protocols are equal."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flowzoo.agents.policy import Policy
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.envs import Problem, Workflow
from flowzoo.envs.script import JUDGE
from flowzoo.errors import UsageError
from flowzoo.provenance import grader_digest
from flowzoo.seeding import key_digest

SAME = ("task", "split", "problems", "problem_set")
"""Fields that two evaluations must share to be comparable at all."""
READINGS = {"paper": "lenient", "published": "published"}
"""Rules by which replies are read, by preset; others: strict."""


def reading_of(workflow: Workflow) -> str:
    """The rule by which replies are read."""
    return READINGS.get(workflow.preset, "strict")


def problem_fields(workflow: Workflow, problems: Sequence[Problem]) -> dict[str, Any]:
    """The fields of `SAME`."""
    return {
        "task": workflow.task.name,
        "split": "+".join(sorted({problem.split for problem in problems})),
        "problems": len(problems),
        "problem_set": problem_set(problems),
    }


def problem_set(problems: Sequence[Problem]) -> str:
    """A hash of the problems' names, texts and gold answers, in their order."""
    parts = (part for problem in problems for part in (problem.id, problem.text, problem.gold))
    return key_digest(*parts).hex()[:12]


def decoding(policy: Policy) -> dict[str, Any]:
    """Decoding of a policy: `greedy`, or temperature, top_p and top_k; empty for a script.

    Also its longest reply, switch for thoughts, hash of the chat template and number format, if it
    has them.
    """
    fields: dict[str, Any] = {}
    sampling = getattr(policy, "sampling", None)
    if sampling is not None:
        fields["decoding"] = "greedy" if sampling.temperature == 0 else "sampled"
        if sampling.temperature > 0:
            fields |= {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
        fields["max_tokens"] = sampling.max_tokens
    for name in ("thinking", "template_id", "engine_dtype"):
        if getattr(policy, name, None) is not None:
            fields[name] = getattr(policy, name)
    return fields


def protocol_of(
    workflow: Workflow,
    policy_map: PolicyMap,
    problems: Sequence[Problem],
    *,
    samples: int,
    seed: int,
) -> dict[str, Any]:
    """The protocol of an evaluation, as plain values.

    Returns:
        `problem_set` and `prompts` are hashes, `samples` episodes per problem, `reading` is
        `strict`, or `lenient` and `published` under the presets "paper" and "published";
        `score_range` has the scores that are shown as 0 and 100 %; `grader` is the digest of the
        code that judges, `examples` the number of worked examples by role; `policies` and `lengths`
        (of prompt and reply) are by role or agent, `decoding` by policy.
    """
    names = [*policy_map.entries, *([JUDGE] if policy_map.judge else [])]
    policies = {name: policy_map.policy(name) for name in names}
    budgets = {name: policy_map.lengths(name) for name in policies}
    return {
        "workflow": workflow.name,
        **problem_fields(workflow, problems),
        "samples": samples,
        "seed": seed,
        "reading": reading_of(workflow),
        "score_range": list(workflow.score_range),
        "grader": grader_digest(),
        "prompts": workflow.prompts_id,
        "examples": {name: len(chat) // 2 for name, chat in workflow.examples},
        "settings": {**workflow.spec},
        "policies": {name: policy.name for name, policy in policies.items()},
        "decoding": {policy.name: decoding(policy) for policy in policies.values()},
        "lengths": {name: [entry.prompt, entry.reply] for name, entry in budgets.items()},
    }


def protocol_line(protocol: Mapping[str, Any]) -> str:
    """The protocol in one line, for people: all that changes a score."""
    low, high = protocol.get("score_range", (0, 1))
    budgets = list(protocol.get("lengths", {}).values())
    limits = [
        f"{part} <= {'/'.join(map(str, tokens))} tokens"
        for index, part in enumerate(("prompt", "reply"))
        if (tokens := sorted({budget[index] for budget in budgets if budget[index] is not None}))
    ]
    examples = sorted(set(protocol.get("examples", {}).values()))
    decodings = protocol["decoding"].values()
    parts = (
        *([protocol["published"]] if "published" in protocol else []),
        *([] if (low, high) == (0, 1) else [f"scores {low:g} to {high:g} as 0 to 100 %"]),
        f"{protocol['split']}, {protocol['problems']} problems ({protocol['problem_set'][:6]})",
        f"{protocol['samples']} per problem",
        *sorted({_sampling(way) for way in decodings if way.get("decoding")}),
        *limits,
        *sorted({way["engine_dtype"] for way in decodings if "engine_dtype" in way}),
        *([f"{'/'.join(map(str, examples))} examples"] if examples else []),
        protocol["reading"],
        *([f"grader {protocol['grader']}"] if "grader" in protocol else []),
        f"seed {protocol['seed']}",
        f"prompts {protocol['prompts']}",
    )
    return ", ".join(parts)


def _sampling(way: Mapping[str, Any]) -> str:
    if way["decoding"] == "greedy":
        return "greedy"
    top_k = f" k={way['top_k']}" if way.get("top_k") else ""
    return f"T={way['temperature']:g} p={way['top_p']:g}{top_k}"


def protocol_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Differences between two protocols as `name before -> after`, of the roles that both have."""
    roles = before["policies"].keys() & after["policies"].keys()
    old, new = _by_name(before, roles), _by_name(after, roles)
    changes: dict[str, list[str]] = {}
    for key in dict.fromkeys([*old, *new]):
        first, second = (values.get(key, "none") for values in (old, new))
        if first != second:
            name, _, role = key.partition(" of ")
            changes.setdefault(f"{name} {first} -> {second}", []).append(role)
    return [
        change if {*of} in (roles, {""}) else f"{', '.join(of)}: {change}"
        for change, of in changes.items()
    ]


def _by_name(protocol: Mapping[str, Any], roles: Collection[str]) -> dict[str, object]:
    """Values by `NAME` or `NAME of ROLE`."""
    values: dict[str, object] = {
        name: value for name, value in protocol.items() if not isinstance(value, Mapping)
    }
    values = {**protocol["settings"], **values}
    for role in sorted(roles):
        policy = protocol["policies"][role]
        prompt, reply = protocol["lengths"][role]
        examples = protocol.get("examples", {}).get(role, 0)
        fields = {"policy": policy, "prompt budget": prompt, "reply budget": reply}
        fields |= {"examples": examples, **protocol["decoding"][policy]}
        values |= {f"{name} of {role}": value for name, value in fields.items()}
    return values


def check_comparable(
    protocol: Mapping[str, object], other: Mapping[str, object], source: str
) -> None:
    """Raise `UsageError` unless both are on the same problems; `source` names the other."""
    differing = [name for name in SAME if protocol.get(name) != other.get(name)]
    if differing:
        differences = ", ".join(
            f"{name} {other.get(name)!r} -> {protocol.get(name)!r}" for name in differing
        )
        raise UsageError(
            f"the evaluation in {source} is of other problems ({differences}): give both the same "
            "task, data, split, seed and n"
        )


def check_selection(split: str) -> None:
    """Raise `UsageError` if the best checkpoint would be chosen on test problems."""
    # The best of many evaluations is an estimate that is too high on the problems it was chosen by.
    if split == "test":
        raise UsageError(
            "evaluations during training choose the best checkpoint, which the test split must not "
            "do: set eval_split to validation, and measure the chosen checkpoint on test with "
            "`flowzoo eval --split test`"
        )
