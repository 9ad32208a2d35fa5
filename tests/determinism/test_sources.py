"""The sources of difference between two runs: each differs under plain `python`, and does not under detrain."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.determinism.conftest import Script
from tests.once import once
from tests.tiers import full_but

#: Reading takes longer one time than another, as from a disk that others use too.
WAIT = """
        import time
        import tensorflow as tf
        def wait(n):
            time.sleep(time.perf_counter_ns() // 100 % 10 / 1000)
            return n
        """
#: One row for each row of `docs/determinism.md` that two runs on one machine can show.
SOURCES = {
    "order of a set of strings": "print(list({str(i) for i in range(30)}))",
    "order of a set of objects": """
        class Thing: pass
        # So many that bits of the address count which are not the same in every process.
        things = [Thing() for _ in range(20_000)]
        number = {id(thing): n for n, thing in enumerate(things)}
        print([number[id(thing)] for thing in set(things)][:50])
        """,
    "os.urandom": "import os; print(os.urandom(8))",
    "getrandom": "import os; print(os.getrandom(8))",
    "getentropy": """
        import ctypes
        out = ctypes.create_string_buffer(8)
        ctypes.CDLL(None).getentropy(out, ctypes.c_size_t(8))
        print(out.raw)
        """,
    "/dev/urandom": "print(open('/dev/urandom', 'rb').read(8))",
    "uuid4": "import uuid; print(uuid.uuid4())",
    "secrets": "import secrets; print(secrets.token_hex(8))",
    "random without a seed": "import random; print(random.random())",
    "random.seed()": "import random; random.seed(); print(random.random())",
    "random.Random()": "import random; print(random.Random().random())",
    "SystemRandom": "import random; print(random.SystemRandom().random())",
    "numpy without a seed": "import numpy as np; print(np.random.rand())",
    "np.random.seed()": "import numpy as np; np.random.seed(); print(np.random.rand())",
    "default_rng()": "import numpy as np; print(np.random.default_rng().random())",
    "SeedSequence()": "import numpy as np; print(np.random.SeedSequence().entropy)",
    "torch without a seed": "import torch; print(torch.randn(3))",
    "torch.seed()": "import torch; print(torch.seed(), torch.randn(3))",
    "torch.Generator().seed()": "import torch; g = torch.Generator(); g.seed(); print(torch.randn(3, generator=g))",
    "torch.empty": """
        import torch
        hold = [torch.empty(4, dtype=torch.int64) for _ in range(200)]
        print(torch.stack(hold).sum().item())
        """,
    "numbers drawn by loader workers": """
        import random, numpy as np, torch
        class Noisy(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, index): return random.random() + np.random.rand() + torch.rand(()).item()
        if __name__ == "__main__":
            print([batch.tolist() for batch in torch.utils.data.DataLoader(Noisy(), batch_size=2, num_workers=2)])
        """,
    "entropy drawn by loader workers": """
        import os, numpy as np, torch
        class Noisy(torch.utils.data.Dataset):
            def __len__(self): return 40
            def __getitem__(self, index):
                return torch.zeros(2), int(np.random.default_rng().integers(1000)), int.from_bytes(os.urandom(2), "big")
        if __name__ == "__main__":
            for epoch in range(2):
                print([(a.tolist(), b.tolist()) for _, a, b in torch.utils.data.DataLoader(Noisy(), 2, num_workers=2)])
        """,
    "entropy beside a thread that draws too": """
        import os, threading, time
        def draw():
            for _ in range(2000): os.urandom(8)
        thread = threading.Thread(target=draw); thread.start()
        print([os.urandom(2).hex() for _ in range(300) if not time.sleep(0.00001)])
        """,
    "a forked child": """
        import multiprocessing, random
        def draw(queue): random.seed(); queue.put(random.random())
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        for _ in range(2):
            child = context.Process(target=draw, args=(queue,)); child.start(); print(queue.get()); child.join()
        """,
    "a spawned child": """
        import multiprocessing, random
        def draw(queue): queue.put((random.random(), list({"a", "b", "c", "d", "e", "f"})))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.SimpleQueue()
            for _ in range(2):
                child = context.Process(target=draw, args=(queue,)); child.start(); print(queue.get()); child.join()
        """,
    "a program that is started": """
        import subprocess, sys
        print(subprocess.check_output([sys.executable, "-c", "import uuid; print(uuid.uuid4(), {'a', 'b', 'c', 'd'})"]))
        """,
    "sums of many threads": """
        import torch
        torch.manual_seed(0); torch.set_num_threads(4)
        where, what = torch.randint(0, 10, (400_000,)), torch.randn(400_000)
        sums = [torch.zeros(10).index_put_((where,), what, accumulate=True).tolist() for _ in range(20)]
        print(len({str(one) for one in sums}), sums)
        """,
    "names of temporary files": "import tempfile; print(tempfile.mktemp())",
    "tensorflow without a seed": "import tensorflow as tf; print(tf.random.normal([3]).numpy())",
    "a graph's random numbers without a seed": """
        import tensorflow as tf
        draw = tf.function(lambda: tf.nn.dropout(tf.ones([64]), 0.5) + tf.random.uniform([64]))
        print(draw().numpy().tolist(), draw().numpy().tolist())
        """,
    "parallel tf.data": WAIT
    + """
        def read(n):
            with tf.control_dependencies([tf.numpy_function(wait, [n], tf.int64)]): return n * 10
        print([int(item) for item in tf.data.Dataset.range(50).map(read, 8, deterministic=False)])
        """,
    "random numbers drawn by parallel calls of tf.data": WAIT
    + """
        tf.random.set_seed(1)
        def draw(n):
            with tf.control_dependencies([tf.numpy_function(wait, [n], tf.int64)]): return tf.random.uniform([])
        print([float(item) for item in tf.data.Dataset.range(50).map(draw, num_parallel_calls=8)])
        """,
}


#: Told by a process of their own: these look at what a process finds when it begins, or begin others by the script's file.
ALONE = ["order of a set of objects", "torch.empty", "a spawned child", "a program that is started"]
FRAMEWORKS = {
    "tensorflow": [name for name, text in SOURCES.items() if "import tensorflow" in text],
    "torch": [name for name, text in SOURCES.items() if "torch" in text and name not in ALONE],
}
FRAMEWORKS["none"] = [name for name in SOURCES if name not in {*ALONE, *FRAMEWORKS["tensorflow"], *FRAMEWORKS["torch"]}]


@dataclass
class Outputs:
    """What each of some sources has printed: by `python` again and again, and under detrain twice."""

    plain: list[dict[str, str]]
    ours: list[dict[str, str]]
    is_address_space_fixed: bool

    def differs(self, name: str) -> bool:
        return len({outputs[name] for outputs in self.plain}) > 1


def joined(names: Sequence[str]) -> str:
    """One script for many sources; those that seed a generator come last, since what others draw would be theirs then."""
    last_first = sorted(names, key=lambda name: "seed(" in SOURCES[name])
    return "".join(f"print({f'== {name}'!r}, flush=True)\n{textwrap.dedent(SOURCES[name])}\n" for name in last_first)


def told_apart(printed: str) -> dict[str, str]:
    """What each source of a joined script has printed."""
    parts = [part.partition("\n") for part in printed.split("== ")[1:]]
    return {name: said for name, _, said in parts}


def run_all(names: Sequence[str], folder: Path) -> Outputs:
    """Under `python` until each source has printed something else than the first time; chance may let a few be alike."""
    program = Script(folder, joined(names), is_whole=True)
    found = Outputs([told_apart(program.plainly())], [], False)
    while len(found.plain) < 31 and not all(found.differs(name) for name in names):
        found.plain.append(told_apart(program.plainly()))
    found.ours = [told_apart(program.anew()) for _ in range(2)]
    found.is_address_space_fixed = bool(program.record("run1")["is_address_space_fixed"])
    return found


@pytest.fixture
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """What the sources that run in one process with the test's have printed."""
    name = request.getfixturevalue("name")
    names = next((names for names in FRAMEWORKS.values() if name in names), [name])
    found: Outputs = once(tmp_path_factory, names, lambda: run_all(names, tmp_path_factory.mktemp("sources")))
    return found


@pytest.mark.parametrize("name", full_but(set(SOURCES) - {*FRAMEWORKS["tensorflow"], "torch.empty"}, SOURCES))
def test_what_differs_under_python_does_not_under_detrain(name: str, outputs: Outputs) -> None:
    assert outputs.differs(name), "this source cannot be shown here"
    if name == "order of a set of objects" and not outputs.is_address_space_fixed:
        pytest.skip("this system does not let a program switch address-space randomisation off")
    first, second = outputs.ours
    assert first[name] == second[name]
