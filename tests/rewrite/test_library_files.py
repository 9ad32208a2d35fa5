"""Which files of installed packages carry hooks from the start of a first attempt."""

import importlib
import sys

import pytest

from detrain.adapters import library_loops
from detrain.rewrite.importer import Instrumenter, UserFinder

TRAINER = """\
class Trainer:
    def fit(self, batches):
        total = 0
        for batch in batches:
            total += self.training_step(batch)
        return total

    def training_step(self, batch):
        return 2 * batch
"""


@pytest.mark.parametrize(
    ("content", "is_wanted"),
    [
        (TRAINER, True),
        ("for x in xs:\n    model.train_on_batch(x)\n", True),
        ("while True:\n    tape.gradient(y, w)\n    optimizer.apply_gradients(pairs)\n", True),
        ("def learn(self):\n    while self.steps < 5:\n        self.collect()\n        self.train()\n", True),
        ("for x in xs:\n    self.optim.step()\n", True),
        ("for x in xs:\n    loss.backward()\n", True),
        ("def training_step(self, batch):\n    return self.model(batch)\n", False),  # no loop
        ("for x in xs:\n    step(x)\n", False),
        ("for x in xs:\n    total += model.evaluate(x)\n", False),
        ("for one in backwards(xs):\n    print(one)\n", False),
        ("for x in xs:  # `backward` compatible, so never backward(x)\n    print(x)\n", False),
        ("for batch in loader:\n    self.accelerator.backward(loss)\n", True),
    ],
)
def test_a_file_with_loops_that_names_what_trains_may_hold_the_training(content, is_wanted):
    assert library_loops.may_train(content.encode()) == is_wanted


@pytest.mark.parametrize(
    ("filename", "is_one"),
    [
        ("/env/lib/python3.11/site-packages/torch/optim/swa_utils.py", True),
        ("/env/lib/python3.11/site-packages/keras/src/trainers/trainer.py", True),
        ("/env/lib/python3.11/site-packages/torchtune/training/loop.py", False),
        ("/envs/torch/lib/python3.11/site-packages/lightning/pytorch/loops/fit_loop.py", False),
        ("/env/lib/python3.11/site-packages/library/torch/trainer.py", False),
        ("/opt/libraries/torch/optim/optimizer.py", True),
    ],
)
def test_frameworks_are_told_from_libraries(filename, is_one):
    assert library_loops.is_frameworks(filename) == is_one


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads an installed module of a given content through the import hook; gives the module, the hooks' lines, and the user's modules."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))

    def load_now(content, name="trainer_of_a_library", **options):
        (packages / f"{name}.py").write_text(content)
        codes, users = [], []
        compiler = Instrumenter(
            {}, None, lambda filename, code: codes.append(filename), libraries=library_loops, **options
        )
        monkeypatch.setattr(sys, "meta_path", [UserFinder(compiler, users.append), *sys.meta_path])
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        return module, compiler.loops.get(module.__file__), users

    return load_now


def test_a_trainer_in_a_library_carries_hooks_and_is_no_module_of_the_users(load):
    module, lines, users = load(TRAINER)
    assert lines == {4: 5}
    assert "__detrain_record_loop__" in module.Trainer.fit.__code__.co_names
    assert users == []


def test_a_file_of_a_library_that_does_not_train_is_left_alone(load):
    module, lines, _ = load("def total(xs):\n    n = 0\n    for x in xs:\n        n += x\n    return n\n")
    assert lines is None
    assert module.total.__code__.co_names == ()
    assert module.total([1, 2]) == 3


def test_no_file_of_a_library_is_opened_where_all_loops_are_known(load):
    _, lines, _ = load(TRAINER, only_known=True)
    assert lines is None
