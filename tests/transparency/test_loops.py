"""Loops of every kind: what they compute and what they leave behind."""

from collections.abc import Callable
from typing import Any

import pytest

Same = Callable[..., Any]

LOOPS = {}

LOOPS["control flow"] = """
    def find(rows, wanted):
        for row in rows:
            for cell in row:
                if cell == wanted:
                    break
                if cell < 0:
                    continue
            else:
                continue
            break
        else:
            return "nowhere"
        return row, cell

    print(find([[1, 2], [-3, 4]], 4), find([], 1), find([[]], 1), find([[-1, -1], [2]], 9))

    n = 5
    while n := n - 1:
        if n == 3:
            continue
        while True:
            print(n, end=" ")
            break
        else:
            print("never")
        if n == 1:
            break
    else:
        print("never")
    while n > 9:
        print("never")
    else:
        print("at once", n)

    for x in "ab": print(x)
    for x in "": pass
    else: print("empty")
    while x: x = ""; print("one line")
    for i in range(3): continue
    for i in range(3): break
    else: print("never")
    for i in range(2):
        pass
    print(i, [i for i in range(5)], i, {i: j for i in "ab" for j in range(2) if j}, i)
    print({k for k in (1,)}, sum(i for i in (1, 2)), i)

    def from_with_and_try(k):
        import contextlib
        for i in range(k):
            with contextlib.suppress(ValueError):
                try:
                    if i == 0:
                        continue
                    if i == 1:
                        raise ValueError
                    if i == 2:
                        break
                finally:
                    print("finally", i)
            print("after", i)
        return i

    print(from_with_and_try(5), from_with_and_try(2))

    def returns(k):
        while True:
            try:
                return k
            finally:
                k += 1
                if k < 3:
                    continue
                elif k < 9:
                    return "finally"
                break
        return "after"

    print(returns(0), returns(7), returns(9))

    def one_of(command):
        for word in command.split():
            match word:
                case "stop" | "end":
                    break
                case "go":
                    for step in range(2):
                        match (step, word):
                            case (1, w) if w:
                                print("match", step, w)
                                break
                case str() as other:
                    continue
        else:
            return "all"
        return word

    print(one_of("go on"), one_of("x end go"))
    for i in range(2):
        if i: import os.path as p
        elif not i:
            for j in [0]:
                def nested(j=j):
                    for k in range(j, 2): yield k
        else: pass
    print(list(nested()), p.basename("a/b"))
    assert [i for i in range(3) if (last := i)] and last == 2
    """

LOOPS["targets"] = """
    class Box:
        def __init__(self):
            self.log = []

        def __setattr__(self, name, value):
            print("set", name, value)
            super().__setattr__(name, value)

        def __setitem__(self, key, value):
            print("item", key, value)

    box, cells = Box(), [0, 0, 0]
    for box.x in range(2):
        pass
    for box["k"] in range(2):
        pass
    for cells[len(box.log)] in "ab":
        box.log.append(1)
    for cells[1:] in [(7, 8, 9)]:
        pass
    for a, (b, *c), box.y in [(1, (2, 3, 4), 5), (6, "78", 9)]:
        print(a, b, c, box.y)
    for [d, *_] in ["xyz"]:
        print(d, _)
    for e, in [(1,)]:
        print(e)
    for x in 1, 2, *cells:
        print(x, end=" ")
    for cells in cells:
        print(cells)
    for i, i in [(1, 2)]:
        print(i)
    for i in range(3):
        i += 10
        print(i)
        del i
    print("i" in globals())
    for x in lambda: 1, lambda: 2:
        print(x())
    for _ in range(2): (y := _)
    print(y, box.x, sorted(k for k in globals() if not k.startswith("__")))

    def f(*args, **kwargs):
        for args in args:
            for kwargs in kwargs:
                pass
        return sorted(locals().items())

    print(f(1, 2, k=3))

    def g():
        global made
        for made in range(3):
            pass
        for unused in ():
            pass
        try:
            print(unused)
        except UnboundLocalError as error:
            print(error)
        return dir()

    print(g(), made)
    """

LOOPS["scopes"] = """
    class Table:
        rows = []
        for i in range(3):
            rows.append(lambda: i)
            for __hidden in "ab":
                pass
        while i > 1:
            i -= 1

        def run(self, n):
            total = 0
            for __k in range(n):
                def add(x):
                    nonlocal total
                    for total in range(total, total + x):
                        pass
                add(__k)
            return total, sorted(locals()), __class__

        def up(self):
            for name in ("__init__", "missing"):
                yield hasattr(super(), name)

    print(list(vars(Table)), Table.run.__code__.co_cellvars, Table.run.__code__.co_varnames)
    i = "global"
    print([row() for row in Table.rows], Table().run(4), list(Table().up()))

    class Meta(type):
        @classmethod
        def __prepare__(mcs, name, bases):
            class Loud(dict):
                def __setitem__(self, key, value):
                    if key != "__firstlineno__":
                        print("namespace", key)
                    super().__setitem__(key, value)

                def __getitem__(self, key):
                    print("look up", key)
                    return super().__getitem__(key)
            return Loud()

    class Loud(metaclass=Meta):
        for j in range(2):
            k = j
        while k:
            k = 0

    late = []
    for i in range(3):
        late.append(lambda: i)
    print([f() for f in late], [f() for f in [lambda: i for i in range(2)]])

    def counter():
        late = []
        for i in range(3):
            late.append(lambda: i)
            late.append(lambda i=i: i)
        return [f() for f in late], late[0].__code__.co_freevars

    print(counter())

    def decorate(times):
        def wrap(f):
            for k in range(times):
                f = (lambda f, k: lambda *a: (k, f(*a)))(f, k)
            return f
        return wrap

    @decorate(2)
    @decorate(times=len([x for x in range(1)]))
    def plain(x):
        for x in [x]:
            return x

    print(plain("x"))
    scope = {}
    exec("for i in range(3):\\n    x = i", scope)
    print(sorted(set(scope) - {"__builtins__"}), eval("[i for i in range(2)]"))

    def names():
        before = sorted(locals())
        for a in [1]:
            b = 2
            inside = sorted(vars())
        while a:
            a = 0
        return before, inside, sorted(locals()), names.__code__.co_nlocals, [
            name for name in names.__code__.co_names if not name.startswith("__detrain")  # the hooks; documented
        ]

    print(names())
    print(sorted(globals()))
    """

LOOPS["generators"] = """
    def source(name, n):
        print("start", name)
        try:
            for i in range(n):
                try:
                    got = yield i
                    while got:
                        got = yield ("got", got)
                except KeyError as error:
                    print("caught", error)
                    for j in range(2):
                        yield ("thrown", j)
        except GeneratorExit:
            print("exit", name, i)
            raise
        finally:
            print("finally", name)
        return "result of " + name

    def delegate():
        for name in "ab":
            result = yield from source(name, 2)
            print(result)

    print(list(delegate()))
    g = source("c", 3)
    print(next(g), g.send("x"), g.throw(KeyError("k")), next(g), next(g))
    g.close()
    g = source("d", 3)
    for x in g:
        break
    del g
    g = source("e", 1)
    next(g)
    try:
        g.throw(ValueError("through the loop"))
    except ValueError as error:
        print(error, error.__traceback__.tb_next.tb_lineno)
    try:
        while True:
            print(next(g))
    except StopIteration as stop:
        print("stop", stop.value)

    def leaks():
        for x in [1]:
            yield x
            raise StopIteration("inside")

    try:
        for x in leaks():
            print(x)
    except RuntimeError as error:
        print(error, repr(error.__cause__))
    try:
        for x in [1, 2]:
            next(iter([]))
    except StopIteration:
        print("StopIteration in the body, at", x)

    def refuses():
        for x in range(3):
            try:
                yield x
            except GeneratorExit:
                yield "still here"

    g = refuses()
    next(g)
    try:
        g.close()
    except RuntimeError as error:
        print(error)

    def received():
        for x in (yield):
            for y in (yield x):
                yield (yield y)

    g = received()
    next(g)
    print(g.send("ab"), g.send("cd"), g.send(1), g.send(2), g.gi_frame.f_lineno, sorted(g.gi_frame.f_locals))
    it = iter(range(5))
    for x in it:
        print(x, next(it, None), it.__length_hint__())
    for x in iter(lambda: next(it2), 3) if (it2 := iter(range(9))) else ():
        print(x)
    for i, (x, y) in enumerate(zip("ab", reversed([1, 2])), start=1):
        print(i, x, y)
    total = 0
    for x in (y * y for y in range(200_000)):
        total += x
    while total > 10:
        total //= 3
    print(total)
    """

LOOPS["protocol"] = """
    class Nosy:
        "An object that tells who touches it."

        def __init__(self, name, n=0):
            object.__setattr__(self, "name", name)
            object.__setattr__(self, "n", n)

        def __getattribute__(self, attribute):
            own = object.__getattribute__
            print("get", own(self, "name"), attribute)
            return own(self, attribute)

        def touch(self, what):
            print(what, object.__getattribute__(self, "name"))

        def __iter__(self):
            print("iter")
            return self

        def __next__(self):
            print("next")
            n = object.__getattribute__(self, "n")
            if not n:
                raise StopIteration
            object.__setattr__(self, "n", n - 1)
            return Nosy(f"item {n}")

        def __len__(self): print("len"); return 3
        def __length_hint__(self): print("length hint"); return 3
        def __bool__(self): print("bool"); return True
        def __eq__(self, other): print("eq"); return True
        def __hash__(self): print("hash"); return 1
        def __repr__(self): print("repr"); return "Nosy"
        def __del__(self): print("del", object.__getattribute__(self, "name"))
        def __reduce_ex__(self, protocol): print("reduce"); return super().__reduce_ex__(protocol)
        def __copy__(self): print("copy"); return self
        def __deepcopy__(self, memo): print("deepcopy"); return self

    class Meta(type):
        def __instancecheck__(cls, instance): print("isinstance"); return False
        def __subclasscheck__(cls, sub): print("issubclass"); return False
        def __getattr__(cls, name): print("class get", name); raise AttributeError(name)

    class Odd(metaclass=Meta):
        def __getitem__(self, k):
            if k > 2:
                raise IndexError(k)
            return k

    def epochs(rows):
        for row in rows:
            print("body")
            for k in Odd():
                print(k)
        while row:
            print("while")
            break
        print("end of epochs")

    epochs(Nosy("rows", 2))
    for thing in Nosy("other rows", 2):
        print("body")
        while thing:
            del thing
            break
    for thing in [Nosy("first"), Nosy("second")]:
        print("loop")
    print("after")
    thing = None

    def drop():
        for k in range(2):
            fresh = Nosy(f"fresh {k}")
        for fresh in [Nosy("last")]:
            pass
        return 1

    print(drop())
    import sys
    one = object()
    for x in [one]:
        print(sys.getrefcount(x))

    def counts(rows):
        for x in rows:
            print(sys.getrefcount(x), sys.getrefcount(rows))

    counts([object(), object()])
    print("end")
    """


@pytest.mark.parametrize("name", LOOPS)
def test_loops_do_what_they_do_under_python(same: Same, name: str) -> None:
    outcome = same(LOOPS[name], says="")
    assert len(outcome.stdout.splitlines()) > 15
    assert outcome.stderr == ""


def test_loops_of_an_imported_module_behave_alike(same: Same) -> None:
    merged = {name: script for name, script in LOOPS.items() if name not in ("scopes", "protocol")}
    files = {f"part_{k}.py": script for k, script in enumerate(merged.values())}
    script = "".join(f"import part_{k}\n" for k in range(len(merged)))
    same(script, files=files, says=["nowhere", "start a"])


def test_a_long_training_like_script_prints_the_same(same: Same) -> None:
    script = """
        import random
        random.seed(3)

        class Model:
            def __init__(self):
                self.w = [random.gauss(0, 1) for _ in range(4)]

            def step(self, batch, lr):
                for x, y in batch:
                    error = sum(w * v for w, v in zip(self.w, x)) - y
                    for k, v in enumerate(x):
                        self.w[k] -= lr * error * v
                return error * error

        def batches(rows, size):
            rows = rows[:]
            random.shuffle(rows)
            while rows:
                batch, rows = rows[:size], rows[size:]
                yield batch

        rows = [([random.random() for _ in range(4)], k % 2) for k in range(64)]
        model, best = Model(), float("inf")
        for epoch in range(5):
            for i, batch in enumerate(batches(rows, 8)):
                loss = model.step(batch, 0.1)
                if i % 4 == 0:
                    print(f"epoch {epoch} batch {i}: {loss!r}")
            if loss < best:
                best = loss
                with open("best.txt", "w") as file:
                    file.write(repr(model.w))
        print(best, random.random())
        """
    outcome = same(script, says="epoch 4 batch 4")
    assert outcome.files["best.txt"].startswith(b"[")
