"""Profiles that nobody has thought of, by a seed, and some that somebody has."""

import random

from detrain.pipeline.layers import Layer, Profile


def layer(name, forward_ms=1.0, backward_ms=2.0, output_bytes=1.0, parameter_bytes=0.0, description="f"):
    outputs = output_bytes if isinstance(output_bytes, tuple) else (float(output_bytes),)
    return Layer(name, description, float(forward_ms), float(backward_ms), outputs, float(parameter_bytes))


def profile(layers, edges, name="made"):
    """Edges as text: "ab bc" are two of them; layers as names, or as they are."""
    layers = tuple(layer(one) if isinstance(one, str) else one for one in layers)
    number = {one.name: place for place, one in enumerate(layers)}
    return Profile(layers, tuple((number[begin], number[end]) for begin, end in edges.split()), name)


def chain(*layers):
    layers = tuple(layer(f"n{place}", one) if isinstance(one, int | float) else one for place, one in enumerate(layers))
    return Profile(layers, tuple((place, place + 1) for place in range(len(layers) - 1)), "chain")


def diamond():
    """Four layers; a is needed by b, by c, and nobody else."""
    return profile(
        [layer("a", 1, 2, 10, 100), layer("b", 2, 4, 20, 200), layer("c", 3, 6, 40, 400), layer("d", 4, 8, 80, 800)],
        "ab ac bd cd",
    )


def branches(num_branches, length, forward_ms=1.0):
    """Branches side by side between two layers, as in Inception's modules."""
    layers, edges = [layer("in", forward_ms)], []
    for branch in range(num_branches):
        before = 0
        for place in range(length):
            layers.append(layer(f"b{branch}.{place}", forward_ms))
            edges.append((before, len(layers) - 1))
            before = len(layers) - 1
        edges.append((before, -1))
    layers.append(layer("out", forward_ms))
    return Profile(
        tuple(layers), tuple((begin, len(layers) - 1 if end < 0 else end) for begin, end in edges), "branches"
    )


def random_profile(seed, most=8, *, is_from_one=False):
    """Of 1 to `most` layers in turn. Some have equal layers, some layers of no time, without parameters, or that send nothing.

    The order of the file is not one that the layers can be done in. `is_from_one`: all come behind the first.
    """
    rng = random.Random(seed)
    count = 1 + seed % most
    density = rng.choice([0.15, 0.3, 0.5, 0.9])
    edges = []
    for end in range(count):
        found = {begin for begin in range(end) if rng.random() < density}
        if is_from_one and end and not found:
            found.add(rng.randrange(end))
        edges += [(begin, end) for begin in sorted(found)]
    if edges and rng.random() < 0.1:
        edges.append(rng.choice(edges))
    are_equal, largest, widest = rng.random() < 0.3, 10.0 ** rng.randrange(4, 9), 10.0 ** rng.randrange(4, 9)

    def drawn(number):
        if are_equal:
            return layer(f"n{number}", 10, 20, widest / 2, largest / 2)
        forward_ms = rng.choice([0.0, rng.uniform(1, 50), rng.uniform(1, 50), rng.uniform(1, 50)])
        outputs = (rng.choice([0.0, widest, widest]) * rng.random(), widest * rng.random())[: rng.randrange(1, 3)]
        return layer(
            f"n{number}",
            forward_ms,
            forward_ms * rng.uniform(1, 3),
            outputs,
            rng.choice([0, 1, 1]) * largest * rng.random(),
        )

    layers = [drawn(number) for number in range(count)]
    place = list(range(count))
    rng.shuffle(place)
    if is_from_one:  # the published planners begin with the first of the file
        place.remove(0)
        place.insert(0, 0)
    number_of = {one: number for number, one in enumerate(place)}
    return Profile(
        tuple(layers[one] for one in place),
        tuple((number_of[begin], number_of[end]) for begin, end in edges),
        f"random-{seed}",
    )


def series_parallel(seed, most=10):
    """By doubling edges and putting layers on them, from one edge on; layers take time, and nothing else."""
    rng = random.Random(seed)
    edges, count = [(0, 1)], 2
    for _ in range(rng.randrange(2, most - 1)):
        begin, end = rng.choice(edges)
        if rng.random() < 0.6:
            edges.remove((begin, end))
        edges += [(begin, count), (count, end)]
        count += 1
    layers = tuple(layer(f"n{number}", rng.choice([1, 1, 5, 20]), 0, 0) for number in range(count))
    return Profile(layers, tuple(edges), f"series-parallel-{seed}")
