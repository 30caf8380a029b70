"""The functions that generated code calls: plain torch here, Triton kernels and their launching in `triton/`.

Standalone files contain copies of them, so each depends only on torch or triton and on other functions here.
"""
