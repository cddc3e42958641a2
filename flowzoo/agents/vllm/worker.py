"""Extension of vLLM's workers: receivers of weights, and an end with the process that owns them.

vLLM mixes this class into its worker class by name (`worker_extension_cls`), also in the processes
of a server.
"""

import os
import select
import threading

from vllm.distributed.weight_transfer import WeightTransferEngineFactory

for name, receiver in (("flowzoo_file", "LocalReceiver"), ("flowzoo_ipc", "WordedIPCReceiver")):
    WeightTransferEngineFactory.register_engine(name, "flowzoo.agents.vllm.receive", receiver)


class WorkerExtension:
    """Methods of a worker, called through `collective_rpc`."""

    def flowzoo_end_with(self, pid: int) -> None:
        """Let this process end when process `pid` does, however that ends (on Linux)."""
        # vLLM's processes outlive one that is killed, and would keep a GPU's memory for ever.
        if not hasattr(os, "pidfd_open"):
            return
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            os._exit(1)

        def wait() -> None:
            select.select([end], [], [])
            os._exit(1)

        threading.Thread(target=wait, name="flowzoo-owner", daemon=True).start()
