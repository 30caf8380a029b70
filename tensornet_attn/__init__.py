"""A compiler for attention layers: tensor diagrams in YAML become graphs, costs, pictures and PyTorch modules.

>>> import tensornet_attn as ta
>>> design = ta.load("mhsa", legs={"f": 64})
>>> design.legs["d"]
8
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tensornet_attn.keywords import checked
from tensornet_attn.version import __version__

if TYPE_CHECKING:
    from tensornet_attn import hf as hf
    from tensornet_attn import models as models
    from tensornet_attn import nn as nn
    from tensornet_attn.analyse.core import effective_heads
    from tensornet_attn.analyse.maps import (
        Maps,
        Selections,
        attention_maps,
        attention_scores,
        expert_selections,
        max_maps,
        mean_maps,
    )
    from tensornet_attn.analyse.measures import (
        Eigenvalues,
        HeadDistances,
        head_distances,
        induction_scores,
        map_eigenvalues,
        map_entropy,
        map_rank,
        map_reach,
        principal_components,
        singular_values,
        vertical_scores,
    )
    from tensornet_attn.analyse.mixture import Mixture, mixture_weights
    from tensornet_attn.analyse.plots import (
        plot_eigenvalues,
        plot_experts,
        plot_induction,
        plot_maps,
        plot_max_maps,
        plot_ranks,
        plot_spectra,
    )
    from tensornet_attn.analyse.report import report, report_data
    from tensornet_attn.analyse.section import (
        Call,
        Section,
        model_sections,
        repeated_inputs,
        repeated_tokens,
        text_inputs,
    )
    from tensornet_attn.checkpoint import Checkpoint, read_checkpoint, restore, save
    from tensornet_attn.compare.report import compare
    from tensornet_attn.compiler import (
        Design,
        check,
        compile,
        cost,
        draw,
        emit_source,
        explain,
        hash_of,
        kernels,
        list_designs,
        load,
        match_parameters,
        reference,
        rewrites,
        warm,
    )
    from tensornet_attn.convert.export import export_to
    from tensornet_attn.convert.interface import register_attention
    from tensornet_attn.convert.loading import load_converted
    from tensornet_attn.convert.make import convert
    from tensornet_attn.convert.replace import convert_model
    from tensornet_attn.errors import DesignError, InputError, MissingPartError, Problem, TensornetError
    from tensornet_attn.graph.build import build
    from tensornet_attn.graph.graph import Graph
    from tensornet_attn.nn.step import decoding_step
    from tensornet_attn.search.start import search
    from tensornet_attn.spec import json_schema
    from tensornet_attn.special.lattice import special_cases
    from tensornet_attn.train.start import train
    from tensornet_attn.train.trained import run_sections
    from tensornet_attn.verify.layer import Verification, verify

__all__ = [
    "Call", "Checkpoint", "Design", "DesignError", "Eigenvalues", "Graph", "HeadDistances", "InputError", "Maps",
    "MissingPartError", "Mixture", "Problem", "Section", "Selections", "TensornetError", "Verification", "__version__",
    "attention_maps", "attention_scores", "build", "check", "compare", "compile", "convert", "convert_model", "cost",
    "decoding_step", "draw", "effective_heads", "emit_source", "expert_selections", "explain", "export_to",
    "hash_of", "head_distances",
    "induction_scores", "json_schema", "kernels", "list_designs", "load", "load_converted", "map_eigenvalues",
    "map_entropy", "map_rank", "map_reach", "match_parameters", "max_maps", "mean_maps", "mixture_weights",
    "model_sections",
    "plot_eigenvalues",
    "plot_experts", "plot_induction", "plot_maps", "plot_max_maps", "plot_ranks", "plot_spectra",
    "principal_components", "read_checkpoint", "reference", "register_attention", "repeated_inputs", "repeated_tokens",
    "report", "report_data", "restore", "rewrites", "run_sections", "save", "search", "singular_values",
    "special_cases", "text_inputs", "train", "verify", "vertical_scores", "warm",
]  # fmt: skip
_PLACES = {
    "analyse.core": "effective_heads",
    "analyse.maps": "Maps Selections attention_maps attention_scores expert_selections max_maps mean_maps",
    "analyse.measures": "Eigenvalues HeadDistances head_distances induction_scores map_eigenvalues map_entropy "
    "map_rank map_reach principal_components singular_values vertical_scores",
    "analyse.mixture": "Mixture mixture_weights",
    "analyse.plots": "plot_eigenvalues plot_experts plot_induction plot_maps plot_max_maps plot_ranks plot_spectra",
    "analyse.report": "report report_data",
    "analyse.section": "Call Section model_sections repeated_inputs repeated_tokens text_inputs",
    "checkpoint": "Checkpoint read_checkpoint restore save",
    "compare.report": "compare",
    "compiler": "Design check compile cost draw emit_source explain hash_of kernels list_designs load match_parameters "
    "reference rewrites warm",
    "convert.export": "export_to",
    "convert.interface": "register_attention",
    "convert.loading": "load_converted",
    "convert.make": "convert",
    "convert.replace": "convert_model",
    "errors": "DesignError InputError MissingPartError Problem TensornetError",
    "graph": "Graph build",
    "nn.step": "decoding_step",
    "search.start": "search",
    "spec": "json_schema",
    "special.lattice": "special_cases",
    "train.start": "train",
    "train.trained": "run_sections",
    "verify.layer": "Verification verify",
    "version": "__version__",
}
_HOME = {name: module for module, names in _PLACES.items() for name in names.split()}


class _Package(ModuleType):
    """This package. If a function and a module share a name (cost, draw, train and others), the function wins."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):  # importing a submodule binds it to its package
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Imports a public name on first use, so that importing the package is fast and does not import torch."""
        if name in _HOME:
            return checked(getattr(import_module(f"{__name__}.{_HOME[name]}"), name))
        if name in _FOLDERS:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *__all__})


_FOLDERS = frozenset(
    "analyse checkpoint compiler emit errors graph hf limits models nn plan spec special tasks".split()
)
sys.modules[__name__].__class__ = _Package
