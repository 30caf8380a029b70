"""The tasks, one module each."""

from tensornet_attn.tasks.recipe import Recipe
from tensornet_attn.tasks.recipes import (
    byte_lm,
    char_lm,
    copy,
    image_generation,
    listops,
    lra_image,
    lra_listops,
    lra_pathfinder,
    lra_retrieval,
    lra_text,
    mqar,
    reverse,
    selective_copy,
    text_classification,
    translation,
    uea,
    wikitext,
)

RECIPES: tuple[Recipe, ...] = (
    byte_lm.RECIPE,
    char_lm.RECIPE,
    copy.RECIPE,
    image_generation.RECIPE,
    listops.RECIPE,
    listops.MINI,
    lra_image.RECIPE,
    lra_listops.RECIPE,
    lra_pathfinder.RECIPE,
    lra_retrieval.RECIPE,
    lra_text.RECIPE,
    mqar.RECIPE,
    reverse.RECIPE,
    selective_copy.RECIPE,
    text_classification.RECIPE,
    translation.RECIPE,
    uea.RECIPE,
    wikitext.RECIPE,
)
