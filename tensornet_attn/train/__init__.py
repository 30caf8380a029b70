"""The trainer: runs write metrics, checkpoints and a summary to a folder, and resume after a crash."""
