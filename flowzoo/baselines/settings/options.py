"""Settings of a run by subject; the learner's own are in `flowzoo.baselines.learner.config`.

None means the default of the algorithm (`flowzoo.baselines.settings.algorithms`) or the model
(`flowzoo.baselines.settings.layers`), see the fields. The module does not import torch.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from flowzoo.agents.rollout.settings import Joint, Select, Value
from flowzoo.agents.traits import EngineDTypeChoice
from flowzoo.agents.vllm.settings import Placement, WeightTransfer
from flowzoo.baselines.learner.config import (
    SCHEDULED,
    Aggregation,
    ComputeOptions,
    KlEstimate,
    LoraTargets,
    RowOptions,
    UpdateOptions,
)
from flowzoo.declared import (
    ByPolicy,
    Count,
    CountOrZero,
    Fraction,
    NonNegative,
    Only,
    Positive,
    ProperFraction,
    Share,
)
from flowzoo.errors import UsageError
from flowzoo.sandbox.tier import SandboxName

OnCollapse = Literal["warn", "stop", "rollback"]


BackendName = Literal["local", "torchrun", "ray"]
Sharding = Literal["none", "full"]
SHARD_JOBS: dict[BackendName, int] = {"local": 0, "torchrun": 16, "ray": 16}
"""Default number of episodes of a shard, by backend."""

# Conditions that several settings have; the second argument is the algorithm of the run.
TREE = Only(lambda _, a: a.sampling == "tree", "of algorithms that branch at every turn (at_grpo)")
JOINT = Only(lambda _, a: a.sampling == "joint", "of algorithms on joint nodes (magrpo_tree)")
OWN_WEIGHTS = Only(lambda s, _: s.engine_traits.own_weights, "of vLLM engines")
ADAPTERS = Only(lambda s, _: s.lora_rank != 0, "of LoRA adapters (`lora_rank` above 0)")
CLIPPED = Only(lambda s, _: not s.loss, "of the clipped objective, which `loss` replaces")


def _of_backend(name: BackendName) -> Only:
    remedy = f"`backend` is {{settings.backend}}: add --backend {name}, or leave `{{name}}` out"
    return Only(lambda s, _: s.backend == name, f"of `backend` {name}", remedy)


RANKS, RAY = _of_backend("torchrun"), _of_backend("ray")


@dataclass(frozen=True)
class WorkflowOptions:
    """Workflow, task and prompts."""

    workflow: str = field(default="voting", metadata={"positional": "[WORKFLOW]"})
    """Name of the workflow, e.g. `voting` or `voting_v0`, `module:Class` or `file.py:Class`."""
    task: str | None = None
    """Task of the workflow; default: the workflow's default task, e.g. math."""
    sandbox: SandboxName | None = None
    """Isolation of programs, for tasks that run them; default: the best one on this machine."""
    max_calls: int | None = None
    """Most calls of an episode; exceeding it is an error. Default: 1,000."""
    prompts: str | None = None
    """`short` or `full` texts, or a TOML file of texts and system messages, as `flowzoo prompts`
    prints it; default: short for pocket models, full for others."""
    system: tuple[str, ...] = ()
    """System messages, as ROLE=TEXT."""
    examples: int | None = None
    """Number of worked examples in every role's prompt, as earlier turns of the chat; default: 0
    for pocket models and warm starts, else 4."""
    options: tuple[str, ...] = ()
    """Other settings of the workflow or the task, as NAME=VALUE, e.g. n_votes=5 level=2; with
    `env`, also arguments of its function."""
    program: str | None = None
    """Instead of a workflow, a program that calls its agents with an OpenAI client: a function,
    `module:solve` or `path/to/file.py:solve`, or a command, e.g. "node agent.js"."""

    def replace_workflow(self, setting: str, name: str) -> None:
        """Set `workflow` to `name` if `setting` (`program` or `env`) is given.

        Raises:
            UsageError: a workflow is also named.
        """
        given = getattr(self, setting)
        if given is None:
            return
        if self.workflow not in ("", WorkflowOptions.workflow, name):
            raise UsageError(
                f"`{setting}` {given} is played in place of a workflow: leave out "
                f"{self.workflow!r}, or leave out `{setting}`"
            )
        object.__setattr__(self, "workflow", name)


@dataclass(frozen=True)
class ProcessOptions:
    """Seed, threads, device and directory."""

    seed: NonNegative[int] = 0
    """Seed of the problem stream and of sampling. Evaluation problems do not depend on it."""
    threads: CountOrZero = 0
    """CPU threads of torch; 0: torch's default (OMP_NUM_THREADS)."""
    device: str = "auto"
    """Device of the learner; auto: a GPU if there is one (for learner workers: an assigned one)."""
    out: str = ""
    """Run directory; empty: `runs/` and a name derived from the settings."""


@dataclass(frozen=True)
class RunSettings(ProcessOptions, WorkflowOptions):
    """External environment, length of a run, stopping rules and callbacks."""

    env: str | None = None
    """Instead of a workflow, a PettingZoo AEC environment with text: `package.module:function` or
    `path/to/file.py:function`, which returns an AECEnv or a `TextEnv`. See docs/aec.md."""
    steps: Positive[int] = 40
    """Number of iterations, each with one batch of rollouts and one update of every policy."""
    token_budget: NonNegative[int] = 0
    """End after the iteration that reaches this number of sampled training tokens; 0: only `steps`
    counts. For controls with equal training tokens."""
    stop_patience: NonNegative[int] = 0
    """End after this many consecutive evaluations without a gain beyond noise; 0: never."""
    stop_at: float | None = None
    """End after an evaluation with at least this accuracy, from 0 to 1; None: never."""
    on_collapse: OnCollapse = "warn"
    """Reaction to a fall that evaluations show (docs/diagnostics.md, The watch): `warn` says so
    and goes on, `stop` ends it, `rollback` returns to the weights of the best evaluation,
    divides the learning rate of the role's policy by 4, and goes on."""
    alert: str = ""
    """A command that gets every such event as a JSON object on its standard input, e.g.
    "python notify.py"; no shell reads it, and the run waits up to 30 seconds for it."""
    callback: tuple[str, ...] = ()
    """Functions to call after every step, as module:function or file.py:function; see
    docs/hooks.md."""
    stop_within: NonNegative[float] = 20.0
    """Seconds for the step to end after a first Ctrl-C or SIGTERM; a longer one is dropped. Then a
    checkpoint is made, unless policies are being updated, batches were sampled ahead or no step is
    done (docs/waits.md). 0: the run ends at once, without one."""
    wait_limit: NonNegative[float] = 0.0
    """Seconds for an answer of an engine, endpoint, judge, rollout worker, grader or learner rank;
    0: by what is usual (docs/waits.md)."""
    function_limit: NonNegative[float] = 0.0
    """Seconds for a call of your own function (reward, credit, advantage, loss, callback, judge,
    tool), which is then ended with an error; 0: no limit."""


@dataclass(frozen=True)
class ModelSettings:
    """Models and policies."""

    model: str = "pocket"
    """Initial weights of every policy: `pocket` (the task's pocket model; for another one or size
    `pocket:TASK`, `pocket:SCALE`, `pocket:TASK-SCALE`, with the scales xs, s and m), a model in
    Hugging Face layout or a .gguf file."""
    models: tuple[str, ...] = ()
    """Initial weights of individual policies, in place of `model`, as POLICY=PATH."""
    sharing: tuple[str, ...] = ()
    """`shared` (one policy), `isolated` (one per role), or ROLE=POLICY for every role or agent;
    none: the algorithm's default, isolated for magrpo and magrpo_tree, else shared."""
    frozen: tuple[str, ...] = ()
    """Policies that play but are never trained."""
    lora_rank: ByPolicy[NonNegative[int]] = 0
    """Rank of the policies' LoRA adapters on a shared, frozen `model`; 0 trains all weights."""
    lora_alpha: Annotated[ByPolicy[Positive[int]], ADAPTERS] = 32
    """LoRA alpha: an adapter's update is scaled by lora_alpha / lora_rank."""
    thinking: tuple[str, ...] = ()
    """Thinking before a reply: on, off, or POLICY=on for individual policies; none: the chat
    template's default. Thoughts are trained on, but removed for other roles and graders."""
    lora_targets: Annotated[LoraTargets, ADAPTERS] = "linear"
    """Layers with adapters: `linear`, all linear layers except the output head and the routers of
    mixtures of experts; `all`, PEFT's all-linear, which in some families includes routers and
    experts. Printed at the start."""


@dataclass(frozen=True)
class DecodingOptions:
    """Number format and batches of decoding."""

    engine_dtype: EngineDTypeChoice = "auto"
    """Number format for sampling. A vLLM engine loads its weights in this format; `transformers`
    copies the learner's linear layers to it after every update. The learner's own weights have the
    format `weights`. `int8` (transformers on a CPU) quantizes weights and activations by row.
    `auto`: bfloat16 if the hardware supports it and all models have 100 million weights or more,
    else float32; float32 for a server. Printed at the start."""
    max_batch: Count = 1024
    """Most sequences in a decoding batch; lower it if memory runs out."""


@dataclass(frozen=True)
class EngineOptions(DecodingOptions):
    """Sampling engines."""

    engine: str = "transformers"
    """Sampling engine: `transformers` (the learner's module), `vllm`, `openai` (a running `vllm
    serve` at `endpoint`), or an engine of an installed package. There is no fallback."""
    endpoint: tuple[str, ...] = ()
    """URL of the server for `engine=openai`, or POLICY=URL for each policy with full weights."""
    placement: Annotated[Placement, OWN_WEIGHTS] = "colocated"
    """Process of a vLLM engine: the learner's (`colocated`) or a separate one (`split`), required
    for rollout workers (`backend` ray)."""
    engine_devices: Annotated[str, OWN_WEIGHTS] = ""
    """GPUs of split engines, in the format of CUDA_VISIBLE_DEVICES; Ray assigns the GPUs of rollout
    workers (`rollout_gpus`)."""
    weight_transfer: WeightTransfer = "file"
    """Transfer of a policy's full weights to a split vLLM engine after an update: `file`, a file in
    shared memory; `ipc`, memory of a GPU that learner and engine share; `nccl`, from the learner's
    GPU to another (`engine_devices`). Adapters always use files."""
    engine_memory: Annotated[NonNegative[float], OWN_WEIGHTS] = 0.0
    """GiB of KV cache of all vLLM engines together, or of all in a rollout worker; 0: on a GPU a
    fraction of its memory; on a CPU 0.25 per engine, or the size of one sequence of the greatest
    length if that is larger, with a note."""
    engine_sleep: Annotated[bool, OWN_WEIGHTS] = False
    """Release a colocated engine's GPU memory while the learner runs."""
    engine_restarts: NonNegative[int] = 2
    """Most restarts of vLLM engines in one step before the run stops."""
    sync_tolerance: NonNegative[float] = 0.0
    """Largest difference of engine and learner log-probs after a sync before the run stops: the
    maximum if both compute in float32, else the mean (with int8, the mean over trained rows). 0:
    1e-3 in float32, else 0.15."""
    sync_check_every: NonNegative[int] = 0
    """Steps between probes of a vLLM engine after a sync. In other steps the run stops if learner
    and sampler log-probs of the trained rows differ. The engine is also probed at the start, after
    a restart and before every evaluation. 0: 10, or 1 if rows cannot prove a sync (with
    `max_staleness`, ranks or rollout workers). With transformers, steps between checks of copies in
    another number format."""
    max_logp_gap: NonNegative[float] = 0.0
    """Largest mean difference of sampler and learner log-probs, in nats per trained token, before
    the first optimizer step (`learn/logp_gap_mean`); the run stops above it. 0: no limit."""
    max_staleness: NonNegative[int] = 0
    """Batches sampled ahead while the learner works; each uses weights that are that many steps
    older. 0, or 1 with a split vLLM engine, a server or rollout workers. Rollout workers (`backend`
    ray) and runs with `deterministic` off allow more, which compensates for slow steps."""
    deterministic: bool = True
    """On by default: batches in canonical order, so runs are reproducible. Off: requests are sent
    immediately, which gives a vLLM engine fuller batches, and with `max_staleness` it gets new
    weights between the turns of episodes: every call records its version, at most `max_staleness`
    steps old."""


@dataclass(frozen=True)
class LengthOptions:
    """Token budgets."""

    max_tokens: Count | None = None
    """Most tokens of a reply. None: 64 for models below 10 million weights such as the pocket
    models, 4096 for thinking models, else by the task (generated mathematics 128 to 256, GSM8K and
    functions 512, MATH and contests 1024), but at most the generation config's limit and half of
    the context. Printed at the start."""
    max_prompt: NonNegative[int] = 0
    """Most tokens of a prompt; in a longer one the quotes are shortened (not the problem) and
    counted. 0: the limit of the model's context."""
    lengths: tuple[str, ...] = ()
    """Budgets of individual roles, as ROLE=PROMPT/REPLY in tokens; either number may be omitted."""


@dataclass(frozen=True)
class SamplingOptions(LengthOptions):
    """Problems, episodes and sampling of an iteration."""

    problems: Count = 16
    """Problems in a batch of rollouts."""
    samples: Count | None = None
    """Episodes per problem, compared by the advantages. None: the algorithm's."""
    candidates: Count | None = None
    """Replies sampled at every decision by branching algorithms; None: the algorithm's."""
    candidate_value: Annotated[Value, TREE] = "now"
    """Value of a candidate in tree sampling: `now`, alpha * team + local + format from the parts
    known after the reply; `rollout`, the mean final reward of its call over `value_rollouts`
    episodes that the current policies play to the end from the candidate."""
    value_rollouts: Annotated[
        Count,
        Only(
            lambda s, a: a.sampling == "tree" and s.candidate_value == "rollout",
            "of candidate_value=rollout, with which candidates are played on from",
        ),
    ] = 1
    """Episodes played to the end from each candidate, with `candidate_value` rollout."""
    select: Annotated[Select, TREE] = "best"
    """Candidate with which the episode continues."""
    joint: Annotated[Joint, JOINT] = "aligned"
    """Combination of a phase's replies into joint actions, for algorithms on joint nodes."""
    leaves: Annotated[Count, JOINT] = 16
    """Most finished episodes of one tree of joint nodes."""
    temperature: ByPolicy[Positive[float] | None] = None
    """Sampling temperature of training rollouts. None: 1, or with a `correction` that of the
    model's generation config."""
    top_p: ByPolicy[Share | None] = None
    """Nucleus (top-p) of training rollouts; below 1 a `correction` is needed. None: as
    `temperature`."""
    top_k: ByPolicy[NonNegative[int] | None] = None
    """Number of most likely tokens to sample from in training rollouts (top-k); above 0 a
    `correction` is needed. None: 0, or with a `correction` that of the model's generation
    config."""
    refill: NonNegative[int] = 0
    """Most rounds of a step that draw new problems in place of those with all advantages 0, until
    the batch is full (DAPO's dynamic sampling); 0: use all problems."""
    drop_groups: ProperFraction = 0.0
    """Fraction of every policy's groups that a step leaves out: those with the lowest mean reward,
    rounded down (0.5 in the public code of AT-GRPO on games); 0: train on all."""
    difficulty: str = ""
    """File of pass rates from `flowzoo filter`: train only on problems within `pass_rates`."""
    pass_rates: Annotated[
        tuple[Fraction, Fraction],
        Only(lambda s, _: bool(s.difficulty), "of `difficulty`, whose problems it chooses from"),
    ] = (0.1, 0.9)
    """Lowest and highest pass rate of problems in `difficulty` to train on."""
    curriculum: tuple[str, ...] = ()
    """Settings of the task from a given step, as STEP:NAME=VALUE, e.g. 50:level=2."""
    split: str = "train"
    """Split of the training problems."""
    length_cache: Annotated[
        NonNegative[int], Only(lambda s, _: s.truncated == "shape", "of truncated=shape")
    ] = 0
    """Tokens before the length limit over which the penalty of `truncated` shape grows from 0 to
    `truncation_penalty`; 0: a fifth of the limit, as in DAPO."""
    reward: str = ""
    """Function that scores training episodes in place of the task's grader, as module:function or
    file.py:function, or judge:FILE.toml for a rubric of named, weighted criteria; evaluations keep
    the task's own scores."""
    judge: str = ""
    """Judge policy for workflows and rubrics: openai:MODEL@URL, hf:PATH, vllm:PATH@URL or
    scripted:P. It is never trained and decodes greedily; its replies are cached in the cache
    folder."""


@dataclass(frozen=True)
class HeldOutOptions:
    """Held-out problems and checkpoints."""

    eval_split: str = "validation"
    """Split for evaluations."""
    eval_temperature: NonNegative[float] = 1.0
    """Sampling temperature of evaluations; 0: greedy."""
    eval_top_p: Share = 1.0
    """Nucleus (top-p) of evaluations."""
    eval_top_k: NonNegative[int] = 0
    """Number of most likely tokens to sample from in evaluations (top-k); 0: all."""
    keep_last: Positive[int] = 2
    """Number of latest checkpoints to keep, in addition to the best by held-out accuracy."""


@dataclass(frozen=True)
class EvaluationOptions(HeldOutOptions):
    """Evaluations, checkpoints and trackers."""

    eval_problems: Count | None = None
    """Number of distinct held-out problems per evaluation; None: 500 for a pocket model, 100 for
    others, which take minutes on a CPU."""
    eval_samples: Count = 1
    """Episodes per held-out problem in an evaluation. Above 1 the accuracy is the mean over them
    (avg@k), and pass@1, pass@2, pass@4 … pass@k are reported with intervals over problems."""
    eval_max_tokens: Count | None = None
    """Most tokens of a reply in evaluations, in place of `max_tokens`; None: as in training."""
    eval_every: NonNegative[int] = 0
    """Steps between evaluations; step 0 and the last step are always evaluated. 0: a fifth of
    `steps`, at most 10, and 20 for 100 steps or more, which gives at least six evaluations (a
    finding on cliffs needs five). The resolved number is in run.json, and a continued run keeps
    it."""
    checkpoint_every: NonNegative[int] = 0
    """Steps between checkpoints. 0: like `eval_every`, so the best evaluation has a checkpoint, but
    at most 10; with `eval_at`, 10, and every evaluated step."""
    keep_every: NonNegative[int] = 0
    """Also keep checkpoints of steps divisible by this; 0: none."""
    transcripts_every: Positive[int] = 10
    """Steps between saved training transcripts; evaluations are always saved."""
    wandb: str = ""
    """Weights & Biases project for the metrics; empty: none. Needs
    `flowzoo[wandb]` and a login, or WANDB_MODE=offline in the environment."""
    trackio: str = ""
    """Trackio project for the metrics; empty: none. Needs
    `flowzoo[trackio]`; `trackio show` opens it."""
    swap_probe: bool = False
    """After the last step, evaluate with each pair of roles' policies exchanged; the accuracy
    drops if roles have specialized."""
    eval_sets: tuple[str, ...] = ()
    """Other data to evaluate on beside the held-out problems, all rows, as NAME=DATA, e.g.
    aime24=FILE; metrics `eval_sets/NAME/…`. The best checkpoint is not chosen by them."""
    eval_at: tuple[int, ...] = ()
    """Steps to evaluate, e.g. 1 2 5, instead of `eval_every`; step 0 and the last step are always
    evaluated."""


@dataclass(frozen=True)
class LossOptions(RowOptions):
    """Loss."""

    algorithm: str = "grpo"
    """One of `flowzoo algorithms`: grpo, dr_mas, at_grpo …"""
    advantage: tuple[str, ...] = ()
    """Advantage settings that override the algorithm's, as NAME=VALUE."""
    gamma: Annotated[
        Fraction,
        Only(
            lambda _, a: a.advantage.target == "return_to_go",
            "of algorithms that judge a call by its return to go (magrpo)",
        ),
    ] = 1.0
    """Discount per turn, for algorithms with returns-to-go."""
    clip_low: Annotated[ByPolicy[Fraction | None], CLIPPED] = None
    """Lower clip: the probability ratio is clipped at 1 - clip_low; None: the algorithm's."""
    clip_high: Annotated[ByPolicy[NonNegative[float] | None], CLIPPED] = None
    """Upper clip: the probability ratio is clipped at 1 + clip_high; None: the algorithm's."""
    aggregation: Aggregation | None = None
    """Aggregation of token losses; None: the algorithm's."""
    kl: NonNegative[float] | None = None
    """Weight of the KL divergence from the initial weights; None: the algorithm's."""
    role_kl: tuple[str, ...] = ()
    """KL weights of individual roles, in place of `kl`, as ROLE=WEIGHT."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    role_weights: tuple[str, ...] = ()
    """Loss weights of the rows of individual roles, as ROLE=WEIGHT; others: 1. The weight of a
    policy's only role has no effect under AdamW, whose steps do not depend on the scale of the
    loss; use `role_lr` instead."""
    kl_estimate: Annotated[
        KlEstimate,
        Only(
            lambda s, a: bool((a.kl if s.kl is None else s.kl) or s.role_kl),
            "of a KL term (`kl` or `role_kl`)",
        ),
    ] = "corrected"
    """Estimator of `kl` from sampled tokens: `corrected` weighs k3 by the probability ratio to
    the sampler, `plain` does not."""
    dual_clip: Annotated[ByPolicy[NonNegative[float] | None], CLIPPED] = None
    """Dual-clip PPO: the loss of a token with a negative advantage A is at most -A times this;
    tokens above it have no gradient. 0: no bound; None: the algorithm's."""
    advantage_function: str = ""
    """Function that computes the final advantages, as module:function or file.py:function."""
    loss: str = ""
    """Function that replaces the clipped objective, as module:function or file.py:function."""


@dataclass(frozen=True)
class OptimizerOptions(UpdateOptions, ComputeOptions):
    """Schedule, optimizer steps and measurements of the learner."""

    lr: ByPolicy[Positive[float] | None] = None
    """Peak learning rate (AdamW). None: by the number of weights: 2e-4 below 10 million (such as
    the pocket models), 5e-5 below 100 million, 5e-6 below 400 million, else 1e-6; with `lora_rank`
    2e-4, 2e-4, 1e-4, below a billion 5e-5, else 1e-5. Printed at the start."""
    schedule_steps: Annotated[NonNegative[int], SCHEDULED] = 0
    """Steps of the run until linear and cosine reach `min_lr`; 0: its initial `steps`. A run that
    is continued beyond them must set it. With `schedule_clock` published: ticks."""
    updates: ByPolicy[NonNegative[int]] = 1
    """Optimizer steps per policy and iteration; 0: one per `rows_per_update` rows."""
    probe_every: NonNegative[int] = 10
    """Steps between gradient probes of parallel agents of one role, including the first step; 0:
    none. A probe takes one to three times as long as the update itself."""
    role_lr: tuple[str, ...] = ()
    """Learning rates of individual roles, in place of `lr`, as ROLE=RATE, for policies of one role.
    For a role within a policy of several roles, `optimizer` must be sgd."""


@dataclass(frozen=True)
class ScaleOptions:
    """Processes for rollouts, learning and grading."""

    backend: BackendName = "local"
    """`local`: one process. `torchrun`: several processes (ranks) that share rollouts and updates,
    on one machine or, started with torchrun, on several. `ray`: workers of a Ray cluster run the
    rollouts, and this process learns unless there are `learner_workers`. See docs/scale.md."""
    ranks: Annotated[NonNegative[int], RANKS] = 0
    """Number of processes to start on this machine with `backend` torchrun; 0: torchrun has started
    this one."""
    shard: Sharding = "none"
    """With `backend` torchrun or `learner_workers`: `none`, every rank has the whole model, and
    gradients are summed; `full`, weights, gradients and optimizer states are sharded over the ranks
    (FSDP2), which needs an engine with separate weights (rollout workers have one; with torchrun,
    use vllm with `placement` split)."""
    shard_jobs: NonNegative[int] | None = None
    """Episodes per rollout batch; 0: all of a step. The last bits of a reply's log-probs depend on
    its batch, so this setting affects the run's numbers. None: 0 with `backend` local, else 16; a
    continued run keeps its value."""
    ray_address: Annotated[str, RAY] = ""
    """Cluster of `backend` ray: HOST:PORT of its head, or `local`, which starts one on this machine
    for the duration of the run."""
    rollout_workers: Annotated[NonNegative[int], RAY] = 0
    """Rollout workers of `backend` ray; each uses `threads` cores, or one, and has separate
    engines: with `engine` vllm (`placement` split) one per base of adapters, or one per policy."""
    rollout_gpus: Annotated[NonNegative[float], RAY] = 0.0
    """GPUs per rollout worker, which may share one (0.5); 0: CPU. A worker's vLLM engines share one
    GPU, or each has an equal number of GPUs (tensor parallel)."""
    learner_workers: Annotated[NonNegative[int] | tuple[str, ...], RAY] = 0
    """Learner workers of `backend` ray; each uses `threads` cores, or one. A number: the workers
    are the ranks of one learner group, in which the policies take turns. POLICY=NUMBER for every
    trained policy (generator=4 evaluator=2): separate learner groups that learn in parallel;
    adapters of one base share a group and must have the same number. 0: the main process learns."""
    learner_gpus: Annotated[NonNegative[float], RAY] = 0.0
    """GPUs per learner worker: 1, or 0 for the CPU; a single worker of a learner group may share
    one (0.5)."""
    graders: Annotated[NonNegative[int], RAY] = 0
    """Grading actors of `backend` ray on any nodes with free CPUs; each uses `threads` cores, or
    one. 0: rollout workers grade their own episodes. For slow grading (programs, hard mathematics)
    if GPU nodes have few cores."""
