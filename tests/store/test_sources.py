"""The texts of a run's sources, in its directory."""

from detrain.store import sources
from detrain.store.sources import SourceTexts


def test_each_version_is_kept_once_and_read_by_its_digest(tmp_path) -> None:
    for content in (b"x = 1\n", b"x = 2\n", b"x = 1\n"):
        texts = SourceTexts(tmp_path)
        texts.add(f"digest of {content!r}", content)
        texts.add("other", b"# caf\xe9\n")  # in its own encoding
        texts.write()
        texts.write()
    found = sources.read(tmp_path)
    assert list(found.values()) == [b"x = 1\n", b"# caf\xe9\n", b"x = 2\n"]
    assert found["other"] == b"# caf\xe9\n"
    assert (tmp_path / sources.NAME).read_bytes().count(b"\n") == 3


def test_a_line_that_a_kill_has_torn_is_none_and_what_follows_stands(tmp_path) -> None:
    path = tmp_path / sources.NAME
    path.write_bytes(b'["one", "x"]\n["two", "y')
    texts = SourceTexts(tmp_path)
    texts.add("two", b"y")
    texts.write()
    assert sources.read(tmp_path) == {"one": b"x", "two": b"y"}
    assert sources.read(tmp_path / "none") == {}
