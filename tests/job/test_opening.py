"""How ranks meet, and what rank 0 decides; over real connections, each rank a thread."""

import os
import socket
import threading
import time
from dataclasses import replace

import pytest

from detrain.errors import AlreadyFinished, InexactResume, ResumeRefused, UsageError
from detrain.job import line, opening
from detrain.job.line import Hub, Spoke
from detrain.job.messages import Hello, Message, Start
from detrain.job.opening import Wish
from detrain.job.place import Place, place_of
from detrain.store.job import Held, Manifest, Manifests


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def hello(place, **changes):
    given = Hello(
        place.token,
        place.rank,
        "host",
        1,
        "1.0",
        "a.py",
        ("--x", "1"),
        0,
        "auto",
        "k",
        "--keep 3",
        "",
        f"/job/rank_{place.rank}",
    )
    return replace(given, **changes)


#: The command line asks for nothing special, and a job of three has been here.
NOTHING = Wish(size=3)


class Job:
    """Ranks that meet; what each of them was told, or has raised."""

    def __init__(self, tmp_path, size=3):
        self.manifests = Manifests(tmp_path)
        self.manifests.path.mkdir()
        port = free_port()
        self.places = [Place(rank, size, "127.0.0.1", port, f"job {port}", "torchrun") for rank in range(size)]
        self.changes = {rank: {} for rank in range(size)}
        self.bad = {rank: {} for rank in range(size)}
        self.results = {}
        self.lines = {}

    def cut(self, *names):
        for number, name in enumerate(names):
            self.manifests.write(
                Manifest(name, number, 0, number, number, (), tuple(Held(rank, "host", "/x", "d") for rank in range(3)))
            )

    def begin(self, wish=NOTHING):
        threads = [threading.Thread(target=self._run, args=(place, wish)) for place in self.places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return [self.results.get(place.rank) for place in self.places]

    def _run(self, place, wish):
        own = hello(place, **self.changes[place.rank])

        def can_begin(name, digest):
            assert digest == "d"
            return self.bad[place.rank].get(name, "")

        try:
            if place.is_first:
                hub = self.lines[0] = Hub(place)
                start = opening.lead(place, hub, own, self.manifests, lambda: wish, can_begin).start
            else:
                spoke = self.lines[place.rank] = Spoke(place, own, 10 + time.monotonic())
                start = opening.follow(spoke, place.rank, can_begin)
            self.results[place.rank] = start
        except Exception as error:  # noqa: BLE001 - compared by the test
            self.results[place.rank] = error


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    yield made
    for one in made.lines.values():
        one.close()
    until_s = time.monotonic() + 5
    while any(peer.connection.fileno() != -1 for one in made.lines.values() for peer in one._peers.values()):
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_new_job_begins_at_its_beginning(job):
    assert job.begin() == [Start()] * 3


def test_the_latest_cut_that_all_have_whole(job, capfd):
    job.cut("a", "b", "c")
    for rank in range(3):
        job.changes[rank] = {"checkpoints": ("a", "b", "c") if rank != 2 else ("a", "b")}
    job.bad[1] = {"b": "b is damaged"}
    assert job.begin() == [Start("a", whole=("a", "b", "c"))] * 3
    said = capfd.readouterr().err
    assert "c is not in /job/rank_2 of rank 2 on host" in said
    assert "rank 1: b is damaged" in said


def test_no_cut_that_can_be_used_is_no_reason_to_begin_again(job):
    job.cut("a")
    first, second, _ = job.begin()
    assert isinstance(first, InexactResume)
    assert "a is not in /job/rank_0 of rank 0 on host" in str(first)
    assert second == Start(refusal=str(first), status=2)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"arguments": ("--x", "2")}, "rank 2 has other arguments than rank 0: --x 2, rank 0 --x 1"),
        ({"version": "2.0"}, "rank 2 has another version of detrain than rank 0: 2.0, rank 0 1.0"),
        ({"seed": 4}, "rank 2 has another --seed than rank 0: 4, rank 0 0"),
        ({"key": "l"}, "rank 2 has a different version of the script than rank 0. All ranks"),
        ({"trouble": "its disk is full"}, "rank 2 on host: its disk is full"),
    ],
)
def test_ranks_that_do_not_fit_are_named(job, changes, why):
    job.changes[2] = changes
    first, second, third = job.begin()
    assert why in str(first)
    assert second == third == Start(refusal=str(first), status=2)


def test_another_number_of_ranks_is_refused(job):
    job.cut("a")
    first, *_ = job.begin(Wish(size=4))
    assert isinstance(first, ResumeRefused)
    assert "holds a job of 4 ranks, and these are 3" in str(first)


def test_a_job_that_has_ended_has_nothing_to_do(job):
    first, second, _ = job.begin(Wish(finished="today"))
    assert isinstance(first, AlreadyFinished)
    assert second.status == 0


def test_fresh_moves_aside_once_for_all(job, tmp_path):
    job.cut("a")
    assert (
        job.begin(Wish(is_fresh=True, has_something=True)) == [Start(aside=f"{tmp_path.name}.old1", whole=("a",))] * 3
    )


def test_a_rank_that_never_comes_is_named(job, monkeypatch):
    monkeypatch.setattr(opening, "LONGEST_WAIT_S", 0.6)
    job.places = job.places[:2]
    first, second = job.begin()
    assert isinstance(first, UsageError)
    assert "rank 2 of 3 did not come" in str(first)
    assert isinstance(second, Start)
    assert second.refusal


@pytest.mark.parametrize("size", [0, 3])
def test_the_disk_of_rank_0_is_lost(job, size):
    job.manifests.path.rmdir()
    job.changes[1] = job.changes[2] = {"checkpoints": ("a",)}
    first, *_ = job.begin(Wish(size=size))
    assert isinstance(first, ResumeRefused)
    assert "ranks hold checkpoints (a), and what says which parts belong together" in str(first)


def test_the_first_cut_was_never_whole(job):
    job.changes[1] = {"checkpoints": ("a",)}
    assert job.begin() == [Start()] * 3


def test_ranks_that_do_not_know_the_same_loops_look_for_them_again(job):
    job.changes[1] = {"loops": "7f"}
    assert job.begin() == [Start(forgets_loops=True)] * 3


def test_a_manifest_that_cannot_be_read_is_passed_over(job, capfd):
    job.cut("a", "b")
    (job.manifests.path / "b.json").write_text("{")
    for rank in range(3):
        job.changes[rank] = {"checkpoints": ("a", "b")}
    assert job.begin() == [Start("a", whole=("a", "b"))] * 3
    assert "cannot be used" in capfd.readouterr().err


def test_a_rank_that_has_given_up_comes_again(job):
    first, second, third = job.places
    hub = job.lines[0] = Hub(first)
    with socket.create_connection(("127.0.0.1", first.port)) as early:
        early.sendall(hello(second).encode())
    connecting = [
        threading.Thread(
            target=lambda place=place: job.lines.update({place.rank: Spoke(place, hello(place), 20 + time.monotonic())})
        )
        for place in (second, third)
    ]
    for one in connecting:
        one.start()
    assert sorted(hub.gather(time.monotonic() + 20, lambda _: None)) == [1, 2]
    for one in connecting:
        one.join()
    hub.tell_all(Start("x"))
    assert [job.lines[rank].hear(time.monotonic() + 5) for rank in (1, 2)] == [Start("x")] * 2


def test_somebody_elses_connection_is_passed_over(job, monkeypatch):
    port = job.places[0].port
    stranger = threading.Thread(target=lambda: [call(port) for _ in range(2)])

    def call(port):
        for _ in range(50):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as one:
                    one.sendall(b"GET / HTTP/1.1\r\n\r\n")
                return
            except OSError:
                time.sleep(0.01)

    stranger.start()
    assert job.begin() == [Start()] * 3
    stranger.join()


def test_the_next_port_where_one_is_taken(job, monkeypatch):
    monkeypatch.setattr(line, "_WELCOME_S", 0.5)  # of the other, which says nothing
    with socket.socket() as other:
        other.bind(("127.0.0.1", job.places[0].port))
        other.listen()
        assert job.begin() == [Start()] * 3


class Heard:
    def __init__(self):
        self.messages, self.gone, self.event = [], [], threading.Event()

    def on_message(self, rank, message):
        self.messages.append((rank, message))
        self.event.set()

    def on_gone(self, rank):
        self.gone.append(rank)
        self.event.set()

    def on_turn(self):
        pass


def test_a_rank_that_is_gone_is_heard_of_although_its_children_live(job):
    job.begin()
    heard = Heard()
    job.lines[0].begin(heard)
    job.lines[1].send(0, Start("x"))
    assert heard.event.wait(5)
    assert heard.messages == [(1, Start("x"))]
    heard.event.clear()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(reader, 1)
        os._exit(0)
    job.lines[2].close()
    assert heard.event.wait(5)
    assert heard.gone == [2]
    os.write(writer, b"x")
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'["Nobody", {}]', b'["Tick", {"header": 1}]', b"x" * 90, b'["Start", 3]']
)
def test_what_is_no_message_is_said_to_be_none(text):
    with pytest.raises(ValueError, match="not a message"):
        Message.decode(text)


def test_torchrun_tells_the_place():
    given = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "5000", "TORCHELASTIC_RUN_ID": "r"}
    place = place_of(given)
    assert (place.rank, place.size, place.address, place.port, place.launcher) == (1, 4, "h", 5001, "torchrun")
    assert place_of({**given, "RANK": "2"}).token == place.token
    # On several hosts torchrun counts restarts differently.
    assert place_of({**given, "TORCHELASTIC_RESTART_COUNT": "1"}).token == place.token


def test_mpirun_tells_the_place_on_one_host():
    given = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    assert place_of({**given, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}).address == "127.0.0.1"
    with pytest.raises(UsageError, match="MASTER_ADDR has to name the host of rank 0"):
        place_of({**given, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})


@pytest.mark.parametrize(
    "given", [{}, {"WORLD_SIZE": "1", "RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}]
)
def test_alone(given):
    assert place_of(given) is None


@pytest.mark.parametrize("rank", [None, "7", "x"])
def test_a_rank_that_does_not_know_itself(rank):
    with pytest.raises(UsageError, match="this process is one of 4 ranks, but RANK"):
        place_of({"WORLD_SIZE": "4", **({} if rank is None else {"RANK": rank})})


def test_a_word_that_came_with_the_last_is_not_lost(job):
    job.begin()
    job.lines[1].send(0, Start("x"))
    job.lines[1].send(0, Start("y"))
    time.sleep(0.1)
    assert job.lines[0]._peers[1].wait_for(time.monotonic() + 5) == Start("x")
    heard = Heard()
    job.lines[0].begin(heard)
    assert heard.event.wait(5)
    assert heard.messages == [(1, Start("y"))]
