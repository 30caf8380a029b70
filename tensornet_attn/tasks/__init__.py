"""Tasks to train and judge designs on: numbered samples and a score. Torch is imported when samples are made."""

from tensornet_attn.tasks.recipe import Options, Recipe
from tensornet_attn.tasks.task import Task, checked, describe, list_tasks, task_named

__all__ = ["Options", "Recipe", "Task", "checked", "describe", "list_tasks", "task_named"]
