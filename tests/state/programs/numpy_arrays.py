"""numpy: arrays by their memory, rows, scalars and generators."""

from tests.state.roundtrip import Program

_NP = "import numpy as np\nclass A(np.ndarray):\n    pass\n"
_DTYPES = [
    "?",
    "i1",
    "u2",
    ">i4",
    "i8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "S3",
    "U4",
    "M8[ns]",
    "m8[s]",
    "V5",
    "O",
    "i4,f8",
    "(2,)f4",
]


def _np(set_up: str, loop: str, then: str = "pass", **options: bool) -> Program:
    return Program(_NP, set_up, loop, then, **options)


_GENERATORS = {
    "PCG64": "np.random.default_rng(3)", "MT19937": "np.random.Generator(np.random.MT19937(3))", "Philox": "np.random.Generator(np.random.Philox(3))",
    "SFC64": "np.random.Generator(np.random.SFC64(3))", "PCG64DXSM": "np.random.Generator(np.random.PCG64DXSM(3))",
}  # fmt: skip

PROGRAMS: dict[str, Program] = {
    f"numpy, {name}": program
    for name, program in {
        **{f"array of {dtype}": _np(f"a = np.zeros((2, 3), dtype={dtype!r})", "b = a; a[0] = a[1]; a = a.copy(); b.reshape(-1)[:1] = a.reshape(-1)[1:2]", "b[0] = a[0]", anew=True) for dtype in _DTYPES},
        **{f"generator {name}": _np(f"g = {made}; h = g", "g.normal(size=3); g.integers(9, dtype='i4')", "last = h.normal(), g.permutation(9), g.integers(1 << 40), g.random(dtype='f4'), g.spawn(1)[0].random()") for name, made in _GENERATORS.items()},
        "array, in place": _np("a = np.arange(6.0).reshape(2, 3); b = a", "a += 1; a[0, 0] = np.nan", "b *= 2"),
        "array, of no elements and of no dimensions": _np("a, b = np.zeros((0, 3)), np.array(1.5)", "b[...] = 2.5; a = np.zeros((3, 0))", "b += 1"),
        "array, of another shape than before": _np("a = np.zeros(3); v = a[1:]", "a = np.arange(5.0)", "v[0] = 1; a[0] = 7"),
        "array, resized in place": _np("a = np.zeros(3); b = [a]", "a.resize(6, refcheck=False); a[5] = 1", "b[0][0] = 1"),
        "views": _np("a = np.arange(24).reshape(4, 6); v, w, t = a[1:3, ::2], a[::-1], a.T", "v[0, 0] = 100; w[0, 0] = 200; t[5, 3] = 300", "a += 1; v[1] = 0"),
        "views of a view": _np("a = np.arange(24.0); v = a[4:]; w = v[2:8].reshape(2, 3)", "w[0] = -1", "v[2] = 7; a[11] = 8"),
        "view that the loop makes": _np("a = np.arange(9)", "v = a[2:5]; w = a.reshape(3, 3)[:, 1]", "a += 10; w[0] = -1; v[2] = -2"),
        "view of an array that nobody names": _np("v = np.arange(9.0)[2:5]", "v += 1", "v.base[2] = 50"),
        "broadcast view": _np("a = np.zeros(3); b = np.broadcast_to(a, (2, 3))", "a += 1", "a[0] = 5; last = b.sum()"),
        "window that overlaps": _np("a = np.arange(6); w = np.lib.stride_tricks.sliding_window_view(a, 3)", "a[2] = 9", "a[3] = 7; last = w.sum()"),
        "column order": _np("f = np.asfortranarray(np.arange(6.0).reshape(2, 3)); g = f", "f[0, 1] = 9; h = np.asfortranarray(np.ones((3, 2, 2)))", "g += h[0, 0, 0]"),
        "transposed copy": _np("a = np.ones((2, 3, 4))", "a = np.ascontiguousarray(a.transpose(2, 0, 1)); a[0, 0, 0] = 5", "a += 1"),
        "read-only": _np("r = np.arange(3); r.flags.writeable = False; a = np.arange(3); v = a[:]; v.flags.writeable = False", "a[0] = 9; a.flags.writeable = False", "last = r.flags.writeable, a.flags.writeable, v[0]"),
        "derived class": _np("a = np.arange(4.0).view(A); a.note = [1]", "a += 1; a.note.append(2)", "a.note.append(a.sum())"),
        "masked array": _np("a = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])", "a[0] = 9; a[2] = np.ma.masked", "a += 1; last = a.count()"),
        "structured": _np("a = np.zeros(3, dtype=[('x', 'f8'), ('y', 'i4', (2,))]); x = a['x']", "a['y'][1] = 7; x[0] = 1.5", "x += 1; last = a[0]['x']"),
        "structured, with fields over others": _np("a = np.zeros(2, dtype={'names': ['x', 'y'], 'formats': ['i4', 'i2'], 'offsets': [0, 2], 'itemsize': 8})", "a['x'] = 1 << 17", "a['y'] += 1; last = a.dtype.fields['y'][1], a.itemsize"),
        "structured, with structures": _np("d = np.dtype([('p', [('x', 'i1'), ('y', 'f8', (2,))]), ('n', 'S2')], align=True); a = np.zeros(2, d)", "a['p']['y'][1] = 2", "last = a.dtype == d, a.dtype.isalignedstruct"),
        "scalars of all kinds": _np("l = []", "l += [np.dtype(c).type(1) for c in np.typecodes['AllInteger'] + np.typecodes['AllFloat']]; l += [np.str_(''), np.bytes_(b''), np.bytes_(b'a\\0b'), np.timedelta64('NaT'), np.datetime64('2024-01-01T00:00:01', 'ns'), np.float64(-0.0)]", "last = [(type(x).__name__, x.dtype.str, str(x)) for x in l]"),
        "scalars of a class of one's own": Program("import numpy as np\nclass C(np.float64): pass", "x = None; history = [np.float64(0.5)] * 2", "x = C(2.5); x.unit = 'm'; history.append(history[0] / 3)", "last = type(x).__name__, float(x), x.unit, history[0] is history[1]"),
        "structured, with padding": _np("a = np.zeros(2, dtype=np.dtype([('x', 'i1'), ('y', 'f8')], align=True))", "a['x'] = 3", "a['y'] = 2.5"),
        "record array": _np("a = np.rec.array([(1, 2.5), (3, 4.5)], dtype=[('n', 'i4'), ('v', 'f8')])", "a.n[0] = 7", "a.v += 1"),
        "rows": _np("a = np.zeros(3, dtype='i4,f8'); r = a[1]", "r['f0'] = 5; s = a[2].copy(); s['f1'] = 2.5", "r['f1'] = 1.5; s['f0'] = 4", alike=False),  # their base is a view of the array
        "of objects": _np("l = [1]; a = np.array([l, None, 'x'], dtype=object)", "a[1] = l; l.append(2); a[2] = a", "a[0].append(3)"),
        "of objects, in two dimensions": _np("a = np.empty((2, 2), dtype=object, order='F')", "a[0, 1] = [1]; a[1, 0] = a[0, 1]", "a[1, 0].append(2)"),
        "scalars": _np("a, b, c, d = np.float32(1.5), np.int64(3), np.str_('x'), np.datetime64('2024-01-01')", "a *= 3; b += 1; c = np.str_('y'); d += 1; e = np.float64('nan'), np.bool_(True), np.complex64(1j)", "a += b"),
        "dtypes": _np("d = np.dtype('f4')", "d = [np.dtype('>i2'), np.dtype([('a', 'i1'), ('b', 'U3')]), np.dtype('M8[us]'), np.float64]", "last = d[0].itemsize, d[1].names"),
        "polynomial and vectorize": _np("p = np.polynomial.Polynomial([1.0, 2.0]); p1 = np.poly1d([1.0, 2.0])", "p = p * p; p1 = p1 + 1", "last = p(2.0), p1(2.0)"),
        "legacy generator": _np("r = np.random.RandomState(3)", "r.normal(); r.randint(5)", "last = r.normal(), r.normal(), r.permutation(5)"),
        "generator of the process": _np("np.random.seed(3); r = np.random.mtrand._rand", "np.random.rand(); np.random.normal()", "last = np.random.normal(), np.random.rand()", anew=False),
        "generator, its bits and seeds named": _np("s = np.random.SeedSequence(5); g = np.random.Generator(np.random.PCG64(s)); b = g.bit_generator", "g.random(); s.spawn(2); b.advance(7)", "last = g.random(), b.random_raw(), s.spawn(1)[0].spawn_key"),
        "generator, replaced": _np("g = np.random.default_rng(1)", "g = np.random.default_rng(2); g.random()", "last = g.random()"),
        "two generators over one stream": _np("b = np.random.PCG64(4); g, h = np.random.Generator(b), np.random.Generator(b)", "g.random(); h.random()", "last = g.random(), h.random()"),
        "memory map of a file": _np("np.arange(6, dtype='i4').tofile('m.bin'); m = np.memmap('m.bin', dtype='i4', mode='r+')", "m[2] = 50; m.flush()", "m[3] = 60; last = m.tolist()", anew=False),
        "read-only memory map": _np("np.arange(6, dtype='i4').tofile('m.bin'); m = np.memmap('m.bin', dtype='i4', mode='r', offset=4); v = m[1:3]", "n = 1", "last = m.tolist(), v.tolist()", anew=False),
        "iterators": _np("a = np.arange(6).reshape(2, 3); i = iter(a)", "next(i); a[1] = 7", "last = [row.tolist() for row in i]"),
        "broadcasting of a frozen scalar": _np("x = np.float64(0.1)", "x = x + np.float32(0.2)", "x = x * 3"),
    }.items()
}  # fmt: skip
