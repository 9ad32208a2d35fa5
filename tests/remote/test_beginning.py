"""Which of the two goes on, the run here or the one in the store."""

from pathlib import Path

import pytest

pytest.importorskip("fsspec", reason="runs in remote storage need fsspec")

from detrain.errors import ResumeRefused
from detrain.remote.beginning import Base, Local, check_command, is_to_fetch
from detrain.remote.manifest import Identity, Manifest, Saved

RUN = Identity("/work/train.py", ("--lr", "1"), "2026-11-28 02:00:00 +0000", 17)
OTHER = Identity("/work/train.py", ("--lr", "1"), "2026-11-29 02:00:00 +0000", 17)
EMPTY = Local(None, 0, {}, is_finished=False)


def local(attempts: int, *sequences: int, run: Identity = RUN) -> Local:
    return Local(run, attempts, {f"checkpoint_0_{one}.h5": one for one in sequences}, is_finished=False)


def remote(number: int, attempts: int, *sequences: int, run: Identity = RUN, owner: str = "you") -> Manifest:
    saved = {f"checkpoint_0_{one}.h5": Saved(one, 0, one, ()) for one in sequences}
    return Manifest(number, run, attempts, max(sequences, default=0), False, owner, "there:/work", "now", {}, saved)


def decide(here: Local, base: Manifest | None, there: Manifest | None) -> bool:
    base_here = None if base is None else Base.decode(Base.of(base).encode())
    return is_to_fetch(here, base_here, there, "me", Path("/work/.detrain/train"), "s3://bucket/train")


def test_an_empty_store_is_published_to() -> None:
    assert not decide(EMPTY, None, None)
    assert not decide(local(1, 1), None, None)


def test_an_empty_folder_is_fetched_into() -> None:
    assert decide(EMPTY, None, remote(1, 1, 1))
    assert decide(Local(OTHER, 1, {}, is_finished=False), None, remote(1, 1, 1))


def test_what_has_been_published_from_here_goes_on_here() -> None:
    assert not decide(local(2, 1, 2), remote(3, 1, 1), remote(3, 1, 1))


def test_what_this_directory_had_published_without_noting_it_goes_on_here() -> None:
    assert not decide(local(2, 1, 2), remote(3, 1, 1), remote(4, 2, 1, 2, owner="me"))
    assert not decide(local(2, 1, 2), None, remote(1, 2, 1, owner="me"))


def test_an_older_state_is_replaced() -> None:
    assert decide(local(2, 1, 2), remote(3, 2, 1, 2), remote(5, 4, 7, 8))
    assert decide(local(3, 2), remote(3, 2, 1, 2), remote(5, 4, 7, 8))  # an attempt that had saved nothing


@pytest.mark.parametrize(
    ("here", "base", "there"),
    [
        (local(2, 2, 3), remote(3, 2, 1, 2), remote(5, 4, 7, 8)),
        (local(2, 1, 2), None, remote(5, 4, 7, 8)),
        (local(2, 1, 2), remote(9, 2, 1, 2), remote(5, 4, 7, 8)),
    ],
)
def test_two_that_have_both_gone_on_are_refused(here: Local, base: Manifest | None, there: Manifest) -> None:
    with pytest.raises(ResumeRefused, match="both have gone on") as refusal:
        decide(here, base, there)
    text = str(refusal.value)
    assert "/work/.detrain/train (attempt 2" in text
    assert "s3://bucket/train (attempt 4, checkpoint 8, published from there:/work" in text
    assert "--fresh" in text


def test_two_runs_are_refused() -> None:
    with pytest.raises(ResumeRefused, match="are two runs"):
        decide(local(1, 1), None, remote(1, 1, 1, run=OTHER))


def test_a_run_of_another_command_is_refused() -> None:
    check_command(remote(1, 1, 1), "/work/train.py", ("--lr", "1"), "s3://bucket/train")
    with pytest.raises(
        ResumeRefused, match=r"another command: /work/train.py --lr 1; this is /work/train.py --lr 2.*\{name\}"
    ):
        check_command(remote(1, 1, 1), "/work/train.py", ("--lr", "2"), "s3://bucket/train")
