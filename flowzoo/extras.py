"""Optional dependencies: the extra that installs each module, and the command to type for it."""

from importlib.util import find_spec

REPOSITORY = "https://github.com/OWNER/flowzoo"
"""Address of the source. `python -m tools.release --owner NAME` writes the owner here and into all
other files, and `python -m tools.release` checks that they agree."""

PUBLISHED = False
"""True once flowzoo is on the package index: every remedy then names it there."""

EXTRAS: dict[str, tuple[str, ...]] = {
    # Before `train`, which has SciPy too: what lacks SciPy alone is a page.
    "report": ("matplotlib", "PIL", "scipy"),
    "train": (
        "torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "tensorboard",
        "huggingface_hub",
        "jinja2",
    ),
    "gguf": ("gguf",),
    "bits": ("bitsandbytes",),
    "openai": ("httpx",),
    "programs": ("uvicorn", "httptools"),
    "data": ("datasets", "pyarrow"),
    "vllm": ("vllm",),
    "scale": ("ray",),
    "docker": ("docker",),
    "search": ("bm25s",),
    "mcp": ("mcp",),
    "writing": ("rapidfuzz",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}  # fmt: skip
"""Extra -> the modules that it brings. A module stands once, with the smallest extra."""


def extra_of(module: str) -> str | None:
    """The extra that brings a module or the package around it; None for any other module."""
    package = module.partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if package in modules), None)


def is_installed(module: str) -> bool:
    """Return whether a module is installed, without importing it."""
    # A mere folder of its name (`docker/`, or the `wandb/` that W&B writes) is no installation.
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def install_command(*extras: str, published: bool = PUBLISHED) -> str:
    """The command that installs extras."""
    return f'pip install "{"flowzoo" if published else "."}[{",".join(extras)}]"'


def remedy(*extras: str) -> str:
    """The place and the command that installs extras."""
    command = install_command(*extras)
    return command if PUBLISHED else f"in a clone of flowzoo, {command}"
