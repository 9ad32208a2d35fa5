"""Steps that nobody has thought of, by a seed."""

import random

from detrain.remat.graph import GraphBuilder


def small_graph(seed, most=7):
    """Up to `most` operators behind a constant; some make two tensors or a view."""
    rng = random.Random(seed)
    made = GraphBuilder(f"small-{seed}")
    there = [made.constant("w", rng.randrange(3))]
    for number in range(rng.randrange(2, most + 1)):
        inputs = [rng.choice(there[-4:]) for _ in range(rng.randrange(1, 3))]
        outputs = [(f"t{number}.{one}", rng.randrange(1, 6), -1) for one in range(1 + (rng.random() < 0.2))]
        if rng.random() < 0.15:
            outputs.append((f"v{number}", 0, 0))
        there += made.compute("f", rng.randrange(1, 9), inputs, outputs)
    return made.build(rng.sample(there[1:], min(len(there) - 1, rng.randrange(1, 4))))


def training_graph(seed):
    """A step forward and back: each operator's gradient needs what it took or what it made, and the gradient that comes."""
    rng = random.Random(seed)
    made = GraphBuilder(f"training-{seed}")
    there, layers = [made.constant("data", rng.randrange(1, 4))], []
    for number in range(rng.randrange(2, 9)):
        inputs = [there[-1], *rng.sample(there, min(len(there), rng.random() < 0.4))]
        weight = [made.constant(f"w{number}", rng.randrange(1, 3))] if rng.random() < 0.3 else []
        (one,) = made.compute(
            "forward", rng.randrange(1, 9), [*inputs, *weight], [(f"f{number}", rng.randrange(1, 9), -1)]
        )
        layers.append((inputs, weight, one))
        there.append(one)
    (gradient,) = made.compute("loss_backward", 1, [there[-1]], [("g", 1, -1)], is_backward=True)
    outputs = []
    for number, (inputs, weight, one) in reversed(list(enumerate(layers))):
        needed = [one] if rng.random() < 0.5 else inputs
        new, *of_weight = made.compute(
            "backward", rng.randrange(1, 9), [gradient, *needed, *weight],
            [(f"d{number}", rng.randrange(1, 9), -1), *((f"dw{number}", 1, -1) for _ in weight)], is_backward=True,
        )  # fmt: skip
        outputs += of_weight
        made.release(gradient)
        gradient = new
    return made.build(sorted([*outputs, gradient]))
