"""An example of a sandbox backend that a package brings: boxes started by a command of its own.

Here the command is `nice`; `bwrap`, `firejail` or a client of a cluster would be used alike.
"""

import json
import shutil
import sys

from flowzoo.sandbox.backends import FLAGS, RUNNER
from flowzoo.sandbox.local import LocalBackend, ProcessConnection
from flowzoo.sandbox.tier import BackendSpec, TierCheck


class NiceBackend(LocalBackend):
    """Processes of this machine at low priority."""

    def __init__(self, packages: tuple[str, ...] = ()) -> None:
        super().__init__("namespaces", packages)
        self.tier, self.trust = SPEC.name, SPEC.trust

    async def start(self) -> ProcessConnection:
        """Start the runner, which confines itself in namespaces."""
        options = json.dumps(self.box_options)
        command = ["nice", "-n", "5", sys.executable, *FLAGS, str(RUNNER), "namespaces", options]
        return ProcessConnection(command)


def check() -> TierCheck:
    """`nice` is there."""
    path = shutil.which("nice")
    return TierCheck(path is not None, path or "no command `nice`")


SPEC = BackendSpec(
    name="nice",
    trust="nice: as namespaces, at low priority",
    target=f"{__name__}:NiceBackend",
    check=check,
)
