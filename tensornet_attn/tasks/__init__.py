"""Tasks for training and evaluating designs: numbered samples and a score. Torch is imported with the first sample."""

from tensornet_attn.tasks.recipe import Options, Recipe
from tensornet_attn.tasks.task import Task, checked, describe, list_tasks, task_named

__all__ = ["Options", "Recipe", "Task", "checked", "describe", "list_tasks", "task_named"]
