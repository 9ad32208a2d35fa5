"""Packages that lie in a folder of another name than `site-packages`: `pip install --target`, then PYTHONPATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import libcst

from detrain.rewrite import importer

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import torch
w = torch.zeros(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for epoch in range(2):
    for batch in range(3):
        optimizer.zero_grad()
        (w - 1).square().sum().backward()
        optimizer.step()
print(w.tolist())
"""


def test_what_detrain_itself_needs_may_lie_beside_the_script(tmp_path):
    shutil.copytree(Path(libcst.__file__).parent, tmp_path / "libcst")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "detrain", "run", str(script)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == plain.stdout
    assert "training loop found" in done.stderr


def test_modules_in_such_a_folder_are_not_the_users_but_those_beside_the_script_are(tmp_path, monkeypatch):
    for name in ("beside", "target", "library"):
        (tmp_path / name).mkdir()
    for name in ("beside", "target"):
        (tmp_path / name / "thing-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in ("beside", "target", "library")] + sys.path)
    assert not importer.is_user_file(str(tmp_path / "target" / "thing" / "training.py"))
    assert importer.is_user_file(str(tmp_path / "beside" / "thing.py"))
    assert importer.is_user_file(str(tmp_path / "library" / "thing.py"))
