"""Leases: one at a time, and one that was cut off finds out."""

import contextlib

import pytest

pytest.importorskip("fsspec", reason="runs in remote storage need fsspec")

from detrain.remote.lease import Held, Lease, Lost, current
from detrain.remote.objects import StoreError
from tests.remote.faulty import ERRORS, KILLS, Faulty, Killed, Plan, store_of


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


def lease_of(system: Faulty, clock: Clock, owner: str, process: int = 1) -> Lease:
    return Lease(store_of(system), owner, f"host of {owner}", process, term_s=120, clock=clock, pause=clock.pause)


def test_a_second_owner_waits_until_it_expires() -> None:
    system, clock = Faulty(), Clock()
    lease_of(system, clock, "a").acquire()
    with pytest.raises(Held, match="host of a"):
        lease_of(system, clock, "b").acquire()
    clock.now_s += 121
    lease_of(system, clock, "b").acquire()


def test_a_renewed_lease_goes_on() -> None:
    system, clock = Faulty(), Clock()
    first = lease_of(system, clock, "a")
    first.acquire()
    for _ in range(5):
        clock.now_s += 60
        assert first.is_due
        first.renew()
        assert not first.is_due
    with pytest.raises(Held):
        lease_of(system, clock, "b").acquire()


def test_who_was_cut_off_has_lost_it() -> None:
    system, clock = Faulty(), Clock()
    first, second = lease_of(system, clock, "a"), lease_of(system, clock, "b")
    first.acquire()
    clock.now_s += 121
    second.acquire()
    with pytest.raises(Lost):
        first.check()
    second.check()


def test_who_lost_it_to_one_that_has_given_it_back_has_lost_it() -> None:
    system, clock = Faulty(), Clock()
    first, second = lease_of(system, clock, "a"), lease_of(system, clock, "b")
    first.acquire()
    clock.now_s += 121
    second.acquire()
    second.release()
    with pytest.raises(Lost):
        first.check()


def test_a_lease_that_was_given_back_is_free() -> None:
    system, clock = Faulty(), Clock()
    first = lease_of(system, clock, "a")
    first.acquire()
    first.release()
    assert current(store_of(system)) is None
    lease_of(system, clock, "b").acquire()


def test_the_next_process_of_the_same_directory_does_not_wait() -> None:
    system, clock = Faulty(), Clock()
    first, second = lease_of(system, clock, "a"), lease_of(system, clock, "a", 2)
    first.acquire()
    second.acquire()
    with pytest.raises(Lost):
        first.renew()


def test_half_a_lease_keeps_nobody_out() -> None:
    system, clock = Faulty(), Clock()
    system.objects["bucket/run/leases/0000000004.json"] = b'{"own'
    lease_of(system, clock, "a").acquire()
    assert "bucket/run/leases/0000000005.json" in system.objects


def owners_of_a_race(position: int, *, is_conditional: bool) -> list[Lease]:
    """Who has the lease, where the second asks for it before an operation of the first."""
    system, clock = Faulty(is_conditional=is_conditional), Clock()
    first, second = lease_of(system, clock, "a"), lease_of(system, clock, "b")
    count, winners, begin = 0, [], system._begin

    def acquire(lease: Lease) -> None:
        with contextlib.suppress(Held, StoreError):
            lease.acquire()
            winners.append(lease)

    def between(what: str) -> str:
        nonlocal count
        count += 1
        if count - 1 == position:
            system._begin = begin
            acquire(second)
        return begin(what)

    system._begin = between
    acquire(first)
    system._begin = begin
    return [lease for lease in winners if not has_lost(lease)]


@pytest.mark.parametrize("is_conditional", [True, False])
def test_of_two_at_the_same_moment_one_has_it(is_conditional: bool) -> None:
    for position in range(20):
        assert len(owners_of_a_race(position, is_conditional=is_conditional)) == 1, position


def has_lost(lease: Lease) -> bool:
    try:
        lease.renew()
    except Lost:
        return True
    return False


@pytest.mark.parametrize("kind", [*ERRORS, *KILLS])
def test_a_fault_never_gives_it_to_two(kind: str) -> None:
    for position in range(12):
        system, clock = Faulty(), Clock()
        first, second = lease_of(system, clock, "a"), lease_of(system, clock, "b")
        system.plan = Plan({position: kind})
        owners = []
        for lease in (first, second):
            try:
                lease.acquire()
                owners.append(lease)
            except (Held, StoreError, Killed):
                continue
        system.plan = Plan()
        assert len([lease for lease in owners if not has_lost(lease)]) <= 1
        clock.now_s += 200
        lease_of(system, clock, "c").acquire()  # and nobody is kept out for ever
