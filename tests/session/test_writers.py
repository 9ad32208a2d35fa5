"""Libraries that write files by themselves say so before they do."""

import importlib
import importlib.util
import io
import operator
import os
import sys
import types

import pytest

from detrain.adapters.writers import WRITERS, announce

heard: list[tuple] = []
_is_listening = [False]


def _hear(event: str, args: tuple) -> None:
    if _is_listening[0] and event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR) and not os.path.isabs(args[0]):
        heard.append((event, args[0]))


sys.addaudithook(_hear)


@pytest.fixture(autouse=True)
def listening(tmp_path, monkeypatch):
    """In a folder of its own."""
    monkeypatch.chdir(tmp_path)
    heard.clear()
    _is_listening[0] = True
    yield
    _is_listening[0] = False


def announced(name: str, **functions) -> types.ModuleType:
    """A copy of a module in which only these functions are left, announced as those of the module are."""
    module = types.ModuleType(name)
    vars(module).update(functions)
    announce(module)
    return module


def test_torch_save_is_announced_and_a_buffer_is_not(monkeypatch):
    torch = pytest.importorskip("torch")
    opener = torch.serialization._open_zipfile_writer_file
    copy = type("Opener", (opener,), {"__init__": opener.__init__})
    monkeypatch.setattr(
        torch.serialization,
        "_open_zipfile_writer_file",
        announced("torch.serialization", _open_zipfile_writer_file=copy)._open_zipfile_writer_file,
    )
    torch.save({"a": torch.ones(2)}, "model.pt")
    assert heard == [("open", "model.pt")]
    torch.save({"a": torch.ones(2)}, io.BytesIO())
    assert heard == [("open", "model.pt")]
    assert torch.load("model.pt")["a"].tolist() == [1.0, 1.0]


def test_hdf5_is_announced_unless_it_is_read(monkeypatch):
    h5py = pytest.importorskip("h5py")
    copy = type("File", (h5py.File,), {"__init__": h5py.File.__init__})
    file = announced("h5py._hl.files", File=copy).File
    for how in ({"mode": "w"}, {"mode": "r"}, {}, {"mode": "a"}):
        file("x.h5", **how).close()
    file(io.BytesIO(), "w").close()
    assert heard == [("open", "x.h5"), ("open", "x.h5")]


def test_wrong_arguments_are_the_functions_own_business():
    def serialize_file(tensors, filename):
        return filename

    module = announced("safetensors.torch", serialize_file=serialize_file)
    with pytest.raises(TypeError, match="serialize_file"):
        module.serialize_file()
    assert module.serialize_file({}, filename="x.safetensors") == "x.safetensors"
    assert heard == [("open", "x.safetensors")]


def test_every_writer_of_an_installed_library_is_there():
    seen = 0
    for name, functions in WRITERS.items():
        if importlib.util.find_spec(name.split(".")[0]) is None or name.startswith("tensorflow"):
            continue  # loading TensorFlow is left to the tests of its own
        module = importlib.import_module(name)
        for place in functions:
            assert operator.attrgetter(place)(module), place
            seen += 1
    assert seen >= 1
