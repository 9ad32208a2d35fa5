"""What scripts commonly hold in variables of their training loop: by type, whether a checkpoint holds it.

The table in docs/types.md is made of this one (tests/state/test_types.py compares).
"""

from dataclasses import dataclass

CAPTURED = "captured"
SET_UP = "captured if the set-up code made it"
REFUSED = "refused, unless it is dead"


@dataclass(frozen=True)
class Type:
    """A program in small that makes one, changes it in the loop, and uses it afterwards; `x` is what it must come to."""

    name: str
    library: str
    definitions: str
    set_up: str
    loop: str
    then: str
    verdict: str = CAPTURED


_NP, _TORCH = "import numpy as np", "import torch; torch.manual_seed(0)"
_PIL = "import numpy as np\nfrom PIL import Image, ImageDraw, ImageEnhance, ImageFilter"
_PLOT = "import numpy as np, matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt"

TYPES = [
    Type("int, float, str, bytes, bool, None", "", "", "a, b, c = 1, 1.5, 'x'", "a += 1; b = -0.0; c += 'y'; d = b'z'", "x = a, str(b), c, d"),
    Type("list, tuple, dict, set, frozenset", "", "", "a, b, c = [1], {'k': 1}, {1}", "a.append(a[0]); b['l'] = (2, 3); c |= {7}; d = frozenset(c)", "x = a, b, sorted(c), sorted(d)"),
    Type("collections.deque", "", "import collections", "d = collections.deque(maxlen=3)", "d.extend(range(5))", "d.append(9); x = list(d)"),
    Type("collections.Counter, defaultdict, OrderedDict", "", "import collections", "c, d, o = collections.Counter(), collections.defaultdict(list), collections.OrderedDict()", "c['a'] += 2; d['x'].append(1); o['z'] = 1", "d['y'].append(2); x = c['a'], dict(d), list(o)"),
    Type("collections.namedtuple", "", "import collections\nT = collections.namedtuple('T', 'a b')", "t = T(1, [2])", "t = t._replace(a=3)", "x = t.a, t.b"),
    Type("dataclass instance", "", "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int\n    b: list", "d = D(1, [])", "d.a = 2; d.b.append(3)", "x = repr(d)"),
    Type("enum.Enum member", "", "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2", "e = E.A", "e = E.B", "x = e is E.B"),
    Type("a heap (heapq)", "", "import heapq", "h = [3, 1]; heapq.heapify(h)", "heapq.heappush(h, 0)", "x = heapq.heappop(h), h"),
    Type("types.SimpleNamespace, argparse.Namespace", "", "import argparse, types", "n, a = types.SimpleNamespace(), argparse.Namespace(lr=1)", "n.best = 3; a.lr = 2", "x = n.best, a.lr"),
    Type("configparser.ConfigParser", "", "import configparser", "c = configparser.ConfigParser()", "c['a'] = {'b': '1'}", "x = c['a']['b']"),
    Type("pathlib.Path", "", "import pathlib", "p = pathlib.Path('a')", "p = p / 'b'", "x = str(p)"),
    Type("re.Pattern, re.Match", "", "import re", "r = re.compile('a+')", "m = r.match('aab')", "x = m.group(), r.findall('aba')"),
    Type("a scanner of re (finditer)", "", "import re", "", "it = re.finditer('a', 'aba'); next(it)", "x = [m.span() for m in it]", REFUSED),
    Type("datetime.datetime, timedelta, timezone", "", "import datetime", "d = datetime.datetime(2024, 1, 1)", "d += datetime.timedelta(1); z = datetime.timezone.utc", "x = d.isoformat(), str(z)"),
    Type("decimal.Decimal, fractions.Fraction", "", "import decimal, fractions", "d = decimal.Decimal('1.1')", "d += 1; f = fractions.Fraction(1, 3)", "x = d, f"),
    Type("uuid.UUID, ipaddress", "", "import uuid, ipaddress", "u = uuid.UUID(int=1)", "u = uuid.UUID(int=2); i = ipaddress.ip_address('1.1.1.1')", "x = str(u), str(i)"),
    Type("range, slice, Ellipsis", "", "", "r = range(3)", "r = range(2, 9, 3); s = slice(1, 2); e = ...", "x = list(r), s, e is ..."),
    Type("iterators: range, list, dict, enumerate, zip, map", "", "", "i, e, z, m = iter([1, 2, 3]), enumerate('abc'), zip('ab', [1, 2]), map(str, [1, 2, 3])", "next(i); next(e); next(z); next(m)", "x = next(i), next(e), next(z), next(m)"),
    Type("itertools: count, cycle, chain, islice, product", "", "import itertools", "c, y, h, p = itertools.count(), itertools.cycle([1, 2]), itertools.chain([1], [2, 3]), itertools.product([1, 2], [3])", "next(c); next(y); next(h); next(p)", "x = next(c), next(y), next(h), next(p)"),
    Type("a generator of the script's", "", "def f(n):\n    total = 0\n    for i in range(n):\n        total += i\n        yield total", "g = f(9)", "next(g); next(g); next(g)", "x = next(g)"),
    Type("a generator of a library's that the loop made", "", "import os", "", "g = os.walk('.'); next(g)", "x = list(g)", REFUSED),
    Type("functools.partial, lru_cache", "", "import functools\n@functools.lru_cache\ndef f(n): return [n]", "p = functools.partial(f, 1)", "f(2).append(3)", "x = p(), f(2)"),
    Type("functions, lambdas and closures", "", "def make():\n    n = 0\n    def f():\n        nonlocal n\n        n += 1\n        return n\n    return f", "f = make()", "f(); g = lambda k: k + 1", "x = f(), g(1)"),
    Type("classes that the loop makes", "", "", "", "class K:\n    def f(self): return self.a\nk = K(); k.a = 2", "x = k.f()"),
    Type("exceptions", "", "class E(Exception): pass", "e = None", "try: raise E(1, [2])\nexcept E as error: e = error", "x = e.args"),
    Type("weakref.ref, WeakValueDictionary", "", "import weakref\nclass K: pass", "k = K(); r = weakref.ref(k); d = weakref.WeakValueDictionary(a=k)", "k.n = 1; d['b'] = k", "x = r().n, sorted(d)"),
    Type("contextvars.ContextVar", "", "import contextvars", "v = contextvars.ContextVar('v', default=0)", "v.set([1])", "x = v.get()"),
    Type("threading.Lock, RLock, Event, Semaphore", "", "import threading", "l, e, s = threading.Lock(), threading.Event(), threading.Semaphore(2)", "e.set(); s.acquire()", "x = e.is_set(), s.acquire(blocking=False), s.acquire(blocking=False)"),
    Type("queue.Queue, PriorityQueue, SimpleQueue", "", "import queue", "q, p, s = queue.Queue(), queue.PriorityQueue(), queue.SimpleQueue()", "q.put(1); p.put(3); p.put(2); s.put([1])", "x = q.get(), p.get(), s.get()"),
    Type("concurrent.futures.ThreadPoolExecutor, Future", "", "import concurrent.futures as cf", "p = cf.ThreadPoolExecutor(2)", "f = p.submit(len, 'ab'); f.result()", "x = f.result(), p.submit(len, 'abc').result()"),
    Type("multiprocessing.Lock, Value", "", "import multiprocessing as mp", "l = mp.Lock()", "l.acquire(); l.release()", "x = l.acquire(False)"),
    Type("logging.Logger", "", "import logging", "log = logging.getLogger('a'); log.setLevel(10)", "log.setLevel(30)", "x = log.level"),
    Type("csv.writer, csv.DictWriter on an open file", "", "import csv", "f = open('o.csv', 'w', newline=''); w = csv.writer(f)", "w.writerow([1, 2]); f.flush()", "w.writerow([3]); f.flush(); x = open('o.csv').read()"),
    Type("csv.reader", "", "import csv\nopen('i.csv', 'w').write('a\\nb\\nc\\n')", "f = open('i.csv'); r = csv.reader(f)", "next(r)", "x = next(r)"),
    Type("an open text or binary file", "", "", "f = open('log', 'w')", "f.write('a'); f.flush()", "f.write('b'); f.flush(); x = open('log').read()"),
    Type("io.StringIO, io.BytesIO", "", "import io", "b, s = io.BytesIO(), io.StringIO()", "b.write(b'abc'); s.write('x')", "b.write(b'd'); x = b.getvalue(), s.getvalue()"),
    Type("json.JSONEncoder, JSONDecoder", "", "import json", "e, d = json.JSONEncoder(indent=1), json.JSONDecoder()", "n = 1", "x = e.encode([1]), d.decode('[2]')", SET_UP),
    Type("zipfile.ZipFile that is closed", "", "import zipfile", "z = zipfile.ZipFile('a.zip', 'w')", "z.writestr('a', 'b'); z.close()", "x = zipfile.ZipFile('a.zip').read('a')"),
    Type("xml.etree.ElementTree.Element", "", "import xml.etree.ElementTree as ET", "r = ET.Element('a')", "ET.SubElement(r, 'b').text = 'x'", "x = ET.tostring(r)"),
    Type("array.array, bytearray, memoryview", "", "import array", "a, b = array.array('i', [1, 2]), bytearray(b'ab'); v = memoryview(b)", "a[0] = 5; v[0] = 120", "x = a.tolist(), bytes(b)"),
    Type("ctypes values and arrays", "", "import ctypes", "i, a = ctypes.c_int(1), (ctypes.c_float * 2)()", "i.value = 7; a[1] = 2.5", "x = i.value, list(a)"),
    Type("a hash (hashlib)", "", "import hashlib", "h = hashlib.sha256()", "h.update(b'a')", "x = h.hexdigest()", REFUSED),
    Type("a compressor (zlib, lzma)", "", "import zlib", "c = zlib.compressobj()", "c.compress(b'a' * 99)", "x = c.flush()", REFUSED),
    Type("sqlite3.Connection", "", "import sqlite3", "c = sqlite3.connect(':memory:')", "c.execute('create table t(a)')", "x = c.execute('select * from t').fetchall()", REFUSED),
    Type("socket.socket", "", "import socket", "s = socket.socket()", "s.bind(('127.0.0.1', 0))", "x = s.getsockname()[0]", REFUSED),
    Type("random.Random", "", "import random", "r = random.Random(0)", "r.random()", "x = r.random()"),
    Type("numpy.ndarray, views of it", "numpy", _NP, "a = np.zeros(4); v = a[1:3]", "v += 1; b = a.T", "v[0] = 9; x = a.tolist(), b.tolist()"),
    Type("numpy scalars, dtypes, datetime64", "numpy", _NP, "s = np.float32(1)", "s = np.float32(2); d = np.dtype('i4'); t = np.datetime64('2024-01-01')", "x = float(s), str(d), str(t)"),
    Type("numpy object, record and masked arrays", "numpy", _NP, "o = np.array([{}, None], object); r = np.rec.array([(1, 2.0)], dtype=[('a', int), ('b', float)]); m = np.ma.masked_array([1, 2], [0, 1])", "o[0]['k'] = 1; r['a'] = 3; m[0] = 5", "x = o.tolist(), r.tolist(), m.tolist()"),
    Type("numpy.memmap", "numpy", _NP, "a = np.memmap('m.dat', np.float32, 'w+', shape=(4,))", "a[:] = 2", "x = float(a.sum())"),
    Type("numpy.random.Generator, RandomState, SeedSequence", "numpy", _NP, "g, s, q = np.random.default_rng(0), np.random.RandomState(1), np.random.SeedSequence(3)", "g.random(); s.rand(); c = q.spawn(2)", "x = g.random(), s.rand(), q.spawn(1)[0].spawn_key"),
    Type("numpy.poly1d, vectorize", "numpy", _NP, "p, v = np.poly1d([1, 2]), np.vectorize(abs)", "p = p * 2", "x = p(2), v([-1]).tolist()"),
    Type("numpy.nditer", "numpy", _NP, "it = np.nditer(np.arange(3))", "next(it)", "x = int(next(it))", REFUSED),
    Type("torch.Tensor, Parameter, views", "torch", _TORCH, "t = torch.zeros(4); v = t[1:3]", "v += 1; p = torch.nn.Parameter(t * 2)", "v[0] = 9; x = t.tolist(), p.tolist()"),
    Type("torch sparse tensors", "torch", _TORCH, "s = torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2))", "s = s + s", "x = s.to_dense().tolist()"),
    Type("torch.nn.Module", "torch", _TORCH, "m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))", "m(torch.ones(3, 2)); m.eval()", "x = m(torch.ones(1, 2)).tolist()"),
    Type("torch modules with parametrizations", "torch", _TORCH, "", "m = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))", "x = m(torch.ones(1, 2)).tolist()"),
    Type("torch optimizers and schedulers", "torch", _TORCH, "m = torch.nn.Linear(2, 2); o = torch.optim.Adam(m.parameters()); s = torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9)", "m(torch.ones(2)).sum().backward(); o.step(); s.step()", "s.step(); x = s.get_last_lr(), m.weight.tolist()"),
    Type("torch.amp.GradScaler, AveragedModel", "torch", _TORCH, "m = torch.nn.Linear(2, 2); e = torch.optim.swa_utils.AveragedModel(m); k = torch.amp.GradScaler('cpu')", "m.weight.data.add_(1); e.update_parameters(m)", "x = e.module.weight.tolist(), k.get_scale()"),
    Type("torch.Generator", "torch", _TORCH, "g = torch.Generator().manual_seed(0)", "torch.rand(1, generator=g)", "x = torch.rand(1, generator=g).item()"),
    Type("torch.utils.data.DataLoader and its iterator", "torch", _TORCH, "l = torch.utils.data.DataLoader(range(8), 2, shuffle=True); it = iter(l)", "next(it)", "x = [b.tolist() for b in it]", SET_UP),
    Type("torch.distributions", "torch", _TORCH, "d = torch.distributions.Normal(0.0, 1.0)", "d = torch.distributions.Categorical(logits=torch.arange(3.0))", "x = d.log_prob(torch.tensor(1)).item()"),
    Type("torch.fx.GraphModule", "torch", _TORCH + "; import torch.fx", "", "g = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))", "x = g(torch.ones(1, 2)).tolist()"),
    Type("torch.ao.quantization (while trained, and after)", "torch", _TORCH, "m = torch.nn.Sequential(torch.nn.Linear(2, 2)); q = None", "q = torch.ao.quantization.quantize_dynamic(m, {torch.nn.Linear}, dtype=torch.qint8)", "x = q(torch.ones(1, 2)).tolist()"),
    Type("torch.jit modules", "torch", _TORCH, "m = torch.jit.script(torch.nn.Linear(2, 2))", "m.weight.data.add_(1)", "x = m(torch.ones(1, 2)).tolist()", SET_UP),
    Type("hooks on modules and tensors", "torch", _TORCH, "seen = []; m = torch.nn.Linear(2, 2); h = m.register_forward_hook(lambda *_: seen.append(1))", "m(torch.ones(1, 2))", "m(torch.ones(1, 2)); h.remove(); m(torch.ones(1, 2)); x = len(seen)"),
    Type("tqdm.tqdm", "tqdm", "from tqdm import tqdm\nimport io", "b = tqdm(total=10, file=io.StringIO())", "b.update(3); b.set_postfix(a=1)", "b.update(1); x = b.n"),
    Type("rich.progress.Progress, Console", "rich", "from rich.progress import Progress\nfrom rich.console import Console\nimport io", "p = Progress(console=Console(file=io.StringIO())); t = p.add_task('a', total=3)", "p.advance(t)", "p.advance(t); x = p.tasks[0].completed"),
    Type("PIL.Image.Image", "PIL", _PIL, "im = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))", "im = im.rotate(90); im.putpixel((1, 1), 7)", "x = im.tobytes(), im.size, im.mode"),
    Type("PIL.Image.Image with a palette", "PIL", _PIL, "im = Image.new('P', (2, 2)); im.putpalette([1, 2, 3] * 256)", "im.putpixel((0, 0), 9)", "x = im.convert('RGB').tobytes()"),
    Type("PIL.ImageFilter, ImageEnhance", "PIL", _PIL, "im = Image.new('L', (4, 4), 3)", "b = im.filter(ImageFilter.BLUR); e = ImageEnhance.Brightness(im)", "x = b.tobytes(), e.enhance(2).tobytes()"),
    Type("PIL.ImageDraw.Draw", "PIL", _PIL, "", "im = Image.new('L', (4, 4)); d = ImageDraw.Draw(im); d.point((0, 0), 5)", "d.point((1, 1), 6); x = im.tobytes()", REFUSED),
    Type("matplotlib figures and axes", "matplotlib", _PLOT, "fig, ax = plt.subplots()", "ax.plot([1, 2, 3])", "ax.plot([2]); x = [line.get_ydata().tolist() for line in ax.lines]"),
    Type("scipy.sparse matrices", "scipy", "import numpy as np\nimport scipy.sparse as sp", "m = sp.csr_matrix(np.eye(3))", "m = m + m.T; k = m.tolil(); k[0, 1] = 3", "x = m.toarray().tolist(), k.toarray().tolist()"),
    Type("scipy interpolation, spatial trees, rotations", "scipy", "import numpy as np\nfrom scipy import interpolate, spatial", "f = interpolate.interp1d([0, 1], [0, 1]); k = spatial.cKDTree(np.eye(2))", "k = spatial.cKDTree(np.ones((2, 2))); r = spatial.transform.Rotation.from_euler('x', 1.0)", "x = f(0.5).item(), k.query([0, 0])[0], r.as_quat().tolist()"),
    Type("scipy.stats frozen distributions", "scipy", "from scipy import stats", "n = stats.norm(0, 1)", "m = n.mean()", "x = n.cdf(0)"),
    Type("sklearn linear models", "sklearn", "import numpy as np\nfrom sklearn.linear_model import SGDClassifier", "c = SGDClassifier(random_state=0)", "c.partial_fit(np.eye(4), [0, 1, 0, 1], classes=[0, 1])", "c.partial_fit(np.eye(4), [0, 1, 0, 1]); x = c.coef_.tolist()"),
    Type("sklearn trees and forests", "sklearn", "import numpy as np\nfrom sklearn.ensemble import RandomForestClassifier", "c = RandomForestClassifier(3, random_state=0)", "c.fit(np.eye(4), [0, 1, 0, 1])", "x = c.predict_proba(np.eye(4)).tolist()"),
    Type("sklearn neighbours", "sklearn", "import numpy as np\nfrom sklearn.neighbors import KNeighborsClassifier", "c = KNeighborsClassifier(1, algorithm='kd_tree')", "c.fit(np.eye(4), [0, 1, 0, 1])", "x = c.predict(np.eye(4)).tolist()"),
    Type("sklearn scalers, encoders, PCA", "sklearn", "import numpy as np\nfrom sklearn.preprocessing import LabelEncoder, StandardScaler\nfrom sklearn.decomposition import PCA", "s, e, q = StandardScaler(), LabelEncoder(), PCA(2)", "s.fit(np.eye(4)); e.fit(['b', 'a']); q.fit(np.eye(4))", "x = s.transform(np.eye(4)).tolist(), e.transform(['b']).tolist(), q.components_.shape"),
    Type("sklearn splits (KFold) under way", "sklearn", "import numpy as np\nfrom sklearn.model_selection import KFold", "k = KFold(3).split(np.arange(9))", "next(k)", "x = [one.tolist() for one in next(k)]", SET_UP),
    Type("networkx graphs", "networkx", "import networkx as nx", "g = nx.path_graph(3)", "g.add_edge(0, 2, w=1)", "x = list(g.edges(data=True)), nx.shortest_path(g, 0, 2)"),
    Type("sympy expressions", "sympy", "import sympy", "e = sympy.Symbol('x')", "e = e**2 + 1", "x = str(e.diff())"),
    Type("plotly figures", "plotly", "import plotly.graph_objects as go", "f = go.Figure()", "f.add_scatter(y=[1, 2])", "x = f.to_json()"),
    Type("requests.Session", "requests", "import requests", "s = requests.Session()", "s.headers['a'] = 'b'", "x = s.headers['a']"),
    Type("protobuf messages", "google.protobuf", "from google.protobuf import struct_pb2", "s = struct_pb2.Struct()", "s['a'] = 1.5", "s['b'] = 'y'; x = s['a'], s['b']"),
    Type("h5py.File open for writing", "h5py", "import numpy as np\nimport h5py", "f = h5py.File('a.h5', 'w')", "f.create_dataset('a', data=np.ones(3))", "x = f['a'][:].tolist()", REFUSED),
    Type("lmdb.Environment open for reading", "lmdb", "import lmdb\nwith lmdb.open('a.lmdb', subdir=False) as made, made.begin(write=True) as t: t.put(b'a', b'b')", "e = lmdb.open('a.lmdb', subdir=False, readonly=True, lock=False)", "with e.begin() as t: y = t.get(b'a')", "with e.begin() as t: x = y, t.get(b'a')"),
    Type("lmdb.Environment open for writing", "lmdb", "import lmdb", "e = lmdb.open('a.lmdb', subdir=False)", "with e.begin(write=True) as t: t.put(b'a', b'c')", "with e.begin() as t: x = t.get(b'a')", REFUSED),
    Type("lmdb.Environment that has been closed", "lmdb", "import lmdb", "e = lmdb.open('a.lmdb', subdir=False)", "e.close()", "x = 1"),
    Type("yaml documents", "yaml", "import yaml", "d = yaml.safe_load('a: [1]')", "d['a'].append(2)", "x = yaml.safe_dump(d)"),
    Type("pandas.DataFrame, Series, Index", "pandas", "import pandas as pd", "df = pd.DataFrame({'a': [1, 2]}); s = pd.Series([1.0])", "df['c'] = 1.5; s = s * 2", "x = df.to_csv(), s.tolist()"),
    Type("pandas.Timestamp, Timedelta, Categorical", "pandas", "import pandas as pd", "t = pd.Timestamp('2024-01-01')", "t = t + pd.Timedelta('1D'); c = pd.Categorical(['a', 'b', 'a'])", "x = str(t), list(c)"),
    Type("pyarrow.Table", "pyarrow", "import pyarrow as pa", "t = pa.table({'a': [1]})", "t = pa.table({'a': [1, 2]})", "x = t.to_pydict()"),
    Type("OpenCV images", "cv2", "import numpy as np\nimport cv2", "a = np.zeros((4, 4), np.uint8)", "a = cv2.circle(a, (1, 1), 1, 255)", "x = a.tolist()"),
    Type("tokenizers.Tokenizer", "tokenizers", "from tokenizers import Tokenizer, models", "t = Tokenizer(models.WordLevel({'a': 0, '[UNK]': 1}, unk_token='[UNK]'))", "t.add_tokens(['c'])", "x = t.encode('a').ids, t.token_to_id('c')"),
    Type("sentencepiece.SentencePieceProcessor", "sentencepiece", "import sentencepiece as spm\nopen('c.txt', 'w').write('hello world of words\\n' * 50)\nspm.SentencePieceTrainer.train(input='c.txt', model_prefix='m', vocab_size=15, minloglevel=2)", "s = spm.SentencePieceProcessor(model_file='m.model')", "y = s.encode('hello')", "x = s.encode('world')"),
    Type("gymnasium environments", "gymnasium", "import gymnasium as gym", "e = gym.make('CartPole-v1'); e.reset(seed=0); e.action_space.seed(0)", "e.step(e.action_space.sample())", "o, *_ = e.step(e.action_space.sample()); x = o.tolist()"),
    Type("gymnasium vector environments", "gymnasium", "import gymnasium as gym", "e = gym.vector.SyncVectorEnv([lambda: gym.make('CartPole-v1')] * 2); e.reset(seed=0); e.action_space.seed(0)", "e.step(e.action_space.sample())", "o, *_ = e.step(e.action_space.sample()); x = o.tolist()"),
    Type("faiss indexes", "faiss", "import numpy as np\nimport faiss", "i = faiss.IndexFlatL2(4)", "i.add(np.ones((3, 4), np.float32))", "x = i.ntotal, i.search(np.zeros((1, 4), np.float32), 1)[0].tolist()"),
    Type("LightGBM boosters", "lightgbm", "import numpy as np\nimport lightgbm as lgb", "b = None", "b = lgb.train({'verbose': -1}, lgb.Dataset(np.random.RandomState(0).rand(50, 2), np.arange(50.0)), 3)", "x = b.predict(np.ones((1, 2))).tolist()"),
    Type("XGBoost boosters", "xgboost", "import numpy as np\nimport xgboost as xgb", "b = None", "b = xgb.train({}, xgb.DMatrix(np.random.RandomState(0).rand(50, 2), np.arange(50.0)), 3)", "x = b.predict(xgb.DMatrix(np.ones((1, 2)))).tolist()"),
    Type("shapely geometries", "shapely", "from shapely.geometry import Point", "g = Point(0, 0)", "g = Point(1, 1).buffer(1)", "x = g.area"),
    Type("nltk stemmers and counts", "nltk", "import nltk", "s = nltk.stem.PorterStemmer()", "f = nltk.FreqDist('abca')", "x = s.stem('walks'), f['a']"),
    Type("regex patterns", "regex", "import regex", "r = regex.compile('a+')", "y = r.match('aaa').group()", "x = r.match('aa').group()"),
]  # fmt: skip
