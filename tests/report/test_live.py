"""The page of a run that goes on, served on this machine."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from detrain.errors import UsageError
from detrain.report.live import Server

from .test_now import Run

pytest.importorskip("plotly", reason="the report is drawn with plotly: pip install 'detrain-run[report]'")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "train")


@pytest.fixture
def served(run, monkeypatch):
    """Asks for a path of the page, under a name; its status, type and text."""
    monkeypatch.setattr("detrain.report.live.read", lambda _: None)
    monkeypatch.setattr("detrain.report.page.compose", lambda _, head, above: f"<html>{head}{above}</html>")
    server = Server(run.path)
    thread = threading.Thread(target=server.serve)
    thread.start()

    def ask(path, name=""):
        asked = urllib.request.Request(server.address.rstrip("/") + path, headers={"Host": name} if name else {})
        try:
            with urllib.request.urlopen(asked) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, "", ""

    yield ask
    server.close()
    thread.join()


def test_each_question_is_answered_with_what_is_there_by_then(run, served):
    run.begin(1, 0, [["batch", 40]])
    run.train(5)
    status, kind, text = served("/now.json")
    assert (status, kind, json.loads(text)["batches"]) == (200, "application/json", 5)
    run.train(8)
    assert json.loads(served("/now.json")[2])["batches"] == 8
    status, kind, text = served("/")
    assert (status, kind.partition(";")[0]) == (200, "text/html")
    assert "now.json" in text
    assert len(served("/plotly.js")[2]) > 100_000


def test_nothing_else_is_answered_nor_under_another_name(served):
    assert served("/../../etc/passwd")[0] == served("/train.py")[0] == 404
    assert served("/now.json", "localhost:8123")[0] == 200
    assert served("/now.json", "elsewhere.example:8123")[0] == 404


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is no run directory"):
        Server(tmp_path)
