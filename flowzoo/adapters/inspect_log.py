"""Evaluations of `flowzoo eval --out` as logs of Inspect (`inspect_ai`), for its viewer and tables.

    from flowzoo.adapters.inspect_log import write_log
    write_log("runs/team", "logs/team.eval")      # inspect view --log-dir logs

A sample is a problem, an epoch one of its episodes; every call is a model event of its role.
"""

from __future__ import annotations

from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

from inspect_ai import log as logs
from inspect_ai.event import ModelEvent
from inspect_ai.model import ChatMessage, GenerateConfig, ModelOutput, ModelUsage
from inspect_ai.scorer import Score

from flowzoo.adapters.inspect_task import chat_of, outcome
from flowzoo.baselines.report.evaluation.data import EvaluationData, read_evaluation, sample_of
from flowzoo.baselines.run.dataset import encodable
from flowzoo.envs import Call, EpisodeRecord, Message
from flowzoo.errors import UsageError
from flowzoo.seeding import key_digest

SCORER = "workflow_score"


def write_log(evaluation: str | PathLike[str], log: str | PathLike[str]) -> None:
    """Write the evaluation in the directory `evaluation` to the file `log` (`.eval` or `.json`).

    Raises:
        UsageError: the evaluation is not finished.
    """
    data = read_evaluation(Path(evaluation))
    if not data.finished:
        raise UsageError(f"{data.folder} holds an evaluation that is not finished: repeat it first")
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    logs.write_eval_log(eval_log(data), str(log))


def eval_log(data: EvaluationData) -> logs.EvalLog:
    """A finished evaluation as a log."""
    protocol, time = data.summary["protocol"], (data.folder / "summary.json").stat().st_mtime
    ids = list(dict.fromkeys(record.problem for record in data.records))
    name = key_digest(data.folder.resolve().as_posix(), str(time)).hex()[:22]
    metrics = {"mean": data.summary["accuracy"], "stderr": data.summary["stderr"]}
    score = logs.EvalScore(
        name=SCORER,
        scorer=SCORER,
        scored_samples=len(data.records),
        metrics={
            key: logs.EvalMetric(name=key, value=value)
            for key, value in metrics.items()
            if value == value  # a single problem has no standard error
        },
    )
    return logs.EvalLog(
        status="success",
        eval=logs.EvalSpec(
            eval_id=name,
            run_id=name,
            task_id=name,
            created=datetime.fromtimestamp(time, UTC).isoformat(),
            task=protocol["workflow"],
            task_args=protocol["settings"],
            dataset=logs.EvalDataset(name=protocol["task"], samples=len(ids), sample_ids=ids),
            model=", ".join(dict.fromkeys(protocol["policies"].values())),
            config=logs.EvalConfig(epochs=protocol["samples"]),
            metadata={"flowzoo": protocol},
        ),
        results=logs.EvalResults(
            total_samples=len(data.records), completed_samples=len(data.records), scores=[score]
        ),
        samples=[eval_sample(record) for record in data.records],
    )


def eval_sample(record: EpisodeRecord) -> logs.EvalSample:
    """An episode as a sample; its chat is that of the last call."""
    events = [model_event(call) for call in record.calls]
    messages: list[ChatMessage] = []
    if events:
        messages = [*events[-1].input, events[-1].output.message]
    answer = None if record.answer is None else encodable(record.answer)
    return logs.EvalSample(
        id=record.problem,
        epoch=sample_of(record) + 1,
        input=encodable(record.text),
        target=encodable(record.gold),
        messages=messages,
        output=events[-1].output if events else ModelOutput(),
        scores={
            SCORER: Score(
                value=record.score, answer=answer, metadata=outcome(record) | {"answer": answer}
            )
        },
        metadata={"level": record.level, "task": record.task},
        events=list(events),
    )


def model_event(call: Call) -> ModelEvent:
    """A call as a model's event."""
    reason = "max_tokens" if call.finish == "length" else "stop"
    output = ModelOutput.from_content(call.policy, encodable(call.reply), reason)
    prompt, reply = call.prompt_tokens, call.output_tokens
    if prompt is not None and reply is not None:
        output.usage = ModelUsage(
            input_tokens=prompt, output_tokens=reply, total_tokens=prompt + reply
        )
    chat = [
        Message(role=message["role"], content=encodable(message["content"]))
        for message in call.messages
    ]
    return ModelEvent(
        model=call.policy,
        role=call.role,
        input=chat_of(chat),
        tools=[],
        tool_choice="none",
        config=GenerateConfig(),
        output=output,
        metadata={"agent": call.agent, "strict": call.strict, "role_score": call.role_score},
    )
