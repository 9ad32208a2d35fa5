"""Suspended generators: where they stand, what they hold, and what runs when they are closed.

One that the loop has made is made again where its function and its arguments are there (`anew`).
"""

import textwrap

from tests.state.roundtrip import Program


def _suspended(
    definition: str,
    call: str,
    loop: str = "next(g); next(g)",
    then: str = "rest = list(g)",
    *,
    anew: bool = True,
) -> Program:
    return Program(
        f"import contextlib, itertools, random\nlog = []\n{textwrap.dedent(definition)}",
        f"g = {call}; also = [g]",
        loop,
        then,
        anew=anew,
    )


PROGRAMS: dict[str, Program] = {
    f"generator {name}": program
    for name, program in {
        "untouched": _suspended("def f(n):\n    for i in range(n): yield i", "f(5)", "pass"),
        "in a for loop": _suspended("def f(n):\n    for i in range(n): yield i * i", "f(5)"),
        "in a while loop, with variables": _suspended("def f(n):\n    total, seen = 0, []\n    while total < n:\n        total += 3\n        seen.append(total)\n        yield total, seen", "f(20)"),
        "that has ended": _suspended("def f(n):\n    for i in range(n): yield i", "f(5)", "list(g)", "rest = list(g), g.__qualname__"),
        "that was closed": _suspended("def f(n):\n    for i in range(n): yield i", "f(5)", "next(g); g.close()", "rest = list(g), g.__qualname__"),
        "of a closure and named arguments, that has ended": _suspended("def outer(step):\n    def f(n, *, m):\n        for i in range(n, m, step): yield i\n    return f", "outer(2)(1, m=9)", "list(g)", "rest = list(g), g.__name__"),
        "with try and finally": _suspended("def f(n):\n    try:\n        for i in range(n): yield i\n    finally:\n        log.append('closed')", "f(5)", then="one = next(g); g.close(); seen = list(log)"),
        "with a context manager": _suspended("@contextlib.contextmanager\ndef guard():\n    log.append('in')\n    yield 1\n    log.append('out')\ndef f(n):\n    with guard() as one:\n        for i in range(n): yield i + one", "f(4)", then="rest = list(g); seen = list(log)"),
        "in an except branch's loop": _suspended("def f(n):\n    for i in range(n):\n        try:\n            if i % 2: raise ValueError(i)\n            yield i\n        except ValueError: yield -i", "f(6)", "next(g); next(g); next(g)"),
        "nested loops": _suspended("def f(n):\n    for i in range(n):\n        for j in 'abc': yield i, j", "f(4)", "[next(g) for _ in range(7)]"),
        "over another generator": _suspended("def inner(n):\n    for i in range(n): yield i\ndef f(n):\n    for i in inner(n): yield i * 10", "f(6)"),
        "that delegates": _suspended("def f(n):\n    yield 'first'\n    yield from range(n)\n    yield 'last'", "f(6)", "[next(g) for _ in range(4)]"),
        "that delegates to a generator": _suspended("def inner(n):\n    for i in range(n): yield i\n    return 'done'\ndef f(n):\n    got = yield from inner(n)\n    yield got", "f(4)", "[next(g) for _ in range(3)]"),
        "expression": _suspended("", "(n * n for n in range(8) if n % 3)", anew=False),
        "expression over an iterator that is named": _suspended("", "(n for n in iter(range(8)))", anew=False),
        "over an enumerate": _suspended("def f(x):\n    for i, v in enumerate(x): yield i, v", "f('abcdef')"),
        "over a zip": _suspended("def f(x):\n    for a, b in zip(x, range(9)): yield a, b", "f('abcdef')"),
        "over a dict": _suspended("def f(d):\n    for k in d: yield k, d[k]", "f({n: n * n for n in range(6)})", anew=False),
        "over a list that it changes": _suspended("def f(l):\n    for x in l:\n        l.append(x + 1)\n        yield x, len(l)", "f([1, 2])", then="rest = list(itertools.islice(g, 3))", anew=False),
        "over a shuffled list": _suspended("def f(l, rng):\n    while True:\n        rng.shuffle(l)\n        for x in l: yield x", "f(list(range(7)), random.Random(3))", "[next(g) for _ in range(10)]", "rest = list(itertools.islice(g, 20))", anew=False),
        "that is sent values": _suspended("def f():\n    total = 0\n    while True:\n        x = yield total\n        total += x or 1", "f()", "next(g); g.send(5); g.send(7)", "rest = g.send(1), next(g)"),
        "with a closure": _suspended("def outer():\n    n = [0]\n    count = 0\n    def f():\n        nonlocal count\n        while True:\n            count += 1\n            n[0] += count\n            yield count, n[0]\n    return f()", "outer()", then="rest = next(g), next(g)", anew=False),
        "with a deleted variable": _suspended("def f(n):\n    for i in range(n):\n        x = i\n        yield x\n        del x\n        yield None", "f(4)", "next(g); next(g); next(g)"),
        "as a coroutine that was primed": _suspended("def f():\n    got = []\n    while len(got) < 5: got.append((yield got))\n    return got", "f()", "next(g); g.send('a')", "rest = g.send('b')"),
        "of a method": _suspended("class C:\n    def __init__(self): self.n = 0\n    def f(self):\n        while self.n < 9:\n            self.n += 1\n            yield self.n", "(o := C()).f()", "next(g); next(g); o.n += 3", anew=False),
        "two of one function": Program("def f(n):\n    for i in range(n): yield i", "g, h = f(9), f(9)", "next(g); next(h); next(h)", "rest = list(g), list(h)", anew=False),
        "inside islice inside a list": _suspended("def f(n):\n    for i in range(n): yield i", "itertools.islice(f(20), 2, 12, 2)"),
        "with a keyword-only argument": _suspended("def f(n, *, step):\n    for i in range(0, n, step): yield i", "f(20, step=4)", anew=False),
        "in the middle of a long pass": _suspended("def f(n):\n    rng = random.Random(n)\n    for i in range(n): yield rng.random() + i", "f(3000)", "for _ in range(1500): next(g)", "rest = list(itertools.islice(g, 3))"),
        "with a lambda over its variable": _suspended("def f(n):\n    k = 1\n    h = lambda x: x + k\n    for i in range(n):\n        k += i\n        yield h(i)", "f(6)"),
    }.items()
}  # fmt: skip
