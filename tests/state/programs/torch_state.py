"""torch: tensors by their storage, modules, optimizers, schedulers, generators, loaders without workers."""

from tests.state.roundtrip import Program

_TORCH = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
_DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
           "complex32", "float8_e4m3fn", "float8_e5m2"]  # fmt: skip
_MODEL = (
    _TORCH
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(5, 2)
        self.register_buffer('steps', torch.zeros(()))
        self.register_buffer('hidden', torch.ones(2), persistent=False)
        self.count = 0
    def forward(self, x):
        self.count += 1
        self.steps += 1
        return self.head(self.body(x))
x = torch.arange(24.0).reshape(6, 4) / 10
def step(model, optimizer, **more):
    torch.manual_seed(model.count)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step(**more)
    return loss.item()
"""
)
_TWO_STEPS, _ONE_MORE = "step(model, opt); step(model, opt)", "last = step(model, opt), step(model, opt)"
_OPTIMIZERS = {
    "SGD": "torch.optim.SGD(model.parameters(), 0.1)", "SGD with momentum": "torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)",
    "Adam": "torch.optim.Adam(model.parameters(), 0.01, amsgrad=True)", "AdamW": "torch.optim.AdamW(model.parameters(), 0.01)",
    "Adagrad": "torch.optim.Adagrad(model.parameters(), 0.1)", "Adadelta": "torch.optim.Adadelta(model.parameters())", "Adamax": "torch.optim.Adamax(model.parameters())",
    "NAdam": "torch.optim.NAdam(model.parameters())", "RAdam": "torch.optim.RAdam(model.parameters())", "RMSprop": "torch.optim.RMSprop(model.parameters(), momentum=0.5, centered=True)",
    "Rprop": "torch.optim.Rprop(model.parameters())", "ASGD": "torch.optim.ASGD(model.parameters())",
    "two groups": "torch.optim.Adam([{'params': model.body.parameters(), 'lr': 0.1}, {'params': model.head.parameters()}], lr=0.01)",
}  # fmt: skip
_SCHEDULERS = {
    "StepLR": "StepLR(opt, 2)", "ExponentialLR": "ExponentialLR(opt, 0.9)", "CosineAnnealingLR": "CosineAnnealingLR(opt, 10)", "OneCycleLR": "OneCycleLR(opt, 0.1, total_steps=20)",
    "CosineAnnealingWarmRestarts": "CosineAnnealingWarmRestarts(opt, 3)", "LambdaLR": "LambdaLR(opt, lambda n: 0.9 ** n)", "CyclicLR": "CyclicLR(opt, 0.01, 0.1, 3)",
    "SequentialLR": "SequentialLR(opt, [LinearLR(opt, total_iters=2), ExponentialLR(opt, 0.9)], [2])", "ChainedScheduler": "ChainedScheduler([LinearLR(opt), ExponentialLR(opt, 0.9)])",
}  # fmt: skip
_LOADERS = {
    "in order": "DataLoader(range(20), 3)", "shuffled": "DataLoader(range(20), 3, shuffle=True)",
    "shuffled by a generator of its own": "DataLoader(range(20), 3, shuffle=True, generator=torch.Generator().manual_seed(5))",
    "weighted": "DataLoader(range(20), 3, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 20, 20))",
    "over tensors": "DataLoader(torch.utils.data.TensorDataset(torch.arange(20.0), torch.arange(20)), 3, shuffle=True, drop_last=True)",
    "over a subset": "DataLoader(torch.utils.data.random_split(range(30), [20, 10])[0], 3, shuffle=True)",
    "over an iterable": "DataLoader(Stream(), 3)", "one by one": "DataLoader(range(20), batch_size=None, shuffle=True)",
}  # fmt: skip


def _torch(set_up: str, loop: str, then: str = "pass", *, definitions: str = _TORCH, **options: bool) -> Program:
    return Program(definitions, set_up, loop, then, **options)


def _of_dtype(dtype: str) -> Program:
    """By its bytes, as not every dtype can compute."""
    fill = (
        "torch.tensor([1, 2, 3, 0, 5, 6, 7, 1] * 16, dtype=torch.uint8)"
        if dtype != "bool"
        else "torch.tensor([1, 0] * 64, dtype=torch.uint8)"
    )
    return _torch(
        f"t = {fill}.view(torch.{dtype}); v = t[2:4]",
        "w = t.view(torch.uint8); w[3] = 0; w[20] = 1",
        "w[:2] = 1; d = t.dtype",
    )


_TENSORS = {
    **{f"tensor of {dtype}": _of_dtype(dtype) for dtype in _DTYPES},
    "tensor, in place and replaced": _torch("a = torch.zeros(3); b = a; c = torch.ones(2)", "a += 1; c = torch.full((4,), 2.0)", "b *= 2; c += 1"),
    "tensor, of no elements and no dimensions": _torch("a, b = torch.zeros(0, 3), torch.tensor(1.5)", "b += 1; a = torch.zeros(3, 0)", "b += 1"),
    "views": _torch("a = torch.arange(24.0).reshape(4, 6); v, w, t = a[1:3, ::2], a[:, 5], a.T", "v[0, 0] = 100; w += 1", "a *= 2; t[0, 0] = 7"),
    "view of what nobody names": _torch("v = torch.arange(9.0)[2:5]", "v += 1", "v.untyped_storage()[0] = 1"),
    "expanded": _torch("a = torch.ones(3, 1); e = a.expand(3, 4)", "a += 1", "a *= 2; last = e.sum()"),
    "channels last": _torch("a = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)", "a += 1", "a *= 2; last = a.is_contiguous(memory_format=torch.channels_last)"),
    "shared storage, two dtypes": _torch("a = torch.zeros(4); i = a.view(torch.int32)", "a += 1.5", "i[0] = 0"),
    "data set to another's": _torch("a, b = torch.zeros(3), torch.ones(3)", "a.data = b", "b += 1"),
    "storage, named": _torch("a = torch.arange(4.0); s = a.untyped_storage()", "a += 1", "s.fill_(0)"),
    "sparse": _torch("s = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))", "s = (s + s).coalesce()", "last = s.to_dense()"),
    "meta": _torch("m = torch.empty(2, 3, device='meta')", "m = torch.empty(4, device='meta')", "last = m.shape"),
    "inference": _torch("a = None", "with torch.inference_mode(): a = torch.ones(2) * 3", "last = a.is_inference()"),
    "gradients": _torch("w = torch.ones(3, requires_grad=True); u = torch.ones(2, requires_grad=True)", "(w * w).sum().backward(); g = w.grad", "(w * 2).sum().backward(); last = g is w.grad"),
    "gradient, dropped": _torch("w = torch.ones(3, requires_grad=True); (w * w).sum().backward()", "w.grad = None; w.requires_grad_(False)", "w += 1"),
    "parameter": _torch("p = nn.Parameter(torch.ones(3)); p.note = [1]", "p.data += 1; p.note.append(p)", "p.note.append(2)"),
    "hook on a tensor": _torch("w = torch.ones(3, requires_grad=True); seen = []", "h = w.register_hook(seen.append); (w * w).sum().backward()", "(w * w).sum().backward(); n = len(seen); h.remove(); (w * w).sum().backward(); m = len(seen)", alike=False),
    "subclass": _torch("t = torch.ones(3).as_subclass(T); t.note = 1", "t += 1; t.note = [2]", "t *= 2", definitions=_TORCH + "class T(torch.Tensor): pass\n"),
    "arrays of tensors that the loop makes": _torch(
        "", "t = torch.arange(12.0).reshape(3, 4).T; a = t.numpy(); part = a[1:3, ::2]", "t += 1; part *= 2", anew=False,
    ),
    "shared with numpy": _torch("import numpy as np; n = np.arange(4.0); t = torch.from_numpy(n); u = torch.arange(3.0); m = u.numpy()", "t += 1; m *= 2", "n[0] = 9; u[0] = 7", anew=False),  # `test_storages` has it
    "values": _torch("d = torch.float32", "d = [torch.bfloat16, torch.device('cpu'), torch.Size([2, 3]), torch.strided, torch.channels_last]", "last = d[2].numel()"),
    "packed sequence": _torch("p = None", "p = nn.utils.rnn.pack_sequence([torch.ones(3), torch.zeros(2)])", "last = nn.utils.rnn.pad_packed_sequence(p)[0]"),
    "distributions": _torch("d = torch.distributions.Normal(torch.zeros(2), torch.ones(2))", "d.loc.add_(3)", "torch.manual_seed(1); last = d.sample()"),
    "generator": _torch("g = torch.Generator().manual_seed(5); h = g", "torch.rand(3, generator=g); torch.randn(1, generator=g)", "last = torch.randn(20, generator=h), torch.randperm(5, generator=g)"),
    "generator of the process": _torch("torch.manual_seed(3); g = torch.default_generator", "torch.rand(3)", "last = torch.randn(1)", anew=False),
    "span of the profiler": _torch("r = torch.autograd.profiler.record_function('x')", "n = 1", "r.__enter__(); r.__exit__(None, None, None)"),
    "recording of the profiler": _torch("p = torch.autograd.profiler.profile(enabled=False)", "n = 1", "last = p.enabled", anew=False),
}  # fmt: skip

#: A parametrization derives a class of its own for each module, which no name leads to.
_PARAMETRIZED = {
    "spectral norm": "nn.utils.parametrizations.spectral_norm(model.head)",
    "weight norm": "nn.utils.parametrizations.weight_norm(model.head)",
    "orthogonal": "nn.utils.parametrizations.orthogonal(model.body[0])",
    "parametrization of its own": "nn.utils.parametrize.register_parametrization(model.head, 'weight', Scaled())",
    "pruned": "nn.utils.prune.l1_unstructured(model.head, 'weight', 0.3)",
}
_SYMMETRIC = "import torch.nn.utils.prune\nclass Scaled(nn.Module):\n    def forward(self, X): return X * 2\n"

_QUANTISED = """
import copy
from torch.ao import quantization
def prepared():
    net = nn.Sequential(quantization.QuantStub(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2), quantization.DeQuantStub())
    net.qconfig = quantization.get_default_qat_qconfig(torch.backends.quantized.engine)
    return quantization.prepare_qat(net.train())
def train(model, optimizer):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
_LOW_RANK = """
class LowRank(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T
    def merge(self):
        return (self.base.weight + self.up @ self.down).detach()
def wrap(model):
    for name, child in list(model.named_modules()):
        if isinstance(child, nn.Linear):
            parent = model.get_submodule(name.rpartition('.')[0])
            setattr(parent, name.rpartition('.')[2], LowRank(child, 2))
"""

_MODULES = {
    "model and optimizer, trained": Program(_MODEL, "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1)", _TWO_STEPS, _ONE_MORE),
    "model, evaluating and frozen in part": Program(_MODEL, "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1)", "step(model, opt); model.eval(); model.head.weight.requires_grad_(False); model.body[0].weight.grad = None", _ONE_MORE),
    "model, tied weights": Program(_MODEL, "model = Model(); model.again = model.head; model.tied = nn.Linear(5, 2); model.tied.weight = model.head.weight; opt = torch.optim.SGD(model.parameters(), 0.1)", _TWO_STEPS, _ONE_MORE + "; same = model.tied.weight is model.head.weight"),
    "model, best state kept": Program(_MODEL + "import copy\n", "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1); best = None", "step(model, opt); best = copy.deepcopy(model.state_dict()); step(model, opt)", "model.load_state_dict(best); " + _ONE_MORE),
    "model, averaged": Program(_MODEL, "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1); ema = torch.optim.swa_utils.AveragedModel(model)", "step(model, opt); ema.update_parameters(model)", "last = step(model, opt); ema.update_parameters(model)"),
    "model, layer added": Program(_MODEL, "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1)", "model.body.append(nn.Linear(5, 5)); opt.add_param_group({'params': model.body[-1].parameters(), 'lr': 0.5}); step(model, opt)", _ONE_MORE),
    "model, with hooks": Program(_MODEL + "seen = []\ndef hook(module, inputs, output): seen.append(float(output.detach().sum()))\n", "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1); handle = model.head.register_forward_hook(hook)", "step(model, opt)", _ONE_MORE + "; handle.remove(); step(model, opt); n = len(seen)"),
    **{f"model, {name}": Program(_MODEL + _SYMMETRIC, f"model = Model(); {made}; opt = torch.optim.SGD(model.parameters(), 0.1)", _TWO_STEPS, _ONE_MORE) for name, made in _PARAMETRIZED.items()},
    "model, two norms of one name": Program(_MODEL, "model = Model(); nn.utils.parametrizations.spectral_norm(model.head); nn.utils.parametrizations.weight_norm(model.body[0]); opt = torch.optim.SGD(model.parameters(), 0.1)", _TWO_STEPS, "nn.utils.parametrize.remove_parametrizations(model.body[0], 'weight'); last = nn.utils.parametrize.is_parametrized(model.head), nn.utils.parametrize.is_parametrized(model.body[0])"),
    "models, stacked": Program(_TORCH + "import copy\n", "ms = [nn.Linear(4, 4) for _ in range(3)]; params, buffers = torch.func.stack_module_state(ms); base = copy.deepcopy(ms[0]).to('meta'); call = lambda p, b, x: torch.func.functional_call(base, (p, b), (x,)); f = torch.vmap(call, (0, 0, None))", "params['weight'].data.add_(1)", "last = f(params, buffers, torch.ones(1, 4)).detach()", alike=False),
    "model, recurrent": Program(_TORCH, "model = nn.LSTM(3, 4); h = None", "out, h = model(torch.ones(2, 1, 3)); h = tuple(one.detach() for one in h); out = out.detach()", "last = model(torch.ones(1, 1, 3), h)[0].detach()"),
    "model, lazy": Program(_TORCH, "model = nn.LazyLinear(3)", "model(torch.ones(2, 5))", "last = model(torch.ones(1, 5)).detach()", anew=False),
    "model, quantised while it is trained": Program(_MODEL + _QUANTISED, "model = prepared(); opt = torch.optim.SGD(model.parameters(), 0.1)", "train(model, opt); train(model, opt)", "last = train(model, opt); frozen = torch.ao.quantization.convert(copy.deepcopy(model).eval()); out = frozen(x[:, :4])"),
    "model, quantised after training": Program(_MODEL + _QUANTISED, "model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)); small = None", "model[0].weight.data.fill_(0.5); small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)", "last = small(x)"),
    "model, wrapped by adapters of low rank": Program(_MODEL + _LOW_RANK, "model = Model(); wrap(model); opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)", _TWO_STEPS, _ONE_MORE + "; merged = model.head.merge()"),
    "model, scripted": Program(_TORCH, "model = torch.jit.script(nn.Linear(3, 2))", "model.weight.data += 1", "last = model(torch.ones(1, 3)).detach()", anew=False),
    "enumerations of C++": Program(_TORCH + "import torch.nn.attention\n", "m = nn.Linear(1, 1); m.backends = [torch.nn.attention.SDPBackend.MATH]", "m.backends.append(torch.nn.attention.SDPBackend.FLASH_ATTENTION); a = torch.profiler.ProfilerActivity.CPU", "last = [one.name for one in m.backends], a == torch.profiler.ProfilerActivity.CPU", alike=False),
    "operators": Program(_TORCH, "library = torch.library.Library('of_the_tests', 'FRAGMENT'); f = torch.ops.aten.relu.default; packet = None", "f = torch.ops.aten.neg.default; packet = torch.ops.aten.add; build = torch._C._get_tracing_state", "last = f(torch.ones(1)), packet(1, 2), packet is torch.ops.aten.add, build()", anew=False),
    "operators that the loop picks": Program(_TORCH, "f = None", "f = [torch.ops.aten.neg.default, torch.ops.aten.add]", "last = f[0](torch.ones(1)), f[1](1, 2), f[0] is torch.ops.aten.neg.default"),
    "containers of parameters": Program(_TORCH, "l = nn.ParameterList([torch.ones(2)]); d = nn.ParameterDict({'a': torch.zeros(2)}); m = nn.ModuleDict({'x': nn.Linear(1, 1)})", "l.append(torch.full((1,), 3.0)); d['b'] = torch.ones(1); m['x'].weight.data.fill_(5.0)", "last = len(l), sorted(d)"),
    **{f"optimizer {name}": Program(_MODEL, f"model = Model(); opt = {made}", _TWO_STEPS, _ONE_MORE) for name, made in _OPTIMIZERS.items()},
    "optimizer LBFGS": Program(_MODEL, "model = Model(); opt = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)\ndef closure():\n    torch.manual_seed(0); opt.zero_grad(); loss = model(x).square().mean(); loss.backward(); return loss", "opt.step(closure)", "last = float(opt.step(closure).detach())"),
    "optimizer, replaced": Program(_MODEL, "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1)", "step(model, opt); opt = torch.optim.Adam(model.parameters(), 0.1); step(model, opt)", _ONE_MORE),
    **{f"scheduler {name}": Program(_MODEL + "from torch.optim.lr_scheduler import *\n", f"model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5); s = {made}", "for _ in range(4): step(model, opt); s.step()", "last = [(step(model, opt), s.step(), s.get_last_lr()) for _ in range(3)]") for name, made in _SCHEDULERS.items()},
    "scheduler on a plateau": Program(_MODEL, "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1); s = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)", "for _ in range(3): step(model, opt); s.step(1.0)", "s.step(2.0); last = opt.param_groups[0]['lr'], step(model, opt)"),
    "scaler": Program(_MODEL, "model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1); scaler = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=2)", "torch.manual_seed(1)\nfor _ in range(2):\n    opt.zero_grad(); scaler.scale(model(x).square().mean()).backward(); scaler.step(opt); scaler.update()", "torch.manual_seed(2); opt.zero_grad(); scaler.scale(model(x).square().mean()).backward(); scaler.step(opt); scaler.update(); last = scaler.get_scale()"),
    **{f"loader {name}": Program(_TORCH + "from torch.utils.data import DataLoader\nclass Stream(torch.utils.data.IterableDataset):\n    def __iter__(self): return iter(range(20))\n", f"loader = {made}; it = iter(loader)", "next(it); next(it)", "last = list(it); torch.manual_seed(9); again = next(iter(loader))", anew=False) for name, made in _LOADERS.items()},
    "sampler of its own": Program(_TORCH + "class S(torch.utils.data.Sampler):\n    def __init__(self): self.epoch = 0\n    def __iter__(self):\n        self.epoch += 1\n        g = torch.Generator().manual_seed(self.epoch)\n        yield from torch.randperm(9, generator=g).tolist()\n    def __len__(self): return 9\n", "s = S(); loader = torch.utils.data.DataLoader(range(9), 2, sampler=s); it = iter(loader)", "list(it); it = iter(loader); next(it)", "last = list(it), s.epoch", anew=False),
}  # fmt: skip

PROGRAMS: dict[str, Program] = {f"torch, {name}": program for name, program in {**_TENSORS, **_MODULES}.items()}
