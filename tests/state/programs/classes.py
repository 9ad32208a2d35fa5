"""Classes that are made at run time: by a function, by a factory of the standard library, by the loop."""

from tests.state.roundtrip import Program

PROGRAMS = {
    "class of the loop": Program("", "", "class K:\n    made = [1]\n    def f(self): return self.x, self.made\nk = K(); k.x = [2]; K.made.append(3)", "k.x.append(4); K.made.append(5); last = k.f(), isinstance(k, K)"),
    "class of the loop, derived": Program("class Base:\n    def f(self): return 1", "", "class K(Base):\n    def f(self): return super().f() + self.x\nk = K(); k.x = 2", "last = k.f(), isinstance(k, Base)"),
    "class made by `type`": Program("", "", "K = type('K', (), {'a': 1, 'f': lambda self: self.a}); k = K(); k.a = [4]", "k.a.append(1); last = k.f(), K.__name__"),
    "class of a function": Program("def make(n):\n    class K:\n        def f(self): return n + self.x\n    return K", "", "k, m = make(1)(), make(2)(); k.x = m.x = 5", "last = k.f(), m.f(), type(k) is type(m)"),
    "class with a metaclass": Program("class Meta(type):\n    def __call__(cls, *args):\n        made = super().__call__(*args); cls.count += 1; return made", "", "class K(metaclass=Meta):\n    count = 0\nk = K(); K()", "K(); last = K.count, type(K) is Meta"),
    "class with properties and class methods": Program("", "", "class K:\n    @property\n    def p(self): return self.x * 2\n    @classmethod\n    def c(cls): return cls.__name__\n    @staticmethod\n    def s(): return 3\nk = K(); k.x = 2", "last = k.p, k.c(), k.s()"),
    "named tuple of a function": Program("import collections\ndef make(): return collections.namedtuple('R', 'a b', defaults=[5])", "", "R = make(); r = R([1])", "r.a.append(2); last = r, r.b, r._replace(a=3), R._fields, r._asdict()"),
    "named tuple of the loop": Program("import collections", "", "R = collections.namedtuple('R', 'a b'); r = R(1, [2])", "r.b.append(3); a, b = r; last = a, b, R(4, 5)"),
    "typed tuple of the loop": Program("import typing", "", "class R(typing.NamedTuple):\n    a: int\n    b: int = 2\nr = R([1])", "last = r.b, r._asdict()"),
    "dataclass of a function": Program("import dataclasses\ndef make():\n    @dataclasses.dataclass\n    class C:\n        a: int = 1\n        b: list = dataclasses.field(default_factory=list)\n    return C", "", "C = make(); c = C(3); c.b.append(c.a)", "last = repr(c), c == C(3, [3]), dataclasses.asdict(c), [f.name for f in dataclasses.fields(C)], dataclasses.replace(c, a=4).b is c.b, C().b"),
    "dataclass of the loop": Program("import dataclasses", "", "@dataclasses.dataclass(frozen=True, order=True)\nclass C:\n    a: int\nc = C(3)", "last = c < C(4), hash(c) == hash(C(3)), repr(c)"),
    "dataclass made by its factory": Program("import dataclasses", "", "C = dataclasses.make_dataclass('C', ['a', ('b', int, 5)]); c = C([1])", "c.a.append(2); last = repr(c), c.b"),
    "enumeration of the loop": Program("import enum", "n = 0", "n = 1", "class E(enum.Enum):\n    A = 1\nlast = E.A.value"),
    "exception of the loop": Program("", "", "class E(Exception): pass\ne = E('a', [1])", "e.args[1].append(2)\ntry: raise e\nexcept E as other: last = other.args"),
    "function of compiled text": Program("", "", "names = {'k': 3}; exec('def f(x, y=2): return x * k + y', names); f = names['f']", "last = f(2), f.__defaults__", alike=False),
    "function of compiled text, in its module": Program("k = 4", "", "exec('def f(x): return x * k')", "k = 5; last = f(2)"),
    "object that is told apart by its identity": Program("import dataclasses, inspect", "d = None", "d = {'a': dataclasses.MISSING, 'b': inspect.Parameter.empty}", "last = d['a'] is dataclasses.MISSING, d['b'] is inspect.Parameter.empty"),
}  # fmt: skip
