"""What generated code calls: functions of torch here, kernels and their launching in `triton/`.

A file that is to run alone carries them verbatim, so each stands on torch, or triton, and on others of them.
"""
