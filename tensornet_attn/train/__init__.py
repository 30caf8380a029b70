"""The trainer: a task, a model and a recipe to a folder with metrics, checkpoints and a summary; killed, it goes on."""
