"""The base class of models: blocks of designs, positions, cost and initial values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from tensornet_attn import compiler
from tensornet_attn.errors import InputError
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.pairs import summed_dims
from tensornet_attn.models.cache import ModelCache
from tensornet_attn.models.config import Config
from tensornet_attn.models.cost import ModelCost
from tensornet_attn.models.fit import Fitted
from tensornet_attn.models.read import ModelSpec, load
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.nn.offsets import of_one_forward
from tensornet_attn.nn.tokens import call_of_tokens
from tensornet_attn.runtime.draw import xavier_
from tensornet_attn.runtime.positions import sinusoid
from tensornet_attn.spec.sources import Source

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

Tensor = torch.Tensor
Losses = dict[str, Tensor]  # auxiliary losses by name, scalars
WithLosses = Tensor | tuple[Tensor, Losses]
Documents = dict[str, Any]  # `cu_seqlens` and `max_seqlen` of a packed row
NORMS = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}


def norm_of(config: Config, **new: Any) -> nn.Module:
    """The model's kind of norm; eps is 1e-5 for both kinds."""
    return NORMS[config.norm](config.width, eps=1e-5, **new)


class Sublayer(nn.Module):
    """A design with norm, dropout and residual connection.

    It computes x + dropout(design(norm(x))), or norm(x + dropout(design(x))) if the model has `post_norm`.
    """

    def __init__(self, fitted: Fitted, config: Config, backend: str, **new: Any):
        super().__init__()
        self.norm, self.post_norm = norm_of(config, **new), config.post_norm
        self.design = compiler.compile(fitted.design, backend, fitted.causal, n=config.length, **new)
        self.dropout = nn.Dropout(config.dropout)
        self.context = fitted.context

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        source: Tensor | None = None,
        losses: bool = False,
        cache: Cache | None = None,
        documents: Documents | None = None,
        rows: Tensor | None = None,
    ) -> WithLosses:
        """Maps x [batch, n, width] to [batch, n, width]; `source` [batch, m, width] is normalised; key_mask [batch, m].

        key_mask and, with a source, `rows` [batch, n] are false at padding, which changes no other row. With `losses`,
        returns (result, losses of the design). With `cache`, x continues the cached positions or attends to the cached
        source. `documents`: arguments of a packed call.
        """
        into = x if self.post_norm else self.norm(x)
        if source is None and key_mask is not None and cache is not None and cache.forgotten:
            key_mask = key_mask[..., cache.forgotten :]
        inputs = (into,) if source is None or (cache is not None and cache.length) else (into, source)
        return self._added(x, inputs, key_mask, rows, losses, cache, documents)

    def after(self, context: Tensor, n: int, key_mask: Tensor | None, losses: bool = False) -> WithLosses:
        """The result for the last n rows of a context [batch, m, width], which attend to it; key_mask [batch, m]."""
        into, x = context if self.post_norm else self.norm(context), context[:, context.shape[1] - n :]
        rows = None if key_mask is None else last_rows(key_mask, n)
        return self._added(x, (into[:, into.shape[1] - n :], into), key_mask, rows, losses)

    def _added(
        self,
        x: Tensor,
        inputs: tuple[Tensor, ...],
        key_mask: Tensor | None,
        rows: Tensor | None,
        losses: bool,
        cache: Cache | None = None,
        documents: Documents | None = None,
    ) -> WithLosses:
        options = {"losses": True} if losses and cache is None else {}
        output = call_of_tokens(self.design, inputs, key_mask, rows, cache, **options, **(documents or {}))
        output, auxiliary = output if "losses" in options else (output, {})
        x = x + self.dropout(output)
        x = self.norm(x) if self.post_norm else x
        return (x, auxiliary) if losses else x


class Block(nn.Module):
    """One layer of a model. Its parameters have names such as `mixer.design.Wq` and `mixer.norm.weight`."""

    if TYPE_CHECKING:  # sublayers are added by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, parts: dict[str, Fitted], config: Config, backend: str, **new: Any):
        super().__init__()
        self.roles = tuple(parts)
        for role, fitted in parts.items():
            self.add_module(role, Sublayer(fitted, config, backend, **new))

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        losses: bool = False,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        cache: Mapping[str, Cache] | None = None,
        documents: Documents | None = None,
    ) -> WithLosses:
        """Maps x [batch, n, width] to [batch, n, width]; key_mask [batch, n], source and its mask [batch, m].

        `source` is [batch, m, width]. The mixer attends to `context` [batch, m, width], whose last rows are x;
        context_mask [batch, m]. With `losses`, returns (result, losses) with names such as `mixer.balance`. `cache`:
        the designs' caches by role. `documents`: arguments of a packed call, which takes neither source nor context.
        """
        auxiliary: Losses = {}
        kept = cache or {}
        if context is None:
            output = self.mixer(x, key_mask, losses=losses, cache=kept.get("mixer"), documents=documents)
            x = gathered(output, "mixer", auxiliary)
        else:
            x = gathered(self.mixer.after(context, x.shape[1], context_mask, losses), "mixer", auxiliary)
        if "cross" in self.roles:
            rows = None if key_mask is None else last_rows(key_mask, x.shape[1])
            output = self.cross(x, source_mask, source, losses, kept.get("cross"), rows=rows)
            x = gathered(output, "cross", auxiliary)
        if "mlp" in self.roles:
            output = self.mlp(x, key_mask, losses=losses, cache=kept.get("mlp"), documents=documents)
            x = gathered(output, "mlp", auxiliary)
        return (x, auxiliary) if losses else x


def last_rows(mask: Tensor, n: int) -> Tensor:
    """The last n of a mask [batch, m]; the mask itself if these are all, so that it is read once."""
    return mask if mask.shape[1] == n else mask[:, mask.shape[1] - n :]


def gathered(output: WithLosses, where: str, auxiliary: Losses) -> Tensor:
    """Returns the result without its losses, and adds these to `auxiliary` with `where` before their names."""
    if isinstance(output, Tensor):
        return output
    auxiliary |= {f"{where}.{name}": loss for name, loss in output[1].items()}
    return output[0]


class TokenTable(nn.Embedding):
    """The embedding of tokens. On a CPU, a token outside it is an InputError; elsewhere, an assertion of the device."""

    def forward(self, tokens: Tensor) -> Tensor:
        try:
            return super().forward(tokens)
        except IndexError:
            ends = f"tokens are {int(tokens.min())} to {int(tokens.max())}"
            raise InputError(f"{ends}; give 0 to {self.num_embeddings - 1}, the vocabulary.") from None


class Positions(nn.Module):
    """Adds the model's learned or sinusoid positions, if any, and applies dropout."""

    def __init__(self, config: Config, length: int, **new: Any):
        super().__init__()
        self.kind, self.length = config.positions, length
        self.dropout = nn.Dropout(config.dropout)
        if self.kind == "learned":
            self.table = nn.Parameter(torch.zeros(length, config.width, **new))

    def forward(
        self, x: Tensor, seen: int = 0, positions: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        """Maps x [batch, n, width] to [batch, n, width]. Raises InputError for positions beyond the learned ones.

        The rows have the positions from `seen` on, unless `positions` [batch, n] gives them. Positions count the tokens
        of key_mask [batch, seen + n], not the padding.
        """
        n, explicit = seen + x.shape[1], positions is not None
        if positions is not None and self.kind in ("learned", "sinusoid"):
            _check_positions(positions, x.shape[:2])
        if positions is None and key_mask is not None and self.kind in ("learned", "sinusoid"):
            positions = (key_mask.cumsum(1) - 1).clamp(min=0)[:, seen:]
        if self.kind == "learned":
            if positions is not None and (explicit or n > self.length):  # those of tokens are less than n
                self._check_learned(positions)
            elif n > self.length:
                raise InputError(
                    f"the call reaches {n} positions, but the model has learned {self.length}: shorten it."
                )
            x = x + (self.table[seen:n] if positions is None else self.table[positions])
        elif self.kind == "sinusoid":
            places = torch.arange(seen, n, device=x.device) if positions is None else positions
            x = x + sinusoid(places.flatten(), x.shape[2], x.dtype).unflatten(0, places.shape)
        return self.dropout(x)

    def _check_learned(self, positions: Tensor) -> None:
        """Raises InputError for a position that was not learned.

        On a GPU and in torch.compile, where reading it would wait, an assertion of the device fails as in nn.Embedding.
        """
        learned = ((positions >= 0) & (positions < self.length)).all()
        sentence = f"'positions' has values outside 0 to {self.length - 1}, the positions that the model has learned."
        if not positions.is_cpu or torch.compiler.is_compiling():
            torch._assert_async(learned, sentence)
        elif not bool(learned):
            raise InputError(sentence)


def _check_positions(positions: Tensor, shape: torch.Size) -> None:
    """Raises InputError unless these are integers of this shape, or of one row for all."""
    if positions.dtype not in (torch.int64, torch.int32) or positions.shape not in (shape, shape[1:], (1, shape[1])):
        raise InputError(f"'positions' is {_shape_and_dtype(positions)}; give {list(shape)}, torch.int64.")


def check_tokens(
    name: str, tokens: Tensor, key_mask: Tensor | None, mask_name: str = "key_mask", seen: int = 0
) -> None:
    """Raises InputError unless tokens [batch, n] are integers and the mask [batch, seen + n] is boolean."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise InputError(f"'{name}' is {_shape_and_dtype(tokens)}; give [batch, n], torch.int64.")
    _check_mask(mask_name, key_mask, torch.Size((tokens.shape[0], seen + tokens.shape[1])))


def check_numbers(name: str, numbers: Tensor, key_mask: Tensor | None, features: int) -> None:
    """Raises InputError unless numbers [batch, n, features] are floating point and the mask [batch, n] is boolean."""
    fits_features = isinstance(numbers, torch.Tensor) and numbers.dim() == 3 and numbers.shape[2] == features
    if not fits_features or not numbers.is_floating_point():
        raise InputError(f"'{name}' is {_shape_and_dtype(numbers)}; give [batch, n, {features}], torch.float32.")
    _check_mask("key_mask", key_mask, numbers.shape[:2])


def _check_mask(name: str, mask: Tensor | None, shape: torch.Size) -> None:
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.shape != shape:
        raise InputError(f"'{name}' is {_shape_and_dtype(mask)}; give {list(shape)}, torch.bool, true = a token.")


def _shape_and_dtype(value: object) -> str:
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


class Model(nn.Module, ABC):
    """A model built from its description: a path, YAML text, a dict, a ModelSpec, or the keys of `model:` as keywords.

    The attribute `spec` is the checked description; `backend`, `device` and `dtype` are as in `ta.compile`. Raises
    DesignError if the description has errors, and InputError if it describes another kind of model.
    """

    kind: ClassVar[str]

    if TYPE_CHECKING:  # stacks and modules are added by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self,
        spec: Source | ModelSpec | None = None,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **config: Any,
    ):
        super().__init__()
        if (spec is None) != bool(config):
            raise InputError(f"{type(self).__name__} takes either a description or its keys, e.g. vocabulary=256.")
        self.spec = load({"tensornet": 1, "model": {"kind": self.kind, **config}} if spec is None else spec)
        if self.spec.kind != self.kind:
            raise InputError(f"{type(self).__name__} is a {self.kind}; this describes a {self.spec.kind}: use make().")
        self.scale, self.backend = self.spec.embedding_scale, backend
        new = {"device": device, "dtype": dtype}
        self._make(**new)
        for stack, blocks in self.spec.stacks.items():
            modules = (Block(block, self.spec.config, backend, **new) for block in blocks)
            self.add_module(stack, nn.ModuleList(modules))
        initialise(self)

    @abstractmethod
    def _make(self, **new: Any) -> None:
        """Creates all modules outside the stacks: embeddings, final norms, output."""

    def _last_norm(self, **new: Any) -> nn.Module:
        """The norm at the end of a stack; the identity if each layer ends with a norm."""
        return nn.Identity() if self.spec.config.post_norm else norm_of(self.spec.config, **new)

    def _through(
        self,
        stack: str,
        x: Tensor,
        losses: bool,
        *seen: Tensor | None,
        cache: ModelCache | None = None,
        documents: Documents | None = None,
    ) -> tuple[Tensor, Losses]:
        """Runs x through a stack and returns (x, losses by name); `seen` are the masks and the source of each block."""
        auxiliary: Losses = {}
        if cache is not None and losses:
            raise InputError("a call with a cache computes no losses: leave out 'losses' or the cache.")
        if cache is not None and {*cache} != {*self._designs(stack)}:
            raise InputError(f"this cache belongs to another model than '{self.spec.name}'; create one by new_cache().")
        seen = tuple(map(of_one_forward, seen))
        for index, block in enumerate(getattr(self, stack)):
            block_name = f"{stack}.{index}"
            kept = None if cache is None else {role: cache[f"{block_name}.{role}"] for role in block.roles}
            x = gathered(block(x, *seen, losses=losses, cache=kept, documents=documents), block_name, auxiliary)
        return x, auxiliary

    def _designs(self, stack: str) -> dict[str, CompiledDesign]:
        """The designs of a stack by sublayer, such as `layers.0.mixer`."""
        blocks = enumerate(getattr(self, stack))
        return {
            f"{stack}.{index}.{role}": getattr(block, role).design for index, block in blocks for role in block.roles
        }

    def to_yaml(self, whole: bool = False) -> str:
        """The model as YAML text, which `ta.models.make` reads back; see `ModelSpec.to_yaml`."""
        return self.spec.to_yaml(whole)

    def cost(self, n: int | None = None, batch: int = 1, m: int | None = None, dtype: str = "float32") -> ModelCost:
        """MACs and parameters of one forward pass at n positions (default: the model's length); see `ModelCost`."""
        return self.spec.cost(n, batch, m, dtype)

    def tp_plan(self, processes: int | None = None) -> dict[str, ParallelStyle]:
        """Tensor-parallel styles by module name, such as `layers.0.mixer.design`, for torch's `parallelize_module`.

        See `CompiledDesign.tp_plan`. Raises InputError if a design cannot be split.
        """
        styles = {}
        for name, module in self.named_modules():
            if isinstance(module, CompiledDesign):
                try:
                    styles[name] = module.tp_plan(processes).style
                except InputError as error:
                    raise InputError(f"{name}: {error}") from error
        return styles

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.spec.legs.items())
        return f"{self.spec.name}: {sizes}"


@dataclass(frozen=True)
class Initialisation:
    """A distribution of initial values, and its source.

    `matrices`: design (each design's own), normal (std), xavier, fan_in (normal, std fan_in ** -0.5), linear (as
    nn.Linear). `embedding`: the std of token and position tables; None means width ** -0.5. `norms`: the std of norm
    weights around 1. `depth`: a factor on all matrices. `residual`: a factor on the matrices that write to the residual
    stream. In both factors, L is the number of layers of the stack and S its number of designs.
    """

    source: str
    matrices: str
    std: float = 0.02
    embedding: float | None = 0.02
    norms: float = 0.0
    depth: str = "1"
    residual: str = "1"


_XL = "N(0, 0.02) for matrices and embeddings, norms N(1, 0.02): Transformer-XL's training code, "
_LRA = "embeddings N(0, 0.02), matrices as nn.Linear: MGK's and FMMformer's released code for Long Range Arena"
_EPA = "N(0, 2 / (L fan_in)) for matrices, EPA's released code; embeddings N(0, 1 / width), from memory"
INITIALISATIONS = {
    "design": Initialisation("the initialisers of each design; embeddings N(0, 0.02)", "design"),
    "normal": Initialisation("N(0, 0.02) for all: BERT, from memory", "normal"),
    "gpt2": Initialisation("N(0, 0.02), residual outputs / sqrt(S): GPT-2, section 2.3", "normal", residual="S"),
    "xavier": Initialisation(
        "Xavier uniform, embeddings N(0, 1 / width): fairseq, from memory", "xavier", embedding=None
    ),
    "transformer_xl": Initialisation(_XL + "Dai et al. (2019)", "normal", norms=0.02),
    "mgk": Initialisation(_XL + "the basis of MGK's released language models", "normal", norms=0.02),
    "fmm": Initialisation(_XL + "the basis of FMMformer's released language models", "normal", norms=0.02),
    "lra": Initialisation(_LRA, "linear"),
    "epa": Initialisation(_EPA, "fan_in", embedding=None, depth="2/L"),
}


@torch.no_grad()
def initialise(model: Model) -> None:
    """Draws the initial values of a `Model` from torch's generator, by the `init` of its description."""
    rule = INITIALISATIONS[model.spec.config.init]
    for name, parameter in model.named_parameters():
        if name.split(".")[0] in ("embedding", "target_embedding", "cls") or name.endswith("positions.table"):
            parameter.normal_(0, rule.embedding if rule.embedding is not None else parameter.shape[-1] ** -0.5)
    if getattr(model, "projection", None) is not None:
        _draw(rule, model.projection.weight, (1,), None)
    if model.output is not None:
        _draw(rule, model.output.weight, (1,), None)
    for stack in model.spec.stacks:
        _stack(rule, getattr(model, stack))
    for module in model.modules():
        if rule.norms and isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.weight.normal_(1, rule.norms)


def _stack(rule: Initialisation, blocks: Any) -> None:
    designs = [getattr(block, role).design for block in blocks for role in block.roles]
    factors = {"1": 1.0, "S": len(designs) ** -0.5, "2/L": (2 / len(blocks)) ** 0.5}
    for design in designs:
        graph = design.plan.graph
        outputs = residual_outputs(graph)
        for name in random_matrices(graph):
            weight, tensor = getattr(design, name), graph.tensor[name]
            declared = tensor.init.name if tensor.init is not None else "xavier"
            _draw(rule, weight, summed_dims(graph, tensor), declared)
            weight.mul_(factors[rule.depth] * (factors[rule.residual] if name in outputs else 1.0))


def _draw(rule: Initialisation, weight: torch.Tensor, summed: tuple[int, ...], declared: str | None) -> None:
    """Draws one matrix. `declared`: the design's initialiser, already applied; None if no design has the matrix."""
    fan_in = prod(weight.shape[dim] for dim in summed)
    if rule.matrices == "normal":
        weight.normal_(0, rule.std)
    elif rule.matrices == "xavier" or (rule.matrices == "design" and declared is None):
        xavier_(weight, summed)
    elif rule.matrices == "linear":
        weight.uniform_(-(fan_in**-0.5), fan_in**-0.5)
    elif rule.matrices == "fan_in" and declared != "normal":  # a design's `normal` includes its fan-in
        weight.normal_(0, fan_in**-0.5)


def random_matrices(graph: Graph) -> Iterator[str]:
    """The names of the trainable weights that an initialisation draws."""
    width = graph.of_role("input")[0].legs[-1]
    for tensor in graph.of_role("weight"):
        name = tensor.init.name if tensor.init is not None else "xavier"
        if not tensor.frozen and (name == "xavier" or (name in ("normal", "uniform") and width in tensor.legs)):
            yield tensor.name


def residual_outputs(graph: Graph) -> set[str]:
    """The weights that produce the output of a design: those with the output's width leg."""
    weights, waiting = set(), [(graph.output, graph.legs_of(graph.output)[-1])]
    while waiting:
        name, leg = waiting.pop()
        step = graph.step[name]
        for use in step.uses:
            if leg not in use.legs:
                continue
            if use.name in graph.step:
                waiting.append((use.name, graph.legs_of(use.name)[use.legs.index(leg)]))
            elif graph.tensor[use.name].role == "weight" and step.contraction is not None:
                weights.add(use.name)
    return weights
