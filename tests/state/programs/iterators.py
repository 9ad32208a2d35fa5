"""Iterators at every stage: untouched, in the middle, before the last element, used up."""

from tests.state.roundtrip import Program

_IMPORTS = "import array, collections, itertools, operator, random"
#: Each gives ten elements or more, or none at all at the end.
_MADE = {
    "over a list": "iter([5, 6, 7, [8], 9, 10, 11, 12, 13, 14])",
    "over a tuple": "iter((5, 6, 7, 8, 9, 10, 11, 12, 13, 14))",
    "over text": "iter('abcdefghij')",
    "over text beyond ASCII": "iter('äbçdéfghïj')",
    "over bytes": "iter(b'abcdefghij')",
    "over a bytearray": "iter(bytearray(b'abcdefghij'))",
    "over an array": "iter(array.array('d', range(10)))",
    "over a range": "iter(range(0, 40, 4))",
    "over a range downwards": "iter(range(9, -1, -1))",
    "over a range of wide numbers": "iter(range(1 << 70, (1 << 70) + 10))",
    "over a dict": "iter({str(n): n for n in range(10)})",
    "over a dict's values": "iter({str(n): [n] for n in range(10)}.values())",
    "over a dict's items": "iter({str(n): [n] for n in range(10)}.items())",
    "over a dict backwards": "reversed({str(n): n for n in range(10)})",
    "over a set": "iter({3 * n for n in range(10)})",
    "over a frozen set": "iter(frozenset('abcdefghij'))",
    "over an ordered dict": "iter(collections.OrderedDict.fromkeys('abcdefghij'))",
    "over an ordered dict's items": "iter(collections.OrderedDict.fromkeys('abcdefghij').items())",
    "over a deque": "iter(collections.deque(range(10)))",
    "over a deque backwards": "reversed(collections.deque(range(10)))",
    "over a list backwards": "reversed([5, 6, 7, 8, 9, 10, 11, 12, 13, 14])",
    "over a tuple backwards": "reversed((5, 6, 7, 8, 9, 10, 11, 12, 13, 14))",
    "over a range backwards": "reversed(range(10))",
    "over what has __getitem__ alone": "iter(Sequence())",
    "over what has __getitem__ alone, backwards": "reversed(Sequence())",
    "enumerate": "enumerate('abcdefghij', 5)",
    "enumerate from a wide number": "enumerate('abcdefghij', 1 << 70)",
    "zip": "zip(range(10), iter('abcdefghij'))",
    "strict zip": "zip(range(10), iter('abcdefghij'), strict=True)",
    "map": "map(operator.add, range(10), [1] * 10)",
    "map of a method of C": "map(str.upper, 'abcdefghij')",
    "filter": "filter(None, range(11))",
    "islice": "itertools.islice(itertools.count(), 3, 33, 3)",
    "chain": "itertools.chain('abc', [], range(7))",
    "chain from one iterable": "itertools.chain.from_iterable([[1, 2], [], [3, 4, 5, 6, 7, 8, 9, 10]])",
    "cycle": "itertools.cycle('abc')",
    "cycle of an iterator": "itertools.cycle(iter('abcdefg'))",
    "count": "itertools.count(7, 3)",
    "count in floats": "itertools.count(0.1, 0.1)",
    "count of wide numbers": "itertools.count((1 << 63) - 3)",
    "repeat": "itertools.repeat('t', 10)",
    "repeat a text that looks like a node's tag": "itertools.repeat('@', 10)",
    "repeat an object": "itertools.repeat([1], 10)",
    "repeat for ever": "itertools.repeat(None)",
    "accumulate": "itertools.accumulate(range(10))",
    "accumulate by a function, from a value": "itertools.accumulate(range(10), operator.mul, initial=2)",
    "product": "itertools.product('abc', repeat=3)",
    "product of several": "itertools.product('ab', range(3), [None, 1])",
    "permutations": "itertools.permutations('abcd', 2)",
    "combinations": "itertools.combinations('abcdef', 2)",
    "combinations with replacement": "itertools.combinations_with_replacement('abcd', 2)",
    "starmap": "itertools.starmap(divmod, [(n, 3) for n in range(10)])",
    "zip_longest": "itertools.zip_longest(range(10), 'abc', fillvalue='-')",
    "takewhile": "itertools.takewhile(str.isalpha, 'abcdefghij')",
    "dropwhile": "itertools.dropwhile(str.isdigit, '12abcdefghij')",
    "compress": "itertools.compress('abcdefghijklmnop', [1, 0, 1, 1] * 4)",
    "filterfalse": "itertools.filterfalse(str.isdigit, 'a1b2cdefghij')",
    "groupby": "itertools.groupby('abcdefghij')",
    "tee": "itertools.tee(iter(range(10)))[0]",
    "by calls until a sentinel": "iter(iter('abcdefghij~').__next__, '~')",
    "nested": "enumerate(zip(itertools.islice(itertools.cycle([1, 2, 3]), 10), map(str, range(10))))",
    "batched by zip of one iterator": "zip(*[iter(range(30))] * 3)",
}
_CLASSES = f"""
{_IMPORTS}
class Sequence:
    def __len__(self): return 10
    def __getitem__(self, n):
        if n >= 10: raise IndexError
        return n * n
"""
_STAGES = {"untouched": 0, "in the middle": 4, "before the last": 9, "used up": 60}
#: They tell of themselves otherwise when they have been made again: `accumulate` from a value is one over a chain, say. Nor does the
#: comparison read those of `repeat`.
_OTHERWISE = ("accumulate", "chain", "islice", "nested", "over a tuple", "repeat", "tee", "zip_longest")


def _stage(name: str, made: str, count: int) -> Program:
    # `groupby` gives groups that are iterators themselves: only the keys are kept.
    return Program(
        _CLASSES,
        f"it = {made}; also = [it]",
        f"taken = 0\nfor _ in zip(range({count}), it): taken += 1\ndel _" if count else "taken = 0",
        "rest = [one[0] if type(one) is tuple and type(it) is itertools.groupby else one for one in itertools.islice(also[0], 3)]",
        alike=not name.startswith(_OTHERWISE),
    )


PROGRAMS: dict[str, Program] = {
    **{f"iterator {name}, {stage}": _stage(name, made, count) for name, made in _MADE.items() for stage, count in _STAGES.items()},
    "iterator over a list that has grown": Program("", "l = [1, 2]; it = iter(l)", "next(it); l.append(3)", "l.append(4); rest = list(it)"),
    "iterator over a list, replaced": Program("", "it = iter([1, 2, 3])", "it = iter([4, 5, 6]); next(it)", "rest = list(it)"),
    "iterators over one list at two places": Program("", "l = [1, 2, 3, 4]; a, b = iter(l), iter(l)", "next(a); next(a); next(b)", "l.append(5); rest = list(a), list(b)"),
    "iterator in an iterator, shared": Program("import itertools", "one = iter(range(20)); first, second = itertools.islice(one, 9), enumerate(one)", "next(first); next(second); next(one)", "rest = next(first), next(second), next(one)"),
    "tee, two sides apart": Program("import itertools", "a, b = itertools.tee(iter(range(200)))", "[next(a) for _ in range(100)]; next(b)", "rest = list(a)[:3], list(b)[:3]"),
    "map of a function of the program's": Program("calls = []\ndef f(x):\n    calls.append(x)\n    return x * 2", "it = map(f, range(10))", "next(it); next(it)", "rest = list(it)"),
    "filter by a closure": Program("def above(n):\n    def test(x): return x > n\n    return test", "it = filter(above(3), range(20))", "next(it); next(it)", "rest = list(it)"),
    "accumulate over random draws": Program("import itertools, random", "rng = random.Random(1); it = itertools.accumulate(iter(rng.random, 2.0))", "next(it); next(it)", "rest = next(it), next(it)"),
    "iterator of the program's own": Program("class It:\n    def __init__(self): self.n = 0\n    def __iter__(self): return self\n    def __next__(self):\n        self.n += 1\n        return self.n", "it = It(); e = enumerate(it)", "next(e); next(it)", "rest = next(e), next(it), it.n"),
    "iterator over a dict that stays in step": Program("", "d = {n: n * n for n in range(10)}; it = iter(d)", "next(it); next(it)", "d[3] = 'new'; rest = [d[k] for k in it]"),
    "a loop over an ordered dict": Program("import collections", "d = collections.OrderedDict((n, [n]) for n in range(6)); it = iter(d.values())", "next(it).append(1)", "rest = [v.append(2) for v in it]"),
    "permutations in the middle of a long one": Program("import itertools", "it = itertools.permutations(range(6))", "[next(it) for _ in range(500)]", "rest = [next(it) for _ in range(5)]"),
    "product with an object in it": Program("import itertools", "o = [1]; it = itertools.product([o], range(5))", "next(it)", "o.append(2); rest = list(it)"),
}  # fmt: skip
