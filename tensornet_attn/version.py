"""The version of the package. The build reads it too."""

__version__ = "0.2.0"
