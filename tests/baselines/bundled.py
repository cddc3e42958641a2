"""Names of the bundled settings with their variants."""

from flowzoo.baselines.settings.file import FOLDER, bundled_names

POCKET = tuple(f"{name}@pocket" for name in bundled_names(FOLDER))
"""Settings of a laptop's size."""
