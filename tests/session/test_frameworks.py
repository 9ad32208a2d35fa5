"""What is asked of all frameworks that a script has loaded."""

import numpy as np
import pytest

from detrain.adapters import numpy as numpy_adapter
from detrain.adapters.loaded import Frameworks
from detrain.adapters.protocol import Adapter
from detrain.errors import NotSupported, RestoreError


def caused_by(cause: BaseException) -> RestoreError:
    error = RestoreError("the generator failed on the way to its saved place")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), FileNotFoundError("data.bin"), RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        caused_by(FileNotFoundError("data.bin")), caused_by(MemoryError()),
    ],
)  # fmt: skip
def test_shortage_is_of_the_machine(error):
    assert Frameworks().is_shortage(error)


@pytest.mark.parametrize("error", [RuntimeError("no"), caused_by(ValueError("no")), RestoreError("no"), None])
def test_anything_else_is_of_the_checkpoint(error):
    assert not Frameworks().is_shortage(error)


class Plain(Adapter):
    """With the neutral answers."""

    name = "plain"


class Logging(Adapter):
    """One that logs."""

    name = "logging"
    on_call = None

    def log_operators(self, is_user_file, on_call):
        self.on_call = on_call

        def stop():
            self.on_call = None

        return stop


def operator(name):
    return {"name": name, "line": "", "backward": "", "inputs": [], "outputs": [], "shapes": []}


def test_operators_of_several_frameworks_come_in_the_order_in_which_they_run():
    first, second = Logging(), Logging()
    log = Frameworks({"first": first, "second": second}).log_operators(lambda name: True)
    for adapter, name in ((first, "a"), (second, "b"), (first, "c")):
        adapter.on_call(operator(name))
    assert [call["name"] for call in log.stop()] == ["a", "b", "c"]
    assert first.on_call is second.on_call is None


def test_framework_that_cannot_log_its_operators_is_named_and_nothing_is_left_logging():
    logging = Logging()
    with pytest.raises(NotSupported, match="plain cannot log the operators that it runs") as refused:
        Frameworks({"logging": logging, "plain": Plain()}).log_operators(lambda name: True)
    assert refused.value.exit_status == 2
    assert logging.on_call is None


def test_neutral_answers_change_nothing():
    frameworks = Frameworks({"plain": Plain()})
    assert frameworks.generators().keys() == {"python"}
    assert frameworks.flags() == {"plain": {}}
    assert frameworks.start_data_flows() == []
    assert frameworks.loader_of([]) is None
    assert not frameworks.has_optimizer()
    assert not frameworks.is_trained(object())
    assert frameworks.can_train()
    with frameworks.unseen():
        frameworks.wait()
        frameworks.warm_up()
        frameworks.hold_loading(True)


def test_how_numpy_prints_comes_back_and_a_formatter_of_the_set_up_stays():
    adapter, own = numpy_adapter.NumpyAdapter(), {"float_kind": "{:.1f}".format}
    with np.printoptions(precision=3, formatter=own), np.errstate(over="raise"):
        flags = adapter.flags()
        assert "formatter" not in flags["print"], "it is no plain value"
        with np.printoptions(precision=8, formatter=own), np.errstate(over="ignore"):
            adapter.set_flags(flags)
            assert np.get_printoptions()["precision"] == 3
            assert np.geterr()["over"] == "raise"
            assert str(np.array([0.25])) == "[0.2]"
    with np.printoptions(formatter=own):
        with np.printoptions(formatter=None):
            flags = adapter.flags()
        adapter.set_flags(flags)
        assert str(np.array([0.25])) == "[0.25]", "the loop had taken it away"
