"""The recipes of all tasks."""

from tensornet_attn.tasks.recipe import Recipe
from tensornet_attn.tasks.recipes.labelled import LRA_RETRIEVAL, LRA_TEXT, TEXT_CLASSIFICATION
from tensornet_attn.tasks.recipes.listops import LISTOPS, LISTOPS_MINI, LRA_LISTOPS
from tensornet_attn.tasks.recipes.pictures import IMAGE_GENERATION, LRA_IMAGE, LRA_PATHFINDER
from tensornet_attn.tasks.recipes.symbols import COPY, MQAR, REVERSE, SELECTIVE_COPY
from tensornet_attn.tasks.recipes.texts import BYTE_LM, CHAR_LM, WIKITEXT
from tensornet_attn.tasks.recipes.translation import TRANSLATION
from tensornet_attn.tasks.recipes.uea import UEA

RECIPES: tuple[Recipe, ...] = (
    *(BYTE_LM, CHAR_LM, COPY, IMAGE_GENERATION, LISTOPS, LISTOPS_MINI, LRA_IMAGE, LRA_LISTOPS, LRA_PATHFINDER),
    *(LRA_RETRIEVAL, LRA_TEXT, MQAR, REVERSE, SELECTIVE_COPY, TEXT_CLASSIFICATION, TRANSLATION, UEA, WIKITEXT),
)
