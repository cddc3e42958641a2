"""The killable worker pool: trusted code on hostile data, with a deadline and a memory limit.

`worker_pool.WorkerPool` is the way in. Uses nothing else of the sandbox.
"""
