"""A rollout worker with vLLM and a learner worker in a cluster on this machine, and a split engine
without; run by `test_ray.py`.

    world_vllm.py FOLDER

See `world.py`.
"""

import importlib
import json
import os
import signal
import sys
import traceback
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
from ray_cluster import NODE, cluster_of, raise_loopback, workers_now

sys.path.append(str(Path(__file__).resolve().parents[3]))

from forks import ENGINE_MODULES, Forks, freeze_modules, import_modules, serve_forks

SMALL: dict[str, Any] = {
    "workflow": "voting", "model": "pocket:xs", "problems": 2, "samples": 4, "eval_problems": 2,
    "eval_every": 3, "checkpoint_every": 3, "transcripts_every": 1, "threads": 1, "shard_jobs": 2,
    "microbatch_tokens": 1000, "max_tokens": 24, "steps": 3, "engine": "vllm", "placement": "split",
    "max_batch": 32, "engine_memory": 0.03, "sharing": ("isolated",), "lora_rank": 4, "lr": 1e-3,
    "max_staleness": 1, "old_logp": "recomputed",
}  # fmt: skip


def engine_cores() -> list[psutil.Process]:
    """The processes of all engines, which are forks of one server."""
    server: Any = vars(forkserver)["_forkserver"]
    return psutil.Process(server._forkserver_pid).children()


def run(folder: Path, address: str) -> dict[str, Any]:
    """Three steps, one ahead; the engine is killed after the first, the worker after the second."""
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer

    killed: list[str] = []
    learners: set[int] = set()

    def kill(row: dict[str, Any]) -> None:
        learners.update(one.pid for one in workers_now("LearnerWorker"))
        if row["step"] == 1:
            (core,) = engine_cores()
            core.kill()
            killed.append("engine")
        if row["step"] == 2:
            trainer.run.batches.settle()  # with an engine that has been started again
            (worker,) = workers_now()
            (core,) = engine_cores()
            os.kill(worker.pid, signal.SIGKILL)
            core.wait(60)  # it ends with its worker
            killed.append("worker")

    there = {
        "backend": "ray", "ray_address": address, "rollout_workers": 1, "learner_workers": 1,
    }  # fmt: skip
    trainer = Trainer(start_run(TrainConfig(**SMALL, **there, out=str(folder / "ray"))))
    trainer.train(kill)
    _, left = psutil.wait_procs(engine_cores(), 60)
    return {"killed": killed, "left": len(left), "learners": len(learners)}


def engines_as_forks() -> None:
    """Import vLLM here, once for all processes; Ray must not be, see `ray_warm.py`."""
    blocked: Any = None
    sys.modules["ray"] = blocked
    import_modules(ENGINE_MODULES)
    del sys.modules["ray"]
    freeze_modules()
    serve_forks()
    engines: Any = importlib.import_module("vllm.v1.engine.utils")
    engines.get_mp_context = Forks


def main() -> None:
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.training.trainer import train

    folder = Path(sys.argv[1])
    raise_loopback()
    engines_as_forks()
    with cluster_of({**NODE, "num_cpus": 2}) as cluster:
        try:
            found = run(folder, cluster.address)
        except BaseException:
            found = {"error": traceback.format_exc()}
        finally:
            import ray

            ray.shutdown()
            for core in engine_cores():  # where one was left: it would hold this program's output
                core.kill()
    train(TrainConfig(**SMALL, out=str(folder / "local")))
    (folder / "vllm.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
