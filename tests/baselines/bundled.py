"""Names of the bundled settings with their variants."""

from flowzoo.baselines.settings.file import FOLDER, bundled_names, load_config
from flowzoo.errors import UsageError


def has(name: str) -> bool:
    """True if there are settings of that name, which may have a variant."""
    try:
        load_config(name)
    except UsageError:
        return False
    return True


POCKET = tuple(filter(has, (f"{name}@pocket" for name in bundled_names(FOLDER))))
"""Settings of a laptop's size."""
