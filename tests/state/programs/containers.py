"""Containers of Python: their content, their order, who shares what with whom."""

from tests.state.roundtrip import Program

_LATER = "a = [1, 2.5, 'x', b'y', None, True]"


def _changes(made: str, change: str, then: str = "", *, imports: str = "", anew: bool = True) -> Program:
    """One container under two names, one of them inside another container."""
    return Program(imports, f"a = {made}\nholder = [a, 'and more']", change, then or "size = len(a)", anew)


_ATOMS = {
    "nan with a payload": "struct.unpack('<d', bytes.fromhex('010000000000f87f'))[0]",
    "infinity": "float('-inf')",
    "negative zero": "-0.0",
    "a whole number of 6,000 bits": "-(1 << 6000)",
    "one that JSON's readers refuse": "1 << 20000",
    "text with a lone surrogate": r"'\ud800 and \0 and \n'",
    "bytes": r"b'\0\xff'",
    "complex": "complex(-0.0, float('nan'))",
    "nested tuples": "(1, (2.0, ('three', (None, (b'5',)))))",
    "tuples in tuples, deeper than a node": "functools.reduce(lambda inner, _: (inner,), range(80), 1)",
    "an ellipsis": "...",
    "what a method returns that does not apply": "NotImplemented",
    "a range": "range(10, -3, -4)",
    "a slice": "slice(None, 5, [1][0])",
    "a path": "pathlib.PurePosixPath('a/../b')",
    "a pattern": "re.compile('a(b)?', re.I | re.X)",
    "a match": "re.compile('a(b)?').match('xab', 1)",
    "a decimal": "decimal.Decimal('1.10')",
    "a fraction": "fractions.Fraction(6, 4)",
    "a struct": "struct.Struct('<2i')",
    "a uuid": "uuid.UUID(int=5)",
    "a time span": "datetime.timedelta(days=-1, microseconds=3)",
    "a date and time": "datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=datetime.timezone.utc)",
    "an item getter": "operator.itemgetter(1, 'x')",
    "an attribute getter": "operator.attrgetter('a.b')",
    "a frozen set": "frozenset({1, 'two', (3,)})",
    "a time tuple": "time.gmtime(0)",
}
_IMPORTS = "import datetime, decimal, fractions, functools, operator, pathlib, re, struct, time, uuid"

_SETS = {
    "grown and shrunk": "[a.add(n) for n in range(300)]; [a.discard(n) for n in range(290)]",
    "popped": "a |= set(range(50)); [a.pop() for _ in range(20)]",
    "texts": "a |= {str(n) for n in range(30)}; a.discard('7')",
    "mixed": "a |= {1.5, 'x', (1, 'y'), b'z', 3 + 4j, frozenset({2})}",
    "emptied": "a.update(range(100)); a.clear()",
    "collisions": "a |= {n * 1024 for n in range(20)}; a -= {2048, 4096}; a |= {2048}",
}

PROGRAMS: dict[str, Program] = {
    **{f"atom, {name}": Program(_IMPORTS, "a = None", f"a = {value}", "b = [a, a]") for name, value in _ATOMS.items()},
    **{f"atom made in set-up, {name}": Program(_IMPORTS, f"a = {value}", "b = a", "c = [a, b]") for name, value in _ATOMS.items()},
    **{
        f"set, {name}": Program("", "a = {1, 2, 3}; b = [a]", change, "popped = [b[0].pop() for _ in range(min(5, len(a)))]; a |= set(range(900, 960)); order = list(a)")
        for name, change in _SETS.items()
    },
    **{
        f"frozen set, {name}": Program("", "a = {1, 2, 3}; f = frozenset()", f"{change}; f = frozenset(a)", "order = list(f); found = [one in f for one in a]")
        for name, change in _SETS.items()
    },
    "list, changed in place": _changes("[1, 2]", "a.append([3]); del a[0]", "a.append(a[-1])"),
    "list, replaced, the old one kept": Program("", "a = [1]; old = a", "a = [2]", "old.append(a); a.append(5)"),
    "list, two names swapped": Program("", "a, b = [1], [2]; both = [a, b]", "a, b = b, a; a.append(9)", "both[0].append(0)"),
    "list, emptied": _changes("[1, 2, 3]", "a.clear()"),
    "list, in itself": Program("", "a = [1]", "a.append(a); a.append((a, a))", "a[1].append(2)"),
    "list, of many numbers": _changes("list(range(3000))", "a[5] = -1; a.append(7)", "total = sum(a)"),
    "list, of many floats": _changes("[n / 7 for n in range(3000)]", "a[0] = float('nan'); a[1] = -0.0", "a.pop()"),
    "list, of many wide numbers": _changes("list(range(1100))", "a[3] = 1 << 70", "a.pop()"),
    "list, of many numbers and a bool": _changes("list(range(1100))", "a[3] = True", "a.pop()"),
    "list, of a derived class": Program("class L(list):\n    pass", "a = L([1]); a.name = 'x'", "a.append(2); a.other = a", "a.name += 'y'"),
    "tuple, of lists": Program("", "t = ([1], [2]); one = t[0]", "t[0].append(3)", "one.append(4)"),
    "tuple, replaced by one of the same lists": Program("", "x = [1]; t = (x, 1)", "t = (x, 2)", "x.append(1)"),
    "tuple, in a circle": Program("", "x = []", "t = (x, 1); x.append(t)", "x[0][0].append(2)"),
    "tuple, named": Program("import collections\nP = collections.namedtuple('P', 'x y')", "p = P(1, [2])", "p = p._replace(x=3); p.y.append(4)", "s = p.x, p._asdict()"),
    "tuple, named and typed": Program("import typing\nclass P(typing.NamedTuple):\n    x: int\n    y: list = []", "p = P(1)", "p.y.append(2); q = P(2, p.y)", "q.y.append(q.x)"),
    "tuple, of a derived class": Program("class T(tuple):\n    pass", "t = T((1, [2])); t.name = 1", "t[1].append(3); t.name = [t]", "t.name.append(1)"),
    "dict, order after changes": _changes("dict(a=1, b=2, c=3)", "del a['a']; a['a'] = 5; a['d'] = {}", "order = list(a)"),
    "dict, keys of many kinds": _changes("{}", "a.update({1: 'i', True: 't', 1.5: 'f', None: 0, (1, 2): [], b'k': 1, 'k': 2, frozenset({1}): 3})", "order = list(a.items())"),
    "dict, keys by identity": Program("class K:\n    pass", "k = K(); d = {k: [1]}", "d[k].append(2); other = K(); d[other] = d[k]", "d[other].append(3); order = [key is k for key in d]"),
    "dict, keys with hashes of their own": Program("class K:\n    def __init__(self, n): self.n = n\n    def __hash__(self): return hash(self.n)\n    def __eq__(self, o): return self.n == o.n", "d = {}", "for n in range(5): d[K(n)] = n\ndel d[K(2)]", "found = [d.get(K(n)) for n in range(6)]"),
    "dict, with nan as a key": Program("", "n = float('nan'); d = {}", "d[n] = 1; d[2] = n", "found = d.get(n)"),
    "dict, in itself": Program("", "d = {}", "d['d'] = d; d['l'] = [d]", "d['d']['x'] = 1"),
    "dict, with a factory": _changes("collections.defaultdict(list)", "a['x'].append(1); a['y']", "a['z'].append(2)", imports="import collections"),
    "dict, with a factory of the program's": Program("import collections\ndef make(): return [0]", "d = collections.defaultdict(make)", "d[1].append(2)", "d[7].append(3)"),
    "dict, ordered": _changes("collections.OrderedDict(a=1, b=2, c=3)", "a.move_to_end('a'); a.move_to_end('c', last=False)", "first = a.popitem(last=False); a['n'] = 1", imports="import collections"),
    "dict, a counter": _changes("collections.Counter('abracadabra')", "a['a'] -= 10; a.update('zz')", "common = a.most_common(2)", imports="import collections"),
    "dict, of a derived class that overrides": Program("class D(dict):\n    def items(self): return []\n    def __setitem__(self, k, v): dict.__setitem__(self, k, v + 1)", "d = D(); d['x'] = 1; d.tag = []", "d['y'] = 2; d.tag.append(d)", "d['z'] = 3"),
    "attributes that all instances share": Program("class B:\n    shared = {}\n    def __init__(self, x): self.__dict__ = self.shared; self.x = x", "a = B(1)", "b = B([2]); c = [B(3)]; a.y = b.x", "a.x = 4; seen = b.x, c[0].x, B(5).y, b.x"),
    "dict, that is its own attributes": Program("class D(dict):\n    def __init__(self): self.__dict__ = self", "d = D(); d.x = 1", "d.y = [d.x]", "d.x += 1; seen = d['x'], d['y']"),
    "dict, a chain of maps": Program("import collections", "base = {}; c = collections.ChainMap({}, base)", "base['x'] = 1; c['y'] = 2; c = c.new_child()", "c['z'] = 1; base['w'] = 3; n = dict(c)"),
    "dict, views": Program("", "d = {'a': 1}; k, v, i = d.keys(), d.values(), d.items()", "d['b'] = 2", "d['c'] = 3; seen = list(k), list(v), list(i)"),
    "dict, views of an ordered one": Program("import collections", "d = collections.OrderedDict(a=1); k, v, i = d.keys(), d.values(), d.items()", "d['b'] = 2", "d['c'] = 3; seen = list(k), list(v), list(i)"),
    "dict, a read-only view": Program("import types", "d = {'a': 1}; p = types.MappingProxyType(d)", "d['b'] = 2", "d['c'] = 3; seen = dict(p)"),
    "dict, a user's": Program("import collections", "d = collections.UserDict(a=1); l = collections.UserList([1]); s = collections.UserString('x')", "d['b'] = l; l.append(2); s += 'y'", "l.append(d['a'])"),
    "deque, with a bound": _changes("collections.deque([1, 2], maxlen=3)", "a.extend([3, [4]])", "a.append(5)", imports="import collections"),
    "deque, with another bound than before": Program("import collections", "a = collections.deque(maxlen=3)", "a = collections.deque([1, 2], maxlen=2)", "a.appendleft(0)"),
    "deque, rotated": _changes("collections.deque(range(100))", "a.rotate(33); a.popleft()", "a.rotate(-1)", imports="import collections"),
    "deque, of a derived class": Program("import collections\nclass Q(collections.deque):\n    pass", "q = Q([1], 5); q.n = 1", "q.append(q); q.n = 2", "q.append(1)"),
    "set, of objects": Program("class K:\n    pass", "k = K(); s = {k}", "k.x = 1", "found = k in s, len(s)"),
    "set, of what hashes by its attributes": Program("import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n    x: int\n    y: str = 'a'", "s = {C(1)}", "s |= {C(n) for n in range(20)}; s.discard(C(3))", "order = [c.x for c in s]; found = C(4) in s, C(3) in s"),
    "set, of a derived class": Program("class S(set):\n    pass", "s = S({1}); s.n = 1", "s.add(2); s.n = [s]", "s.add(3)"),
    "frozen set, of what hashes by its attributes": Program("import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n    x: int", "f = frozenset()", "f = frozenset({C(n) for n in range(9)}); d = {f: 1}", "order = [c.x for c in f]; found = d[frozenset({C(n) for n in range(9)})]"),
    "buffer, bytes": _changes("bytearray(b'abc')", "a += b'd'; a[0] = 0", "a.pop()"),
    "buffer, of a derived class": Program("class B(bytearray):\n    pass", "b = B(b'1'); b.n = 1", "b += b'2'; b.n = [2]", "b.n.append(b)"),
    "buffer, an array": _changes("array.array('d', [1.5, 2.5])", "a.append(float('nan'))", "a.append(1.0)", imports="import array"),
    "buffer, an array of another type": Program("import array", "a = array.array('i', [1])", "a = array.array('q', [1 << 40])", "a.append(2)"),
    "atoms of derived classes": Program("class I(int): pass\nclass F(float): pass\nclass C(complex): pass\nclass S(str): pass\nclass B(bytes): pass", "i, f, c, s, b = I(1), F(1.5), C(1j), S('x'), B(b'y'); i.n = 1", "i = I(2); i.n = [i]; f.t = s; c.k = 1", "i.n.append(f.t)"),
    "text, of a derived class that prints otherwise": Program("class S(str):\n    def __str__(self): return 'no'\n    def __repr__(self): return 'no'", "s = S('x')", "s = S('y'); s.a = 1", "t = s + 'z'"),
    "a deep list": Program("", "a = []", "for _ in range(150): a = [a]", "depth = 0\nwhile a: a, depth = a[0], depth + 1"),
}  # fmt: skip
