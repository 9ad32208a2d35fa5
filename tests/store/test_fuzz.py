"""Whatever happens to the bytes of a checkpoint or a ledger: it is found, in bounded time and memory."""

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PRELUDE = """
    import json, random, resource, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    import xxhash
    from conftest import make_meta, make_tree
    from detrain.errors import CheckpointError
    from detrain.store import checkpoint, ledger
    from detrain.store.commit import commit

    folder, count, rng = Path(sys.argv[2]), int(sys.argv[3]), random.Random(int(sys.argv[4]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    def flipped(content):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)

    def cut(content):
        del content[rng.randrange(len(content)) :]

    def zeroed(content):
        begin = rng.randrange(len(content))
        content[begin : begin + rng.choice([1, 7, 512, 4096])] = b""
        content[begin:begin] = bytes(rng.choice([1, 7, 512, 4096]))

    def longer(content):
        content += rng.randbytes(rng.choice([1, 4096]))

    def swapped(content):
        size = rng.choice([1, 16, 512])
        one, two = rng.randrange(len(content) - size), rng.randrange(len(content) - size)
        first = content[one : one + size]
        content[one : one + size] = content[two : two + size]
        content[two : two + size] = first

    def overwritten(content):
        size = rng.choice([1, 8, 512])
        begin = rng.randrange(len(content))
        content[begin : begin + size] = rng.randbytes(len(content[begin : begin + size]))

    def mutated(good):
        content = bytearray(good)
        rng.choice([flipped, flipped, flipped, cut, zeroed, longer, swapped, overwritten])(content)
        return bytes(content)
"""
CHECKPOINTS = """
    first = commit(folder / "checkpoint_0_0.h5", make_tree({"data": np.arange(20_000.0)}), make_meta(1))
    tree = make_tree({"data": np.arange(20_000.0), "weight": np.arange(99.0), "step": np.array(7)}, {"epoch": 2, "log": ["t", [1, "a"]]})
    second = commit(folder / "checkpoint_1_0.h5", tree, make_meta(2), first)
    assert second.needs == {first.name}
    goods = {path: path.read_bytes() for path in (first.path, second.path)}
    known = {path: checkpoint.load(path) for path in goods}
    found, tried = 0, 0
    while tried < count:
        path = rng.choice(list(goods))
        content = mutated(goods[path])
        if content == goods[path]:
            continue
        tried += 1
        path.write_bytes(content)
        signal.alarm(10)
        try:
            checkpoint.load(path)
        except CheckpointError as error:
            assert path.name in str(error), error
            found += 1
        path.write_bytes(goods[path])
    print(found, 0, tried)
"""
LEDGERS = """
    path, found, tried = folder / "ledger", 0, 0
    file = ledger.LedgerFile(path)
    file.append_json(b"A", {"attempt": 1, "batches": 0})
    file.append_json(b"L", {"number": 1, "leaves": [["model.weight", 64]]})
    batches = [ledger.Batch(n, n << 50, 1, n, 2**64 - n, n << 40, 7, 1, 3, tuple(range(n % 5))) for n in range(1, 60)]
    for batch in batches:
        file.append(b"B", batch.encode())
    file.close()
    good = path.read_bytes()
    ends = [0]
    while ends[-1] < len(good):
        ends.append(ends[-1] + 9 + int.from_bytes(good[ends[-1] + 1 : ends[-1] + 5], "little"))
    records = [good[start:end] for start, end in zip(ends, ends[1:])]
    assert len(records) == 2 + len(batches)
    cut_off = 0
    while tried < count:
        content = mutated(good)
        if content == good:
            continue
        tried += 1
        path.write_bytes(content)
        signal.alarm(10)
        try:
            read = list(ledger.read(path).batches.values())
        except CheckpointError as error:
            assert "ledger" in str(error)
            found += 1
            ledger.LedgerFile(path).close()
            assert path.read_bytes() == content  # whoever goes on writing does not cut the damage off
            continue
        # Not told from a record that a kill has cut short: then no record lies whole behind the first that does not.
        whole = next(n for n, end in enumerate(ends) if n == len(records) or content[end : ends[n + 1]] != records[n])
        assert read == batches[: max(whole - 2, 0)]
        assert not any(record in content[ends[whole] :] for record in records)
        ledger.LedgerFile(path).close()
        assert path.read_bytes() == good[: ends[whole]]
        cut_off += 1
    print(found, cut_off, tried)
"""
#: What somebody writes who can make the digests fit.
HOSTILE = """
    path = folder / "checkpoint_0_0.h5"
    commit(path, make_tree({"weight": np.arange(99.0), "step": np.array(7)}, {"epoch": 2}), make_meta(1))
    good = path.read_bytes()
    line = json.loads(good.split(b"\\n")[1])

    def extents_of(tree):
        return [(one[6], 8 * int(np.prod(one[4]))) for one in tree["stored"] if not one[5]]

    def forged(change):
        # The document stands behind everything else then; what was there is a gap.
        tree = json.loads(good[line["tree"][0] :][: line["tree"][1]])
        extents = extents_of(tree)
        tree = change(tree)
        text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
        try:
            extents = extents_of(tree)
        except (TypeError, ValueError, IndexError, KeyError):
            pass  # where the arrays lie cannot be told
        body = bytearray(good) + text
        state, end = xxhash.xxh3_128(), 4096
        for offset, size in sorted([*extents, (len(good), len(text)), tuple(line["meta"][:2])]):
            state.update(bytes(body[max(end, 0) : max(offset, 0)]))
            end = offset + size
        places = {"tree": (len(good), len(text), xxhash.xxh3_128_hexdigest(text)), "meta": line["meta"]}
        body[:4096] = checkpoint.encode_header(len(body), places, state.hexdigest())
        path.write_bytes(body)

    def entry(position, value):
        def change(tree):
            tree["stored"][0][position] = value
            return tree
        return change

    CHANGES = {
        "nothing": lambda tree: tree,
        "huge shape": entry(4, [2**62, 2**62]), "a huge shape of nothing": entry(4, [0, 2**62, 2**62]),
        "negative shape": entry(4, [-1]), "a shape of text": entry(4, "99"),
        "objects": entry(3, "|O"), "no dtype": entry(3, "what"), "many fields": entry(3, ",".join(["f8"] * 99)),
        "an offset behind the end": entry(6, 2**62), "a negative offset": entry(6, -8), "over the header": entry(6, 0),
        "over another": entry(6, line["meta"][0]), "another folder's file": entry(5, "../passwd"),
        "an absolute file": entry(5, "/etc/passwd"),
        "no such file": entry(5, "checkpoint_9_9.h5"), "itself": entry(5, "checkpoint_0_0.h5"),
        "half an entry": lambda tree: {**tree, "stored": [["weight"]]}, "no table": lambda tree: {**tree, "stored": 3},
        "no tree": lambda tree: {"stored": []}, "a list": lambda tree: b"[]", "deep": lambda tree: b"[" * 10_000_000,
        "a number of many digits": lambda tree: b"9" * 100_000, "no JSON": lambda tree: b"{",
    }
    for name, change in CHANGES.items():
        signal.alarm(20)
        forged(change)
        try:
            checkpoint.load(path)
        except CheckpointError as error:
            print(f"{name}: {error}")
        else:
            print(f"{name}: LOADED")
"""


def run(program: str, folder: Path, count: int, seed: int = 0) -> str:
    words = [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(program)]
    done = subprocess.run(
        [*words, str(Path(__file__).parent), str(folder), str(count), str(seed)],
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-300:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize(
    "count", [pytest.param(600, id="quick"), pytest.param(10_000, id="whole", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("program", [CHECKPOINTS, LEDGERS], ids=["checkpoints", "ledgers"])
def test_every_mutation_is_found(tmp_path, program, count, note_count):
    found, cut_off, tried = map(int, run(program, tmp_path, count).split())
    if program is CHECKPOINTS:
        assert cut_off == 0
        note_count("mutations of a checkpoint: found", found, tried)
    else:
        note_count("mutations of a ledger: named", found, tried)
        note_count("mutations of a ledger: taken for a record cut short at the end", cut_off, tried)
    assert found + cut_off == tried == count


def test_forged_file_is_refused_in_bounded_time_and_memory(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    said = run(HOSTILE, tmp_path, 0).splitlines()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 60
    print("\n".join(said))
    assert len(said) == 23
    assert [line for line in said if line.endswith("LOADED")] == ["nothing: LOADED"]  # so the digests do fit
