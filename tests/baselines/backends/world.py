"""One rank of a small world of learners, run in a fork that has torch already
(`test_data_parallel.py`).

Given as globals: `RANK`, `WORLD`, `STORE` (a file the ranks meet at), `CASES`, `ROWS` (calls of the
policy), and `OUT`, where rank 0 writes what every case came to on every rank, as JSON. The test
itself takes `learners_of` and `go_on` from here, for a learner alone.
"""

import faulthandler
import gc
import json
import os
import time
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule

from flowzoo.baselines.backends import data_parallel
from flowzoo.baselines.backends.backend import RolloutSpec, Shard
from flowzoo.baselines.backends.torchrun import TorchrunBackend
from flowzoo.baselines.diagnostics.probe import slot_grams
from flowzoo.baselines.learner.batch import make_rows
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.loss import LossNormalizer, NonFiniteError
from flowzoo.baselines.learner.saved import load_learner, save_learner
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.weights import Weights, like
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError

VOCABULARY = 23


def model_of(tied: bool) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, intermediate_size=24, tie_word_embeddings=tied,
            max_position_embeddings=64, initializer_range=0.3,
        )
    ).eval()  # fmt: skip


def learners_of(case: dict[str, Any]) -> list[Learner]:
    """The learners of a case: of all weights, or of one or two adapters on one base."""
    kl = 0.3 if case.get("kl") else 0.0
    config = LearnerConfig(
        loss=LossConfig(kl_coef=kl), lr=1e-3, role_gradients=case.get("roles", True),
        coherence=0.5 if case.get("coherence") else 0.0, layout=case.get("layout", "packed"),
        coherence_form=case.get("form", "flowzoo"),
        microbatch_tokens=case.get("tokens", 32), updates_per_iteration=case.get("steps", 1),
        old_logp="recomputed" if case.get("steps", 1) > 1 else "sampler",
        importance_level="sequence" if case.get("steps", 1) > 1 else "token",
        off_policy_mask=0.0 if case.get("steps", 1) > 1 else 0.2,
        gradient_checkpointing=case.get("again", False), optimizer=case.get("optimizer", "adamw"),
        clip_norm=case.get("clip", 0.05),
    )  # fmt: skip
    model = model_of(case.get("tied", False))
    if case["kind"] == "full":
        return [Learner(Weights(model), config)]
    base = LoraBase(model, "base", LoraSettings(rank=4, alpha=8))
    names = ["one", "two"] if case["kind"] == "adapters" else ["one"]
    weights = [base.add(name, 0) for name in names]
    with torch.no_grad():
        for one in weights:  # a new adapter's second factor is 0, which hides half of its gradient
            for number, parameter in enumerate(one.parameters()):
                torch.manual_seed(number)
                parameter.add_(0.1 * torch.randn_like(parameter))
    return [Learner(one, config) for one in weights]


def advantages_of(rows: Sequence[Call]) -> list[float]:
    return [(-1.0) ** number * (1 + number % 3) for number in range(len(rows))]


def gap(one: float, other: float) -> float:
    return abs(one - other) / max(1.0, abs(other))


def compare(case: dict[str, Any], rows: Sequence[Call]) -> dict[str, float]:
    """Largest differences between the learner group of the case and a learner alone, over all
    ranks."""
    group = getattr(data_parallel, case["group"])()
    rows = rows[: case.get("rows", 12)]
    values = advantages_of(rows)
    alone, shared = learners_of(case), learners_of(case)
    for learner in shared:
        learner.join(group)
    found = {"gradient": 0.0, "weights": 0.0, "metrics": 0.0, "size": 0.0, "gram": 0.0}
    for own, ours in zip(alone, shared, strict=True):
        totals = LossNormalizer(len(rows), sum(len(row.output_ids) for row in rows))
        made = make_rows(rows, values, own.config)
        for left, right in zip(
            next(iter(own.gradients([made], totals))), next(iter(ours.gradients([made], totals))),
            strict=True,
        ):  # fmt: skip
            target = ours.parameters[0]
            if hasattr(target, "full_tensor"):
                left = like(target, left).to_local()
            found["size"] = max(found["size"], float(left.abs().max()) if left.numel() else 0.0)
            if left.numel():
                found["gradient"] = max(found["gradient"], float((left - right).abs().max()))
        found["metrics"] = max(found["metrics"], *watch(own, ours, case, rows, values))
        grams = [slot_grams(one, rows, values, 4) for one in (own, ours) if case.get("gram")]
        for left, right in zip(*grams, strict=True):
            found["gram"] = max(found["gram"], float(abs(left.products - right.products).max()))
            if left.applied is not None and right.applied is not None:
                size = float(abs(left.applied).max())
                found["gram"] = max(
                    found["gram"], float(abs(left.applied - right.applied).max()) / size
                )
        theirs = ours.weights.state()
        for name, value in own.weights.state().items():
            found["weights"] = max(found["weights"], float((value - theirs[name]).abs().max()))
        gaps = [one.gaps(rows[: 3 + distributed.get_rank()]) for one in (own, ours)]
        found["metrics"] = max(found["metrics"], float((gaps[0] - gaps[1]).abs().max()))
    found["sharded"] = float(isinstance(shared[0].model, FSDPModule))
    return found


def go_on(learner: Learner, rows: Sequence[Call], updates: int) -> dict[str, float]:
    """The metrics of the last of some updates, on other rows each time."""
    rows, found = rows[:12], dict[str, float]()
    for number in range(updates):
        found = learner.update(rows[number:], advantages_of(rows[number:]))
    return found


def saved(case: dict[str, Any], rows: Sequence[Call]) -> dict[str, float]:
    """Load what is in `load`, write it to `save`; what the next update is."""
    (learner,) = learners_of(case)
    learner.join(getattr(data_parallel, case["group"])())
    if "load" in case:
        load_learner(learner, Path(case["load"]))
    else:
        go_on(learner, rows, 2)
    if "save" in case:
        if distributed.get_rank() == 0:
            Path(case["save"]).mkdir(parents=True)
        distributed.barrier()
        save_learner(learner, Path(case["save"]))
        distributed.barrier()
    return go_on(learner, rows, 1)


def watch(
    own: Learner, ours: Learner, case: dict[str, Any], rows: Sequence[Call], values: Sequence[float]
) -> list[float]:
    """Train both twice; how far apart every metric of theirs is."""
    found: list[float] = []
    for _ in range(2):
        left, right = own.update(rows, values), ours.update(rows, values)
        assert left.keys() == right.keys(), left.keys() ^ right.keys()
        assert case.get("roles", True) == any(name.startswith("grad/") for name in left)
        found += [gap(right[name], value) for name, value in left.items()]
    return found


@contextmanager
def broken(name: str) -> Any:
    """Without the mending of one trap."""
    sharded = data_parallel.FullyShardedDataParallel
    one_pass = data_parallel.DataParallel.num_forward_passes
    before = dict(vars(sharded))
    try:
        if name == "root factor":
            shard = sharded.shard

            def rooted(self: Any, model: Any) -> None:
                shard(self, model)
                for module in model.modules():
                    if isinstance(module, FSDPModule) and module is not model:
                        module.set_gradient_divide_factor(float(self.world))

            sharded.shard = rooted
        elif name == "local dots":
            sharded.all_reduce = data_parallel.DataParallel.all_reduce
        elif name == "no stand-ins":
            sharded.num_forward_passes = one_pass
        yield
    finally:
        for key in ("shard", "all_reduce", "num_forward_passes"):
            setattr(sharded, key, before[key])


def agree() -> list[str]:
    """All ranks have the result or error of one."""
    backend = TorchrunBackend(data_parallel.DataParallel())
    rank = distributed.get_rank()
    shards = [Shard(number, ()) for number in range(3)]
    plan = RolloutSpec("eval", {})
    played = backend.play(plan, shards, lambda shard: [shard.number, rank])
    found = [json.dumps(played), json.dumps(backend.once(lambda: rank))]
    for raised in (UsageError("no such thing"), ZeroDivisionError("by zero")):

        def fail(error: Exception = raised) -> None:
            if rank == 1:
                raise error

        try:
            backend.each(fail)
        except Exception as error:
            told = getattr(error, "reported_elsewhere", False)
            found.append(f"{type(error).__name__}: {error} ({told})")
    return found


def traps() -> dict[str, str]:
    """FSDP2 on a model without the learner group's care."""
    found: dict[str, str] = {}
    register = data_parallel.register_fsdp_forward_method
    data_parallel.register_fsdp_forward_method = lambda *given: None
    try:  # 1: the learner calls the body and the head, not the root
        (bare,) = learners_of({"kind": "full"})
        bare.join(data_parallel.FullyShardedDataParallel())
        rows = ROWS[:4]  # noqa: F821
        bare.update(rows, advantages_of(rows))
    except RuntimeError as error:
        found["root bypassed"] = str(error)
    finally:
        data_parallel.register_fsdp_forward_method = register
    model = model_of(False)
    first = Learner(Weights(model), LearnerConfig())
    first.join(data_parallel.FullyShardedDataParallel())
    try:  # 4: what is tried on a model comes before
        Learner(Weights(model), LearnerConfig())
    except UsageError as error:
        found["late learner"] = str(error)
    whole = dict(model_of(False).state_dict())
    saved = first.weights.state()  # 5: what is written is whole
    same = saved.keys() == whole.keys() and all(
        type(one) is torch.Tensor and torch.equal(one, whole[name]) for name, one in saved.items()
    )
    found["saved"] = str(same)
    parts = [value.to_local().numel() for value in model.state_dict().values()]
    found["parts"] = str(0 < sum(parts) < sum(value.numel() for value in whole.values()))
    return found


def work(case: dict[str, Any], rows: Sequence[Call]) -> Any:
    if case.get("broken"):
        with broken(case["broken"]):
            return compare(case, rows)
    if case["kind"] == "backend":
        return agree()
    if case["kind"] == "traps":
        return traps()
    if case.get("nan"):
        return stop(case, rows)
    if "save" in case or "load" in case:
        return saved(case, rows)
    return compare(case, rows)


def stop(case: dict[str, Any], rows: Sequence[Call]) -> Any:
    """One rank's loss is not finite: all must raise, with the rows, and none may wait."""
    group = getattr(data_parallel, case["group"])()
    rows = rows[:6]
    (learner,) = learners_of(case)
    learner.join(group)
    before = learner.weights.state()
    before = {name: value.clone() for name, value in before.items()}
    if group.rank == 1:

        def bad(*given: Any) -> Any:
            raise NonFiniteError("poisoned", [0], [given[0][0].call])

        learner.gradient._loss = bad
    try:
        learner.update(rows, advantages_of(rows))
    except NonFiniteError as error:
        after = learner.weights.state()
        same = all(torch.equal(before[name], after[name]) for name in before)
        return [str(error), [call.episode for call in error.calls], same]
    return "it went on"


def main() -> None:
    faulthandler.dump_traceback_later(600, exit=True)  # of a rank that hangs; the test is told
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{STORE}", rank=RANK, world_size=WORLD,  # noqa: F821
        timeout=timedelta(seconds=300),
    )  # fmt: skip
    results = []
    for case in CASES:  # noqa: F821
        every: list[Any] = [None] * WORLD  # noqa: F821
        distributed.all_gather_object(every, work(case, ROWS))  # noqa: F821
        results.append(every)
    out = Path(OUT)  # noqa: F821
    if RANK == 0:  # noqa: F821
        out.with_suffix(".new").write_text(json.dumps(results), encoding="utf-8")
        out.with_suffix(".new").rename(out)
    while not out.exists():
        time.sleep(0.02)
    # Everything is done: gloo's threads are not waited for, which have hung here once.
    os._exit(0)


if __name__ == "<run_path>":
    gc.freeze()  # what was imported before the fork is no garbage, and to look at it copies it
    main()
