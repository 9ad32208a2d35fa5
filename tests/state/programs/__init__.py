"""Programs in small, by theme; `tests.state.test_roundtrip` captures and restores each."""
