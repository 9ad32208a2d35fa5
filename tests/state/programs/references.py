"""Weak references, loggers, files and generators of random numbers."""

from tests.state.roundtrip import Program

_RANDOM = "import random\nclass R(random.Random):\n    pass\n"
_C = "import weakref, gc\nclass C:\n    def f(self): return self.n\n    n = 0\n"
_FILE = "import csv, io, gzip, bz2, lzma, pathlib\n"

PROGRAMS: dict[str, Program] = {
    "weak reference": Program(_C, "c = C(); r = weakref.ref(c)", "c.n = 1; d = C(); r2 = weakref.ref(d)", "r().n = 5; last = r() is c, r2() is d; d = None; dead = r2()"),
    "weak reference to another object than before": Program(_C, "a, b = C(), C(); r = weakref.ref(a)", "r = weakref.ref(b)", "last = r() is b"),
    "weak reference that is dead": Program(_C, "c = C(); r = weakref.ref(c)", "c = None", "last = r()"),
    "weak reference with a callback": Program(_C + "log = []\ndef gone(r): log.append('gone')", "c = C(); r = weakref.ref(c, gone)", "c.n = 1", "c = None; last = list(log)"),
    "weak reference to what nothing else holds": Program(_C, "keep = [C()]; r = weakref.ref(keep[0])", "keep.clear()", "last = r()"),
    "weak proxy": Program(_C, "c = C(); p = weakref.proxy(c)", "p.n = 4", "last = p.n; c.n = 5; more = p.f(); p = None"),
    "weak method": Program(_C, "c = C(); m = weakref.WeakMethod(c.f)", "c.n = 3", "last = m()(); c = None; dead = m()"),
    "weak method, dead": Program(_C, "c = C(); m = weakref.WeakMethod(c.f)", "c = None", "last = m()"),
    "weak set and dicts": Program(_C, "a = C(); s = weakref.WeakSet([a]); k = weakref.WeakKeyDictionary({a: 1}); v = weakref.WeakValueDictionary(x=a)", "b = C(); s.add(b); k[b] = [b.n]; v['y'] = b; k[a] = 2", "last = b in s, k[b], v['y'] is b, k[a]; s = k = v = None"),
    "names of a library's module": Program("import colorsys\nclass C: pass", "c = C(); c.names = None", "c.names = vars(colorsys); c.more = [c.names]", "last = c.names is vars(colorsys), c.more[0] is c.names; c = None"),
    "names of a library's module, replaced": Program("import colorsys, keyword\nclass C: pass", "c = C(); c.names = vars(colorsys); d = C(); d.names = {}", "c.names = {'n': 1}; d.names = vars(keyword)", "last = c.names, d.names is vars(keyword), 'rgb_to_hsv' in vars(colorsys); d = None"),
    "names of the builtins": Program("import builtins\nclass C: pass", "c = C(); c.names = vars(builtins)", "c.n = 1", "last = c.names is vars(builtins), c.n; c = None"),
    "logger": Program("import logging", "log = logging.getLogger('program.log'); log.handlers.clear(); log.setLevel(30)", "log.setLevel(10); log.note = [1]", "last = log.level, log.isEnabledFor(10); log.setLevel(0); del log.note"),
    "log handler": Program("import io, logging", "out = io.StringIO(); h = logging.StreamHandler(out); log = logging.Logger('own'); log.addHandler(h)", "log.error('one'); h.setLevel(40)", "log.error('two'); log.warning('no'); last = out.getvalue()", anew=False),
    "random": Program(_RANDOM, "r = random.Random(5)", "r.random(); r.gauss(0, 1)", "last = r.random(), r.gauss(0, 1), r.gauss(0, 1), r.randrange(100)"),
    "random, of a derived class": Program(_RANDOM, "r = R(5)", "r.random(); r.n = [r]", "last = r.random()"),
    "random, two names and a copy": Program(_RANDOM, "r = random.Random(5); s = r", "r.random(); t = random.Random(); t.setstate(r.getstate())", "last = s.random(), t.random(), r.random()"),
    "random, of the process": Program(_RANDOM, "random.seed(4); r = random._inst", "random.shuffle([1, 2, 3])", "last = random.random()", anew=False),
    "random, of the system": Program(_RANDOM, "r = random.SystemRandom()", "n = 1", "last = 0 <= r.random() < 1", anew=False),
    "text in memory": Program(_FILE, "f = io.StringIO('one\\ntwo\\n')", "f.readline(); f.seek(0, 2); f.write('three\\n'); f.seek(4)", "last = f.read(), f.tell(), f.getvalue()"),
    "bytes in memory": Program(_FILE, "f = io.BytesIO(b'one'); f.name = 'x'", "f.seek(1); f.write(b'NEWER'); f.seek(2)", "last = f.read(), f.getvalue()"),
    "files in memory, closed": Program(_FILE, "f, g = io.StringIO('x'), io.BytesIO(b'y')", "f.close(); g.close()", "last = f.closed, g.closed"),
    "a file that is written": Program(_FILE, "f = open('out', 'w')", "f.write('one\\ntwo\\n')", "f.write('three'); f.close(); last = pathlib.Path('out').read_text()", alike=False),  # opened again to be written to, its mode is another
    "a file that is appended to": Program(_FILE, "f = open('log', 'a')", "f.write('one\\n'); f.flush()", "f.write('two\\n'); f.close(); last = pathlib.Path('log').read_text()"),
    "a file that is read line by line": Program(_FILE, "with open('in', 'w') as made: made.write(''.join(f'{n}\\n' for n in range(50)))\nf = open('in')", "[next(f) for _ in range(7)]", "last = next(f), f.readline(), len(f.readlines()); f.close()"),
    "a file that is read and written": Program(_FILE, "f = open('both', 'w+b')", "f.write(b'abcdef'); f.seek(2); f.read(1)", "f.write(b'X'); f.seek(0); last = f.read(); f.close()"),
    "a raw file": Program(_FILE, "f = open('raw', 'wb', buffering=0)", "f.write(b'abc')", "f.write(b'd'); f.close(); last = pathlib.Path('raw').read_bytes()", alike=False),  # opened again to be written to, its mode is another
    "a file that is closed": Program(_FILE, "f = open('x', 'w')", "f.write('y'); f.close()", "last = f.closed"),
    "a compressed file that is read": Program(_FILE, "with gzip.open('x.gz', 'wt') as made: made.write('a\\nb\\nc\\n')\nwith bz2.open('x.bz2', 'wb') as made: made.write(b'abc')\nwith lzma.open('x.xz', 'wb') as made: made.write(b'def')\ndel made\ng, b, x = gzip.open('x.gz', 'rt'), bz2.open('x.bz2'), lzma.open('x.xz')", "next(g); b.read(1); x.read(2)", "last = next(g), b.read(), x.read(); [one.close() for one in (g, b, x)]"),
    "standard streams": Program("import sys", "o, e = sys.__stdout__, sys.__stderr__", "o, e = e, o", "last = o is sys.__stderr__, e is sys.__stdout__; o = e = None", anew=False),
    "csv reader": Program(_FILE, "lines = ['a,b', '1,\"x', 'y\"', '3,4', '5,6']; r = csv.reader(iter(lines))", "next(r); next(r)", "last = next(r), r.line_num, next(r)"),
    "csv reader of a file, with a dialect": Program(_FILE, "with open('x', 'w') as made: made.write('a;b\\n1;2\\n3;4\\n')\nf = open('x', newline=''); r = csv.DictReader(f, delimiter=';')", "next(r)", "last = next(r), r.line_num, r.fieldnames; f.close()"),
    "csv writer": Program(_FILE, "f = open('out.csv', 'w', newline=''); w = csv.DictWriter(f, ['a', 'b'], delimiter='\\t')", "w.writeheader(); w.writerow({'a': 1, 'b': 'x\\ty'})", "w.writerow({'a': 3, 'b': 4}); f.close(); last = pathlib.Path('out.csv').read_text()", alike=False),  # opened again to be written to, its mode is another
    "csv writer into a list": Program(_FILE + "class Sink:\n    def __init__(self): self.rows = []\n    def write(self, row): self.rows.append(row)", "s = Sink(); w = csv.writer(s)", "w.writerow([1, 'a'])", "w.writerow([2, 'b']); last = s.rows"),
    "an HDF5 file that is read": Program("import h5py", "with h5py.File('x.h5', 'w') as made: made['d'] = [1.5, 2.5]\ndel made\nf = h5py.File('x.h5', 'r'); d = f['d']", "first = float(d[0])", "last = float(d[1]), d.name; f.close(); f = d = None"),
}  # fmt: skip
