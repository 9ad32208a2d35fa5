"""What a rank tells its job and hears of it; over real connections, all ranks in this process."""

import os
import socket
import threading
import time

import pytest

from detrain.job import member, watch
from detrain.job.cuts import Cuts
from detrain.job.line import Hub, Spoke
from detrain.job.member import First, Other
from detrain.job.messages import Hello, Part
from detrain.job.place import Place
from detrain.job.replicas import Replica, combined
from detrain.job.watch import Watch
from detrain.store.job import Manifests


def soon(condition):
    until_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)
    return True


class Job:
    def __init__(self, tmp_path, size=3):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        places = [Place(rank, size, "127.0.0.1", port, f"job {port}", "torchrun") for rank in range(size)]
        self.asked = [[] for _ in range(size)]
        self.left = [[] for _ in range(size)]
        self.clock_s = 0.0
        #: Ranks that say what is lost, and what they say.
        self.told = []

        def on_lost(rank):
            return lambda why, is_teller: self.told.append((rank, why)) if is_teller else None

        watches = [
            Watch(rank, os.getppid(), on_lost(rank), self.left[rank].append, lambda: self.clock_s)
            for rank in range(size)
        ]
        hub, spokes = Hub(places[0]), {}

        def connect(place):
            spokes[place.rank] = Spoke(place, Hello(place.token, place.rank), time.monotonic() + 10)

        threads = [threading.Thread(target=connect, args=[place]) for place in places[1:]]
        for thread in threads:
            thread.start()
        hub.gather(time.monotonic() + 10, lambda _: None)
        for thread in threads:
            thread.join()
        self.manifests = Manifests(tmp_path)
        cuts = Cuts(self.manifests, [("host", f"/rank_{rank}") for rank in range(size)], 2, [])
        self.ranks = [First(hub, size, cuts, watches[0], [], self.asked[0].append)]
        self.ranks += [Other(spokes[rank], watches[rank], [], self.asked[rank].append) for rank in range(1, size)]
        self.lines = [hub, *(spokes[rank] for rank in range(1, size))]
        for one in self.ranks:
            one.begin()

    def cut(self, number, trouble=None):
        for rank, one in enumerate(self.ranks):
            one.begins(f"c{number}")
            one.wrote(Part(f"c{number}", number, 0, number, number, trouble="full" if trouble == rank else ""))


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    yield made
    for one in made.ranks:
        one.close()
    assert soon(lambda: all(peer.connection.fileno() == -1 for one in made.lines for peer in one._peers.values()))


def test_all_hear_of_a_cut_and_of_what_is_needed_no_more(job):
    for number in (1, 2, 3):
        job.cut(number)
        assert all(one.wait_for(f"c{number}") for one in job.ranks)
    assert all(soon(lambda one=one: one.kept().names == {"c2", "c3"}) for one in job.ranks)
    assert all(one.whole() >= {"c2", "c3"} for one in job.ranks)
    assert [one.name for one in job.manifests.read()] == ["c3", "c2"]


def test_a_part_that_fails_is_said_once_and_the_next_cut_is_whole(job, capfd):
    job.cut(1, trouble=2)
    assert not job.ranks[0].wait_for("c1")
    job.cut(2)
    assert all(one.wait_for("c2") for one in job.ranks)
    said = capfd.readouterr().err
    assert said.count("the cut c1 does not exist: rank 2: full. Training goes on [cut-not-whole]") == 1


def test_a_cut_that_a_rank_has_passed_over_holds_nothing_up(job):
    for one in job.ranks:
        one.begins("c1")
    for one in job.ranks[:2]:
        one.wrote(Part("c1", 1))
    job.cut(2)
    assert job.ranks[0].wait_for("c2")
    job.ranks[0].agreement.now_s(0)
    job.ranks[0].agreement.now_s(1)
    assert not job.ranks[0].agreement.is_writing(False)


def test_a_rank_may_write_the_second_part_of_a_name_before_another_has_written_the_first(job, capfd):
    for number in (1, 2):
        for one in job.ranks[:2]:
            one.begins("c")
            one.wrote(Part("c", number))
    for number in (1, 2):
        job.ranks[2].wrote(Part("c", number))
    assert all(one.wait_for("c") for one in job.ranks)
    assert [one.sequence for one in job.manifests.read()] == [2]
    job.ranks[0].agreement.now_s(0)
    job.ranks[0].agreement.now_s(1)
    assert not job.ranks[0].agreement.is_writing(False)
    assert capfd.readouterr().err == ""


def test_a_replica_that_has_parted_is_named_once(job, capfd):
    def cut(name, digest_of_b):
        for rank, one in enumerate(job.ranks):
            replicas = [
                Replica("model.a", "[0, 1, 2]", "a1"),
                Replica("model.b", "[0, 1, 2]", digest_of_b if rank == 2 else "b1"),
                Replica("shard", f"[{rank}]", f"own {rank}"),
            ]
            one.begins(name)
            one.wrote(Part(name, replicas=combined(replicas)), replicas)
        assert all(one.wait_for(name) for one in job.ranks)

    cut("c1", "b1")
    assert capfd.readouterr().err == ""
    cut("c2", "b2")
    said = []
    assert soon(lambda: said.append(capfd.readouterr().err) or "[replicas-differ]" in "".join(said))
    assert "warning: model.b is not the same on ranks 0 and 2 in c2" in "".join(said)
    cut("c3", "b3")
    time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_any_rank_asks_and_all_are_asked(job):
    job.ranks[2].agreement.ask()
    until_s, header = time.monotonic() + 10, 0
    while not all(job.asked):
        for one in job.ranks:
            one.agreement.now_s(header)
        header += 1
        assert time.monotonic() < until_s
    assert job.asked[0] == job.asked[1] == job.asked[2]
    assert len(job.asked[0]) == 1


def test_no_rank_begins_before_all_are_ready(job):
    order = []

    def ready(rank):
        time.sleep(0.05 * rank)
        order.append("comes")
        job.ranks[rank].ready()
        order.append("goes")

    threads = [threading.Thread(target=ready, args=[rank]) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert order == ["comes"] * 3 + ["goes"] * 3


def end_all(job, statuses, finished=(True, True, True)):
    results = {}

    def end(rank):
        results[rank] = job.ranks[rank].end(statuses[rank], is_finished=finished[rank])

    threads = [threading.Thread(target=end, args=[rank]) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return [results[rank] for rank in range(3)]


@pytest.mark.parametrize(
    ("statuses", "finished", "is_whole"),
    [
        ((0, 0, 0), (True, True, True), True),
        ((0, 0, 0), (True, False, True), False),
        ((0, 0, 3), (True, True, True), False),
    ],
)
def test_a_job_is_finished_when_all_ranks_are(job, statuses, finished, is_whole):
    assert end_all(job, statuses, finished) == [is_whole] * 3


def test_a_rank_that_has_not_ended_keeps_the_job_from_being_finished(job, monkeypatch, capfd):
    monkeypatch.setattr(member, "LONGEST_END_S", 0.3)
    assert not job.ranks[0].end(0, is_finished=True)
    assert "ranks [1, 2] had not ended" in capfd.readouterr().err


@pytest.mark.parametrize("gone", [0, 2])
def test_a_rank_that_is_gone_takes_the_others_down_after_a_moment(job, gone, capfd):
    job.ranks[gone].close()
    others = [rank for rank in range(3) if rank != gone]
    assert all(soon(lambda rank=rank: job.ranks[rank].is_broken) for rank in others)
    time.sleep(0.6)
    assert job.left == [[], [], []]
    job.clock_s = watch.GRACE_S + 1
    assert all(soon(lambda rank=rank: job.left[rank]) for rank in others)
    assert job.left[gone] == []
    assert job.told == [(others[0], f"rank {gone} is gone")]
    assert f"error: rank {gone} is gone, so rank {others[0]} ends" in capfd.readouterr().err


def test_a_rank_that_ends_with_an_error_takes_the_others_down(job):
    job.ranks[1].end(7, is_finished=False)
    assert soon(lambda: job.ranks[2].is_broken)
    assert soon(lambda: job.ranks[0].is_broken)


def test_an_error_on_rank_0_takes_the_others_down(job):
    job.ranks[0].end(7, is_finished=False)
    assert all(soon(lambda rank=rank: job.ranks[rank].is_broken) for rank in (1, 2))


def test_what_is_held_in_memory_is_not_being_written(job):
    # Nobody has begun a cut: the policies that go by the clock may take one.
    for header in range(4):
        assert not any(one.agreement.is_writing(False) for one in job.ranks)
        for one in job.ranks:
            one.agreement.now_s(header)
    job.ranks[0].begins("c1")
    for header in range(4, 8):
        for one in job.ranks:
            one.agreement.now_s(header)
    assert all(one.agreement.is_writing(False) for one in job.ranks)


def test_a_cut_that_fails_can_be_deleted_everywhere(job):
    for one in job.ranks:
        one.begins_behind(0)
    job.cut(1, trouble=2)
    assert all(soon(lambda one=one: not one.kept().needs("c1", 1)) for one in job.ranks)
    assert all(one.kept().needs("c2", 2) for one in job.ranks)


def test_manifests_of_another_future_are_moved_aside(job):
    for number in (1, 2):
        job.cut(number)
        assert all(one.wait_for(f"c{number}") for one in job.ranks)
    job.ranks[0].begins_behind(1)
    assert [one.name for one in job.manifests.read()] == ["c1"]


def test_a_rank_out_of_step_takes_all_out(job, capfd):
    for one in job.ranks:
        one.agreement.now_s(0)
    job.ranks[1].agreement._leave("it is elsewhere")
    assert all(soon(lambda one=one: one.agreement.is_out) for one in job.ranks)
    assert capfd.readouterr().err.count("[ranks-out-of-step]") == 1


def test_a_rank_that_has_ended_is_not_missed(job):
    assert end_all(job, (0, 0, 0)) == [True] * 3
    for rank in (0, 2):
        job.ranks[rank].close()
    time.sleep(0.1)
    assert not job.ranks[1].is_broken


def test_the_launcher_is_gone(capfd):
    left = []
    Watch(3, os.getppid() + 1, leave=left.append).turn()
    assert left == [watch.STATUS]
    assert "error: the launcher of rank 3" in capfd.readouterr().err
    Watch(3, os.getppid(), leave=left.append).turn()
    assert left == [watch.STATUS]
