"""Pickles, pools, child processes, event loops."""

from collections.abc import Callable
from typing import Any

import pytest

Same = Callable[..., Any]


def test_an_object_of_the_script_is_pickled_for_another_process(same: Same) -> None:
    script = """
        import pickle, sys
        from dataclasses import dataclass, field
        from enum import Enum
        from typing import NamedTuple

        @dataclass
        class Config:
            lr: float = 0.1
            sizes: list = field(default_factory=lambda: [i for i in range(3)])

            class Inner:
                def __eq__(self, other):
                    return type(self) is type(other)

        class Mode(Enum):
            TRAIN = 1

        class Row(NamedTuple):
            x: int

        def steps(n):
            for i in range(n):
                yield i

        things = [Config(), Config.Inner(), Mode.TRAIN, Row(3), steps, Config]
        if len(sys.argv) == 1:
            for protocol in range(2, 6):
                with open(f"things-{protocol}.pkl", "wb") as file:
                    pickle.dump(things, file, protocol)
        else:
            for protocol in range(2, 6):
                with open(f"things-{protocol}.pkl", "rb") as file:
                    print(pickle.load(file) == things)
        """
    assert same(script, then=[["load"]], says="True").stdout == "True\n" * 4


def test_a_pickle_made_by_plain_python_is_read(same: Same) -> None:
    script = """
        import pickle, subprocess, sys

        class Model:
            def __init__(self):
                for self.size in range(4):
                    pass

        if len(sys.argv) > 1:
            sys.stdout.buffer.write(pickle.dumps(Model()))
        else:
            made = subprocess.run([sys.executable, __file__, "make"], capture_output=True, check=True)
            model = pickle.loads(made.stdout)
            print(type(model) is Model, model.size, made.stderr)
        """
    same(script, says="True 3 b''")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_runs_functions_of_the_script(same: Same, method: str) -> None:
    script = f"""
        import multiprocessing, os, sys
        from concurrent.futures import ProcessPoolExecutor

        class Row:
            def __init__(self, n):
                self.n = n

        def work(row):
            total = 0
            for i in range(row.n):
                total += i
            print("in the child", __name__, sys.argv, os.path.basename(__file__), flush=True)
            return Row(total)

        def fail(n):
            for i in range(n):
                1 / i

        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            with context.Pool(1) as pool:
                print([row.n for row in pool.map(work, [Row(3), Row(5)])], flush=True)
            with ProcessPoolExecutor(1, mp_context=context) as executor:
                print(executor.submit(work, Row(4)).result().n, flush=True)
                print(repr(executor.submit(fail, 2).exception()), flush=True)
            process = context.Process(target=fail, args=(1,), name="failing")
            process.start()
            process.join()
            print(process.exitcode)
        """
    same(script, args=["an argument"], says=["[3, 10]", "in the child", "Process failing:", "ZeroDivisionError"])


def test_a_forked_child_goes_its_own_way(same: Same) -> None:
    script = """
        import atexit, os, sys
        atexit.register(lambda: print("exit handler of the", who, flush=True))
        who = "parent"
        for i in range(2):
            child = os.fork()
            if not child:
                who = f"child {i}"
                sys.exit(10 + i)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        child = os.fork()
        if not child:
            who = "failing child"
            raise ValueError("in the child")
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        """
    same(script, says=["exit handler of the child 1", "ValueError: in the child", "exit handler of the parent"])


def test_a_subprocess_is_plain_python(same: Same) -> None:
    script = """
        import os, signal, subprocess, sys
        program = "import sys; print(sys.argv, [m for m in sys.modules if m.split('.')[0] == 'detrain']); sys.exit(3)"
        for command in ([sys.executable, "-c", program, "x"], ["sh", "-c", "echo shell; kill -9 $$"]):
            done = subprocess.run(command, capture_output=True, text=True)
            print(done)
        if len(sys.argv) == 1:
            done = subprocess.run([sys.executable, sys.argv[0], "again"], capture_output=True, text=True)
            print(done.returncode, done.stdout, done.stderr)
            print(os.system("exit 4"), os.popen("echo popen").read())
        """
    same(script, says=["['-c', 'x'] []", "returncode=-9", "popen"])


def test_event_loops_run_in_the_script(same: Same) -> None:
    script = """
        import asyncio, contextlib, contextvars

        level = contextvars.ContextVar("level", default=0)

        class Batches:
            def __init__(self, n):
                self.n = n

            def __aiter__(self):
                return self

            async def __anext__(self):
                await asyncio.sleep(0)
                if not self.n:
                    raise StopAsyncIteration
                self.n -= 1
                return self.n

        async def numbers(n):
            try:
                for i in range(n):
                    await asyncio.sleep(0)
                    yield i
            finally:
                print("closed")

        @contextlib.asynccontextmanager
        async def resource():
            for i in range(1):
                yield i

        async def main():
            async for batch in Batches(3):
                if batch == 1:
                    continue
                print("batch", batch)
            else:
                print("else")
            async for i in numbers(9):
                if i == 2:
                    break
            async with resource() as r, contextlib.aclosing(numbers(2)) as source:
                print(r, [x async for x in source], {x: 1 async for x in Batches(2)})
                print([await asyncio.sleep(0, k) for k in range(2)])
            while level.get() < 2:
                level.set(level.get() + 1)
            tasks = [asyncio.create_task(asyncio.sleep(0.001 * k, k)) for k in (3, 1, 2)]
            for done in asyncio.as_completed(tasks):
                print(await done)
            async for x in Batches(2):
                raise LookupError(x)

        asyncio.run(main())
        """
    same(script, status=1, says=["batch 2\nbatch 0\nelse\n", "LookupError: 1"])


def test_files_written_by_the_script_stand_where_it_put_them(same: Same) -> None:
    script = """
        import os, pathlib, tempfile
        pathlib.Path("out").mkdir()
        for i in range(3):
            with open("out/log.csv", "a") as file:
                file.write(f"{i},{file.tell()}\\n")
        os.chdir("out")
        pathlib.Path("relative").write_text(os.getcwd())
        print(sorted(os.listdir()), sorted(os.listdir("..")))
        unclosed = open("unclosed", "w")
        unclosed.write("flushed at exit")
        """
    outcome = same(script, says="['log.csv', 'relative'] ['out', 'script.py']")
    assert outcome.files["out/unclosed"] == b"flushed at exit"
