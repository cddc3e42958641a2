"""Programs that signal, stop, outlive or slow down what they should not.

Nothing is killed before it is known that only the box can be hit: a probe asks with signal 0, or
with SIGCONT, and reports what it may reach.
"""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import NAP, AttackProbe, call, stdin
from flowzoo.sandbox.program import Limits

PATIENT = Limits(cpu_s=0.5, wall_s=2.5, memory_mb=128)

PROBES: tuple[AttackProbe, ...] = (
    stdin("signals", "all signals ignored", "TLE", """
        import signal
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True: pass
        """),
    stdin("signals", "SIGXCPU handled", "TLE", """
        import signal
        for name in ("SIGXCPU", "SIGALRM", "SIGPROF", "SIGVTALRM", "SIGTERM"):
            signal.signal(getattr(signal, name), lambda *_: None)
        while True: pass
        """),
    stdin("signals", "all signals blocked", "TLE", """
        import signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        time.sleep(30)
        """, limits=NAP),
    stdin("signals", "stops the parent", "AC RE", """
        import signal
        def parent():
            target = os.getppid()
            os.kill(target, 0 if target else 999_999_999)
            os.kill(target, signal.SIGSTOP)
        tries(parent)
        """, reaches=True, harmful=True),
    stdin("signals", "kills process 1", "AC RE", """
        import signal
        def first():
            os.kill(1, signal.SIGCONT)
            if os.getpid() != 1:
                os.kill(1, signal.SIGKILL)
                return "reached"
            raise PermissionError
        tries(first)
        """, reaches=True, harmful=True),
    stdin("signals", "kills everybody", "AC RE", """
        import signal
        def everybody():
            try:
                os.kill(@PID@, 0)
            except ProcessLookupError:
                alone = True  # in a process namespace of its own: only the box can be hit
            except PermissionError:
                alone = False
            else:
                return "sees the host"
            os.kill(-1, signal.SIGKILL if alone else signal.SIGCONT)
            if alone:
                raise PermissionError
        tries(everybody)
        """, reaches=True, harmful=True),
    stdin("signals", "kills its group", "AC RE MLE", """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            os.killpg(0, signal.SIGTERM)
        except OSError:
            pass
        print(n + 1)
        """, reaches=True, harmful=True),
    stdin("signals", "limits of the parent", "AC", """
        import resource
        def lower():
            resource.prlimit(os.getppid() or 999_999_999, resource.RLIMIT_NOFILE)
        def outside(): resource.prlimit(@PID@, resource.RLIMIT_NOFILE)
        tries(lower, outside)
        """, reaches=True, control=True),
    stdin("signals", "limits raised", "AC", """
        import resource
        def memory():
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            if hard == resource.RLIM_INFINITY:
                return "no limit"
            resource.setrlimit(resource.RLIMIT_AS, (hard + 1, hard + 1))
        tries(memory, passes=(OSError, ValueError))
        """, reaches=True, control=True),
    stdin("signals", "affinity and priority of others", "AC", """
        def affinity(): os.sched_setaffinity(@PID@, {0})
        def priority(): os.setpriority(os.PRIO_PROCESS, @PID@, 5)
        def caller(): os.setpriority(os.PRIO_PROCESS, @CALLER@, 0)
        def first(): os.setpriority(os.PRIO_PGRP, os.getppid() or 999_999_999, 5)
        tries(affinity, priority, caller, first)
        """, reaches=True, harmful=True),
    stdin("signals", "own priority raised", "AC", """
        def nice(): os.setpriority(os.PRIO_PROCESS, 0, -10)
        tries(nice)
        """, reaches=True),
    stdin("signals", "real-time scheduling", "AC", """
        def fifo(): os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        tries(fifo)
        """, reaches=True),
    stdin("signals", "daemon by double fork", "AC RE", """
        import time
        def daemon():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(30)
                os._exit(0)
        try:
            daemon()
        except OSError:
            pass
        print(n + 1)
        """, reaches=True, limits=PATIENT, harmful=True),
    stdin("signals", "zombies and orphans", "AC RE", """
        import time
        for _ in range(10):
            try:
                if os.fork() == 0:
                    time.sleep(30 * (_ % 2))
                    os._exit(0)
            except OSError:
                break
        print(n + 1)
        """, reaches=True, limits=PATIENT, harmful=True),
    stdin("signals", "vfork, clone and posix_spawn", "AC", """
        import subprocess
        def spawn(): os.posix_spawn(sys.executable or "/bin/true", ["x", "-c", "pass"], {})
        def shell(): os.execv("/bin/sh", ["sh", "-c", "echo leak"])
        def again(): os.execv(sys.executable or "/none", [sys.executable, "-c", "print('leak')"])
        tries(spawn, shell, again, passes=(OSError, ValueError))
        """, reaches=True, control=True),
    stdin("signals", "threads that outlive the answer", "TLE", """
        import threading
        def loop():
            while True: pass
        print(42, flush=True)
        threading.Thread(target=loop).start()
        """),
    stdin("signals", "daemon threads at the end", "AC", """
        import threading, time
        for _ in range(5):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        print(int(input()) + 1)
        """),
    call("signals", "alarm during the call", "RE TLE", """
        import signal
        def f(n):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while True: pass
        """),
)  # fmt: skip
