"""The models and the corpus of the examples over pipeline stages, as their scripts make them."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from detrain.adapters.torch.pipeline.tracing import trace

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_models_corpus_and_bleu_of_the_examples(tmp_path):
    images = runpy.run_path(str(EXAMPLES / "torch_pipeline_images" / "train.py"))
    for model in (images["VGG"](hidden=32), images["ResNet"]()):
        assert model(torch.rand(3, 1, 16, 16)).shape == (3, 10)
    train_set, (test_images, test_labels) = images["load"]("")
    assert len(train_set) == 1497
    assert test_images.shape == (300, 1, 16, 16)
    assert test_labels.shape == (300,)

    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (extra `examples`)")
    script = runpy.run_path(str(EXAMPLES / "torch_pipeline_translation" / "train.py"))
    catalogue = {
        "": {"language": "fr_FR"},
        "Open %1": ["Ouvrir %1"],
        "menu\x04Open  File": ["Ouvrir le fichier"],
        "Close %1": ["Fermer %1"],
        "Close File": ["Fermer le fichier"],
        "Kernel": ["Kernel"],  # the same in both: nothing to translate
        "Save": [""],
        "Save File\u2026": ["Enregistrer le fichier\u2026"],
    }
    (tmp_path / "messages.json").write_text(json.dumps(catalogue), encoding="utf-8")
    pairs = script["pairs_of"](tmp_path)
    assert [english for english, _ in pairs] == ["Close %1", "Close File", "Open %1", "Open File", "Save File\u2026"]
    train, held_out = script["split"](pairs, 2)
    assert sorted(train + held_out) == pairs
    assert script["split"](pairs, 2) == (train, held_out)

    pieces = script["Pieces"]([text for pair in pairs for text in pair], 3, 4)
    assert [pieces.decode(row) for row in pieces.padded([french for _, french in pairs], 40).tolist()] == [
        french for _, french in pairs
    ]
    model = script["GNMT"](len(pieces.names), 8, 8)
    source, target = pieces.padded(["Open File"] * 3, 12), torch.ones(3, 5, dtype=torch.int64)
    assert model(source, target).shape == (3, 5, len(pieces.names))
    found = script["translate"](model, source, 6)
    assert found.shape[0] == 3
    assert found.shape[1] <= 6
    assert model.training
    assert trace(model, [source, target]).layers

    hypotheses = ["Ouvrir le fichier de configuration", "Fermer le fichier"]
    assert sacrebleu.corpus_bleu(hypotheses, [hypotheses]).score == pytest.approx(100)
