"""What detrain asks of a framework.

Each framework has one adapter: an object of a class derived from `Adapter`, loaded when the script has loaded the framework
(`detrain.adapters.imports`). `detrain.adapters.loaded` asks all of them as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict

from detrain.errors import NotSupported

if TYPE_CHECKING:
    from detrain.pipeline.layers import Profile
    from detrain.pipeline.measured import WorkerSteps
    from detrain.pipeline.plan import Plan
    from detrain.remat.graph import Graph

#: The bits of one loss, and the loss as a number for a person: one element, or none where it is no floating-point number.
LossValue = tuple[bytes, list[float]]
#: Reads one loss. Where the loss lies on a device, this waits for the device. A number in its place has been read: it is a `float32`.
LossReader = Callable[[], LossValue] | float


class RunningLosses(Protocol):
    """The losses of an attempt."""

    @property
    def running(self) -> list[Any]:
        """What reads those of the batch that runs: `LossReader`s."""


class QuietBatches(Protocol):
    """Batches in which no update is of interest, nor of gradients more than the losses."""

    @property
    def loop(self) -> object | None:
        """None if the batch that runs is none of them."""

    @property
    def thread(self) -> int:
        """The thread whose losses are of interest."""

    @property
    def losses(self) -> RunningLosses:
        """Where these go."""


@dataclass(frozen=True)
class Limit:
    """How much memory a program may have: bytes, or a share of the most that its first iteration has at one time.

    Both, where it is known from before what that share is.
    """

    num_bytes: int = 0
    share: float = 0.0
    #: What is made again is compared with what was evicted.
    is_verified: bool = False
    #: Plans the steps that come again (`detrain.remat.planners.registry`); "" where they are taken as they come.
    planner: str = ""


@dataclass(frozen=True)
class MemoryUse:
    """What a program has needed within a memory budget, and what that took."""

    #: 0 while it is not known, as it is to be a share of the first iteration's peak.
    budget_bytes: int
    peak_bytes: int
    num_evictions: int
    #: Operators that have been run again, and what they took when they first ran.
    num_again: int
    again_s: float
    #: Whose plan was followed last; "" for none.
    planner: str = ""
    #: Steps that have followed a plan to their end, and steps in which one was left.
    num_planned: int = 0
    num_left: int = 0
    #: Why a plan was left last, or why there is none.
    why: str = ""
    #: Bytes in use over the operators of the last step that was recorded or followed a plan: the most in each of so many stretches.
    curve_bytes: tuple[int, ...] = ()
    #: Of the first iteration's peak, that the budget was given as; 0 for bytes.
    share: float = 0.0


@dataclass(frozen=True)
class PipelineOrder:
    """The script's model is to be trained over the stages of a plan."""

    plan: Plan
    num_micro_batches: int
    #: One process plays all devices.
    is_emulated: bool = False


class ScriptPipeline(Protocol):
    """Has the calls of the plan's model."""

    def at_header(self, num_batches: int) -> None:
        """So many batches of the run have been trained on. Raises `GraphError` if one of this attempt was without the plan's model."""


@dataclass(frozen=True)
class Profiled:
    """A model's layers as they took a call of the script's."""

    profile: Profile
    #: Of the call.
    num_samples: int
    #: All that the model returns has samples in it: it can be put together from micro-batches.
    is_splittable: bool


class ModelLog(Protocol):
    """Sees which models the script calls in training, and with what."""

    def profile(self, num_rounds: int, name: str) -> Profiled:
        """Of the largest of them, or of the first whose class is called `name`; each layer is run so often, and the median counts.

        Raises `GraphError`.
        """


class MemoryBudget(Protocol):
    """What the program makes is evicted, and made again when it is needed, so that it stays within so much memory.

    It may begin at the header of an iteration, or in the middle of one.
    """

    def at_header(self, *, is_first: bool = False) -> None:
        """An iteration of the training's batch loop begins; `is_first`: nothing has been trained before."""

    def bring_back(self) -> None:
        """Have everything in memory that the program holds. Raises `OverBudget`."""

    def use(self) -> MemoryUse:
        """So far."""


@dataclass(frozen=True)
class Settings:
    """How a framework is to be prepared."""

    seed: int
    is_deterministic: bool
    #: Makes the entropy that the calling process draws from the system a function of two numbers. Picklable: called in loader workers.
    key_entropy: Callable[[int, int], None]
    #: Keeps a worker process alive when a signal is sent to the whole process group. Takes the pid of the main process; picklable.
    outlast: Callable[[int], None]
    #: Called with the size of each process group that the script joins.
    on_group: Callable[[int], None] = lambda _: None
    #: Called where the script says that its processes have unequal numbers of batches.
    on_uneven: Callable[[], None] = lambda: None
    #: The program will be kept to a memory budget.
    has_memory_budget: bool = False


class OperatorCall(TypedDict):
    """One operator that has run; JSON."""

    name: str
    #: The innermost line of the script that led to the call, as "train.py:12"; "" if there is none.
    line: str
    #: The node of the backward pass that the operator belongs to; "" outside of one.
    backward: str
    #: Digests of the tensors that went in and of those that came out or were written to; "" for one whose bits cannot be read.
    inputs: list[str]
    outputs: list[str]
    #: dtype and sizes of each output.
    shapes: list[tuple[str, list[int]]]


class DataFlow(Protocol):
    """Finds out which of the things that a script loads flow into gradients; for a few iterations, in the tracer."""

    #: Keys under which a tensor has been labelled.
    labelled: set[Hashable]
    #: Keys of what has flowed into a backward pass.
    arrived: set[Hashable]

    def start(self) -> None:
        """Begin to follow tensors."""

    def stop(self) -> None:
        """End it, and forget the tensors."""

    def label(self, value: Any, key: Hashable) -> None:
        """Mark every tensor in a loaded value (nested lists, tuples and dicts) with a key."""


class StepLog(Protocol):
    """Records training steps as operators and the memory that they use."""

    def begin_step(self) -> None:
        """A step begins here; the one before, if any, ends."""

    def end(self) -> Graph:
        """The last step ends here: the graph of the step that most were like, with its operators' median times.

        Raises `GraphError` if no step has run an operator.
        """


class Adapter:
    """What detrain may ask of one framework.

    Asked in this order: `prepare` once, before the script's next statement; `report_updates` once, directly after it; everything else at
    any time after that, from the thread that trains. What is optional has a neutral answer here. What a framework is asked for and
    cannot do raises `NotSupported`.
    """

    #: As the module is called, and as checkpoints name it.
    name: ClassVar[str]
    #: False for a library that trains nothing by itself.
    can_train: ClassVar[bool] = True
    #: Its generators of random numbers that anybody may make, and Python's collector of garbage knows.
    generator_types: tuple[type, ...] = ()
    #: What the framework raises where a device has no memory left.
    shortages: tuple[type[BaseException], ...] = ()

    # --- process-wide state ------------------------------------------------------------------------------------------------

    def prepare(self, settings: Settings) -> None:
        """Seed the framework and choose deterministic kernels."""

    def generators(self) -> dict[str, Any]:
        """The process-wide generators of random numbers, by name: objects that a `Handler` captures."""
        return {}

    def flags(self) -> dict[str, Any]:
        """Process-wide switches that are part of the state (default dtype, grad mode, number of threads), by name; JSON."""
        return {}

    def set_flags(self, flags: dict[str, Any]) -> None:
        """Set the switches that differ from `flags`, which an earlier attempt's `flags` gave."""

    def facts(self) -> dict[str, Any]:
        """What the bits depend on and a checkpoint cannot bring back: versions, instruction set, devices, by name; JSON."""
        return {}

    # --- training ----------------------------------------------------------------------------------------------------------

    def report_updates(
        self, on_update: Callable[[], None], on_gradient: Callable[[Any], None], quiet: QuietBatches | None = None
    ) -> None:
        """Report training from now on.

        `on_update` is called after every weight update that an optimizer makes; `on_gradient` before every computation of gradients,
        with the tensors that they are computed of, which `losses` takes. While `quiet` has a loop, an adapter may leave out `on_update`,
        and `on_gradient` where it has put the losses there itself.
        """

    def losses(self, outputs: Any) -> list[LossReader]:
        """What reads each loss among the tensors that `on_gradient` was given. Does not wait for a device; the readers do."""
        return []

    def trained(self) -> list[Any]:
        """The parameters that optimizers have stepped since `report_updates`, and that are still alive."""
        return []

    def settle(self) -> None:
        """All ranks of a job are about to be captured at one place: what they do together at their next step anyway is done now."""

    def measured_steps(self) -> WorkerSteps | None:
        """Of a pipeline over ranks, what this rank did when; None without one."""
        return None

    def has_optimizer(self) -> bool:
        """True if the script has made an optimizer, whose steps `report_updates` reports."""
        return False

    def is_trained(self, value: Any) -> bool:
        """True for a model with parameters to train, an optimizer or a scheduler: these load no data."""
        return False

    def loader_of(self, value: Any) -> type | None:
        """The class of the framework's data loader if `value` is one, or iterates over one."""
        return None

    def hold_loading(self, is_on: bool) -> None:
        """Hold back the framework's data loaders: what they would load is not used while a run fast-forwards."""

    # --- devices -----------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Return once every device has done all that it was given, on whatever stream."""

    def warm_up(self) -> None:
        """Initialise what the framework's libraries initialise at their first use; called before a script goes on in the middle."""

    def unseen(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which operations are detrain's own: no mode of the script's, and no subclass of a tensor, sees them."""
        return contextlib.nullcontext()

    # --- for the tracer and for `diff --op` --------------------------------------------------------------------------------

    def report_in_place_updates(self, on_update: Callable[[], None]) -> None:
        """Report also weight updates that the script makes by hand, by writing to a tensor. Slow; for the tracer alone."""

    def data_flow(self) -> DataFlow | None:
        """What follows loaded tensors into gradients; None if the framework has nothing for it."""
        return None

    def log_operators(
        self, is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]
    ) -> Callable[[], None]:
        """Call `on_call` for every operator that runs on this thread, and in the backward passes that it starts, from now on.

        `is_user_file` is asked whether a source file is the script's or one of its modules. Returns what ends the log. The bits of the
        run stay as they are. Raises `NotSupported`.
        """
        raise NotSupported(self.name, "log the operators that it runs")

    def keep_to(self, limit: Limit) -> MemoryBudget:
        """Keep what the calling thread runs to a memory budget, from now on. Raises `NotSupported`."""
        raise NotSupported(self.name, "keep a program to a memory budget")

    def pipeline(
        self, order: PipelineOrder, aside: Callable[[], contextlib.AbstractContextManager[Any]]
    ) -> ScriptPipeline:
        """Train the calling thread's model over a pipeline, from now on. Within `aside` nothing counts as the script's.

        Raises `NotSupported`.
        """
        raise NotSupported(self.name, "train a script's model over a pipeline")

    def model_log(self) -> ModelLog:
        """See the calls of models that this thread makes from now on. Raises `NotSupported`."""
        raise NotSupported(self.name, "profile a script's model")

    def on_first_forward(self, call: Callable[[], None]) -> None:
        """Call this once, before the first forward pass that gradients can be computed of. Where that cannot be told, never."""

    def record_steps(self) -> StepLog:
        """Record training steps of this thread, once `begin_step` is called; the run's bits stay as they are. Raises `NotSupported`."""
        raise NotSupported(self.name, "record a training step as a graph of operators")
