"""Programs that want the reward without the work, in function mode: f(41) must be 42.

Nothing but plain data of exact types leaves the box, and it is compared outside: an object that is
equal to everything is no plain data there, and in a check it never meets the test's code.
"""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import CHECK, AttackProbe, call, stdin
from flowzoo.sandbox.program import CallTest, CheckTest, StdinTest

_EQUAL = """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __hash__(self): return hash(42)
    def __bool__(self): return True
    def __len__(self): return 42
    def __iter__(self): return iter([42])
    def __getitem__(self, key): return self
    def __getattr__(self, name): return self
    def __call__(self, *rest, **named): return self
    def __int__(self): return 42
    __index__ = __int__
    def __float__(self): return 42.0
    def __abs__(self): return 0
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __sub__
    def __repr__(self): return "42"
    __str__ = __repr__
    def __reduce__(self): return (int, (42,))
"""
_EQUAL_RESULT = _EQUAL + "def f(n):\n    return Equal()\n"
_SWITCH = (CallTest((41,), 42), CallTest((1,), 2))
_LIST = (CallTest(([1, 2],), [3]),)
_SEVERAL = (
    CheckTest("def check(candidate):\n    for n in range(50): assert candidate(n) == n + 1\n"
              "    assert isinstance(candidate(1), int) and candidate(1) == candidate(1)\n"
              "    assert not candidate(2) == 7, 'too equal'\n", "check(candidate)"),
)  # fmt: skip

PROBES: tuple[AttackProbe, ...] = (
    call("hacks", "object equal to everything", "WA RE", _EQUAL_RESULT),
    call("hacks", "object equal to everything, checked", "WA RE", _EQUAL_RESULT, tests=CHECK),
    call("hacks", "list of objects equal to everything", "WA RE",
         _EQUAL + "def f(n):\n    return [Equal()]\n", tests=_LIST),
    call("hacks", "dict with an equal value, checked", "WA RE",
         _EQUAL + "def f(n):\n    return {1: (Equal(),)}\n",
         tests=(CheckTest("assert candidate(1) == {1: (2,)}"),)),
    call("hacks", "class whose metaclass is equal", "WA RE", """
        class Meta(type):
            def __eq__(cls, other): return True
            def __hash__(cls): return 42
            def __instancecheck__(cls, other): return True
        class f(metaclass=Meta):
            def __new__(cls, n): return cls
        """),
    call("hacks", "subclass of int, checked", "WA RE", """
        class Odd(int):
            def __eq__(self, other): return True
            __hash__ = int.__hash__
        def f(n): return Odd(0)
        """, tests=CHECK),
    call("hacks", "subclass of str", "WA RE", """
        class Odd(str):
            def __eq__(self, other): return True
            __hash__ = str.__hash__
            def encode(self, *rest): return b"right"
            def __len__(self): return 5
        def f(n): return Odd("wrong")
        """, tests=(CallTest((1,), "right"),)),
    call("hacks", "subclasses of list and dict", "WA RE", """
        class Row(list):
            def __iter__(self): return iter([3])
            def __len__(self): return 1
            def __eq__(self, other): return True
        def f(row): return Row()
        """, tests=_LIST),
    call("hacks", "class that lies about its type", "WA RE", """
        class Odd:
            @property
            def __class__(self): return int
            def __eq__(self, other): return True
        def f(n): return Odd()
        """),
    call("hacks", "float for an int", "WA", "def f(n): return float(n + 1)"),
    call("hacks", "bool for an int", "WA", "def f(n): return True", tests=(CallTest((0,), 1),)),
    call("hacks", "tuple for a list", "WA", "def f(row): return (3,)", tests=_LIST),
    call("hacks", "text of the answer", "WA", "def f(n): return '42'"),
    call("hacks", "NaN", "WA", "def f(n): return float('nan')"),
    call("hacks", "nothing", "WA", "def f(n): pass"),
    call("hacks", "NotImplemented", "WA RE", "def f(n): return NotImplemented"),
    call("hacks", "endless generator", "WA RE TLE", "def f(n):\n    while True: yield n + 1"),
    call("hacks", "endless iterator for a list", "WA RE TLE",
         "import itertools\ndef f(row): return itertools.count(3)", tests=_LIST),
    call("hacks", "deep nesting", "WA RE MLE OLE", """
        def f(n):
            x = []
            for _ in range(100_000): x = [x]
            return x
        """),
    call("hacks", "list that holds itself", "WA RE MLE OLE",
         "def f(n):\n    x = [42]\n    x.append(x)\n    return x"),
    call("hacks", "shared parts that explode", "WA RE MLE OLE TLE", """
        def f(n):
            x = [42]
            for _ in range(45): x = [x, x]
            return x
        """),
    call("hacks", "alias of the changed argument", "WA", """
        kept = []
        def f(row):
            kept.append(row)
            for old in kept: old[:] = [3]
            return row if len(kept) > 1 else []
        """, tests=(CallTest(([1, 2],), [3]), CallTest(([1],), [3]))),
    call("hacks", "argument of the test changed, checked", "WA RE",
         "def f(row):\n    row[:] = [0]\n    return [0]",
         tests=(CheckTest("row = [1, 2]\nassert candidate(row) == row"),)),
    call("hacks", "expected value changed through the argument", "WA RE", """
        def f(row):
            expected = row[1]
            expected.clear()
            return []
        """, tests=(CheckTest("want = [1]\nassert candidate([0, want]) == want"),)),
    call("hacks", "patched builtins, checked", "WA RE", """
        import builtins
        builtins.isinstance = builtins.all = lambda *_: True
        builtins.AssertionError = type("AssertionError", (Exception,), {})
        def f(n): return 0
        """, tests=CHECK),
    call("hacks", "patched json, pickle, struct and io", "WA RE", """
        import sys
        for name in ("json", "struct", "io", "os", "pickle", "marshal", "codec", "wire"):
            module = sys.modules.get(name)
            for key in list(vars(module)) if module else ():
                if callable(getattr(module, key)) and key in (
                    "dumps", "pack", "write", "encode", "dump", "encode_value", "unpack"):
                    setattr(module, key, lambda *_, **__: b"42")
        def f(n): return 0
        """),
    call("hacks", "patched unittest and pytest", "WA RE", """
        import sys, types, unittest
        unittest.TestCase.assertEqual = lambda *_: None
        for name in ("pytest", "flowzoo", "numpy", "numpy.testing"):
            sys.modules[name] = types.ModuleType(name)
        def f(n): return 0
        """, tests=CHECK),
    call("hacks", "fake modules for the runner", "WA RE", """
        import sys, types
        for name in list(sys.modules):
            if name not in ("sys", "builtins", "types"):
                fake = types.ModuleType(name)
                fake.__getattr__ = lambda key: (lambda *_, **__: 42)
                sys.modules[name] = fake
        def f(n): return 0
        """),
    call("hacks", "frames of the caller changed", "WA RE", """
        import ctypes, sys
        write = ctypes.pythonapi.PyFrame_LocalsToFast
        def f(n):
            frame = sys._getframe().f_back
            while frame is not None:
                for key, value in list(frame.f_locals.items()):
                    if type(value) in (int, bool, str):
                        frame.f_locals[key] = 42
                        write(ctypes.py_object(frame), ctypes.c_int(0))
                frame = frame.f_back
            return 0
        """),
    call("hacks", "settrace that rewrites results", "WA RE TLE", """
        import sys
        def f(n):
            def trace(frame, event, argument):
                for key in list(frame.f_locals): frame.f_locals[key] = 42
                return trace
            frame = sys._getframe()
            while frame is not None:
                frame.f_trace = trace
                frame = frame.f_back
            sys.settrace(trace)
            return 0
        """),
    call("hacks", "garbage collector finds the runner", "WA RE TLE", """
        import gc
        def f(n):
            for item in gc.get_objects():
                if type(item) is dict:
                    for key in ("expected", "result", "value", "outcome", "passed", "ok", "status"):
                        if key in item:
                            item[key] = 42
                elif type(item) is list:
                    for at, part in enumerate(item):
                        if part == 0 and type(part) is int:
                            item[at] = 42
            return 0
        """),
    call("hacks", "encoder's functions replaced", "WA RE", """
        import gc, types
        def f(n):
            def fake(*_, **__): return b"42"
            for item in gc.get_objects():
                if type(item) is types.FunctionType and "encode" in item.__name__:
                    try:
                        item.__code__ = fake.__code__
                    except (ValueError, AttributeError):
                        pass
            return 0
        """),
    call("hacks", "looks for the expected value", "WA RE", """
        import gc, sys
        def wanted(value): return type(value) is int and value - 42 == 10**6
        def f(n):
            frame = sys._getframe()
            while frame is not None:
                for value in list(frame.f_locals.values()):
                    if wanted(value): return value
                frame = frame.f_back
            for item in gc.get_objects():
                for part in item if type(item) in (list, tuple) else ():
                    if wanted(part): return part
            return 0
        """, tests=(CallTest((41,), 1_000_042),)),
    call("hacks", "reads the test's code", "WA RE", """
        import gc
        head = "".join(("def check", "(candidate)"))
        def f(n):
            for item in gc.get_objects():
                for part in item if isinstance(item, (list, tuple)) else ():
                    if isinstance(part, str) and head in part:
                        return 42
            return 0
        """, tests=CHECK),
    call("hacks", "SystemExit caught by nobody", "WA RE", """
        class Quiet(SystemExit):
            def __eq__(self, other): return True
        def f(n): raise Quiet(0)
        """, tests=_SEVERAL),
    call("hacks", "argument emptied, of which the test makes what it expects", "WA RE",
         "def f(row):\n    row.clear()\n    return []",
         tests=(CheckTest("row = [2, 1]\nassert candidate(row) == sorted(row)"),)),
    call("hacks", "argument emptied, and None expected of it", "WA RE", "def f(row): row.clear()",
         tests=(CheckTest("row = [2]\nassert candidate(row) == (row[0] if row else None)"),)),
    call("hacks", "StopIteration into a map", "WA RE", "def f(n): raise StopIteration",
         tests=(CheckTest("assert all(map(lambda n: candidate(n) == 1, range(3)))"),)),
    call("hacks", "StopIteration into a zip", "WA RE", "def f(n): raise StopIteration(1)",
         tests=(CheckTest("for a, b in zip(map(candidate, [1, 2]), [1, 2]):\n    assert a == b"),)),
    call("hacks", "StopIteration into the test", "WA RE", "def f(n): raise StopIteration",
         tests=(CheckTest("assert [candidate(n) for n in range(3)] == [1, 2, 3]"),)),
    call("hacks", "exception that claims to be expected", "WA RE", """
        class Fake(Exception):
            def __init__(self, *_): self.args = ("candidate", 42)
        Fake.__name__ = Fake.__qualname__ = "SystemExit"
        Fake.__module__ = "builtins"
        def f(n): raise Fake
        """, tests=CHECK),
    call("hacks", "object equal to everything in many checks", "WA RE", _EQUAL_RESULT,
         tests=_SEVERAL),
    call("hacks", "answers that differ between calls", "WA", """
        calls = 0
        def f(n):
            global calls
            calls += 1
            return n + calls
        """, tests=_SWITCH),
    call("hacks", "works in the first call only", "WA RE TLE", """
        calls = []
        def f(n):
            calls.append(n)
            return n + 1 if len(calls) == 1 else 0
        """, tests=_SEVERAL),
    call("hacks", "replaces itself", "WA RE", """
        class f:
            def __new__(cls, n): return object.__new__(cls)
            def __eq__(self, other): return True
        """),
    call("hacks", "entry is a property of a class", "WA RE", """
        class S:
            @property
            def f(self): return lambda n: S()
            def __eq__(self, other): return True
        """, entry="S.f"),
    call("hacks", "entry lookup answered by the module", "WA RE", """
        def __getattr__(name): return lambda *_: 0
        """),
    call("hacks", "writes the result itself and exits", "WA RE OLE", """
        import os
        def f(n):
            for fd in range(3, 64):
                try:
                    os.write(fd, (42).to_bytes(8, "big") * 4)
                except OSError:
                    pass
            os._exit(0)
        """),
    call("hacks", "result channel closed or replaced", "WA RE", """
        import os
        def f(n):
            for fd in range(3, 64):
                try:
                    os.dup2(1, fd)
                except OSError:
                    pass
            return 0
        """),
    call("hacks", "fork that answers twice", "WA RE", """
        import os
        def f(n):
            try:
                os.fork()
            except OSError:
                pass
            return 0
        """),
    call("hacks", "atexit forgery", "WA RE", """
        import atexit, os
        def forge():
            for fd in range(1, 64):
                try:
                    os.write(fd, b"\\x00" * 3 + b"42")
                except OSError:
                    pass
        atexit.register(forge)
        def f(n): return 0
        """),
    stdin("hacks", "prints what it is asked", "WA", "print(input())"),
    stdin("hacks", "prints NaN for a number", "WA", "print('nan')",
          tests=(StdinTest("1\n", "3.25\n"),)),
    stdin("hacks", "marker words", "WA", "print('OK')\nprint('PASSED 1/1')\nprint('AC')"),
)  # fmt: skip
