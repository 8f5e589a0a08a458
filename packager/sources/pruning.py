"""Prunes PyTorch modules by structure: torch-pruning removes whole channels.

The pruned module is smaller and faster on every runtime. It loses accuracy if it is not trained
again.

Rules:
- A layer keeps all channels if removing some breaks the module or changes its outputs. Each group
  of layers that must be pruned together is tried on a separate copy.
- The user's module is not changed.
- Equal modules and ratios give equal modules; the user's function trains from a fixed seed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packager.errors import ModelError, StepError
from packager.fault_text import typed_line
from packager.sources.pytorch import INSTALL, TorchSource, unpack

_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """A pruned module, with figures from before and after."""

    module: Any
    parameters_before: int
    parameters_after: int
    macs_before: int
    """Multiply-accumulate operations of one run on the example."""

    macs_after: int
    kept_whole: tuple[str, ...]
    """Layers from which nothing could be taken."""

    trained: bool

    @property
    def note(self) -> str:
        """What was done, in one line."""
        text = (
            f"pruned from {self.parameters_before} to {self.parameters_after} parameters and from "
            f"{self.macs_before} to {self.macs_after} multiply-accumulates; "
            f"{len(self.kept_whole)} layers were kept whole"
        )
        return text if self.trained else f"{text}; not trained after that"


def prune(
    module: object,
    example_inputs: object,
    ratio: float,
    *,
    train: Callable[[Any], Any] | None = None,
) -> Pruned:
    """Take channels from a module.

    Args:
        module: A `torch.nn.Module`.
        example_inputs: What it is called with: a tensor, a tuple of them, or a dict of keywords.
        ratio: Share of the channels to take from each layer, above 0 and below 1.
        train: Called with the pruned module, returns it trained.

    Returns:
        The pruned module and its figures.

    Raises:
        ModelError: The module fails, nothing can be taken from it, or the training function failed
            or returned another kind of module.
        StepError: torch-pruning is not installed, or failed.
    """
    if not 0 < ratio < 1:
        raise ModelError(
            f"cannot prune a share of {ratio} of the channels", remedy="use a share between 0 and 1"
        )
    source = unpack((copy.deepcopy(module), example_inputs))
    shapes = _shapes(source)
    pruner = _torch_pruning()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch-pruning tells of parameters that it leaves alone
        try:
            macs_before, parameters_before = _figures(pruner, source)
            kept = _fragile(pruner, source, shapes, ratio)
            _prune(pruner, source, kept, ratio)
            macs_after, parameters_after = _figures(pruner, source)
        except ModelError:
            raise
        except Exception as exc:
            raise StepError(
                f"torch-pruning failed: {typed_line(exc)}",
                remedy="build without pruning",
            ) from exc
    if parameters_after == parameters_before:
        raise ModelError(
            "torch-pruning found no channel that it can remove",
            remedy="build without pruning, or prune a larger share",
        )
    if _shapes(source) != shapes:
        raise StepError(
            "torch-pruning failed: the pruned module has different outputs",
            remedy="build without pruning",
        )
    return Pruned(
        module=source.module if train is None else _trained(source, shapes, train),
        parameters_before=parameters_before,
        parameters_after=parameters_after,
        macs_before=macs_before,
        macs_after=macs_after,
        kept_whole=kept,
        trained=train is not None,
    )


def _fragile(
    pruner: Any,  # noqa: ANN401 - torch-pruning is untyped
    source: TorchSource,
    shapes: dict[str, tuple[int, ...]],
    ratio: float,
) -> tuple[str, ...]:
    """Return the names of the layers from which nothing can be taken."""
    module = source.module.requires_grad_(requires_grad=True)  # the graph comes from gradients
    graph = pruner.DependencyGraph().build_dependency(module, example_inputs=_inputs(source))
    every = {name for name, layer in module.named_modules() if isinstance(layer, _prunable())}
    fragile: set[str] = set()
    tried: set[str] = set()
    for name in sorted(every):
        if name not in tried:
            group = _group(graph, module, name) & every
            tried |= group
            trial = _with_module(source, copy.deepcopy(module))
            if not _survives(pruner, trial, every - group, shapes, ratio):
                fragile |= group
    return tuple(sorted(fragile))


def _group(graph: Any, module: Any, name: str) -> set[str]:  # noqa: ANN401 - untyped
    """Return the layers that lose outputs together with this one, itself among them."""
    names = {id(part): name for name, part in module.named_modules()}
    layer = module.get_submodule(name)
    try:
        take = graph.get_pruner_of_module(layer).prune_out_channels
        group = graph.get_pruning_group(layer, take, idxs=[0])
    except Exception:  # noqa: BLE001 - what it does not understand it will not prune either
        return {name}
    lose = (item.dep for item in group if graph.is_out_channel_pruning_fn(item.dep.handler))
    return {name} | {names[id(dep.target.module)] for dep in lose if id(dep.target.module) in names}


def _survives(
    pruner: Any,  # noqa: ANN401 - torch-pruning is untyped
    trial: TorchSource,
    kept: set[str],
    shapes: dict[str, tuple[int, ...]],
    ratio: float,
) -> bool:
    """Tell whether a module still works when all but some of its layers are kept whole."""
    before = sum(parameter.numel() for parameter in trial.module.parameters())
    try:
        _prune(pruner, trial, tuple(sorted(kept)), ratio)
        works = _shapes(trial) == shapes
    except Exception:  # noqa: BLE001 - the library's errors are as many as ways to break a module
        return False
    return works and sum(parameter.numel() for parameter in trial.module.parameters()) < before


def _prune(
    pruner: Any,  # noqa: ANN401 - torch-pruning is untyped
    source: TorchSource,
    kept: tuple[str, ...],
    ratio: float,
) -> None:
    """Take the channels of the least magnitude, in place."""
    module = source.module
    pruner.pruner.MagnitudePruner(
        module,
        _inputs(source),
        importance=pruner.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio,
        ignored_layers=[module.get_submodule(name) for name in kept],
        root_module_types=list(_prunable()),
    ).step()


def _trained(
    source: TorchSource, shapes: dict[str, tuple[int, ...]], train: Callable[[Any], Any]
) -> Any:  # noqa: ANN401 - torch is untyped
    """Return the module as the user's function trained it.

    Raises:
        ModelError: The function failed, or returned something else.
    """
    import torch

    torch.manual_seed(_SEED)
    try:
        module = train(source.module)
    except (Exception, SystemExit) as exc:
        raise ModelError(f"the training function failed: {typed_line(exc)}") from exc
    if not isinstance(module, torch.nn.Module):
        raise ModelError(
            f"the training function returned a {type(module).__name__[:80]}",
            remedy="return the module that the function receives",
        )
    if _shapes(_with_module(source, module.to("cpu").eval())) != shapes:
        raise ModelError("the training function returned a module with different outputs")
    return module


def _with_module(source: TorchSource, module: Any) -> TorchSource:  # noqa: ANN401 - untyped
    return TorchSource(
        module=module,
        arguments=source.arguments,
        keywords=source.keywords,
        input_names=source.input_names,
        output_names=source.output_names,
    )


def _inputs(source: TorchSource) -> Any:  # noqa: ANN401 - torch is untyped
    return source.keywords or source.arguments


def _shapes(source: TorchSource) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in source.outputs().items()}


def _figures(pruner: Any, source: TorchSource) -> tuple[int, int]:  # noqa: ANN401 - untyped
    """Return multiply-accumulates of the example, and parameters."""
    macs, _ = pruner.utils.count_ops_and_params(source.module, _inputs(source))
    return int(macs), sum(parameter.numel() for parameter in source.module.parameters())


def _prunable() -> tuple[Any, ...]:
    from torch import nn

    return (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def _torch_pruning() -> Any:  # noqa: ANN401 - torch-pruning is untyped
    try:
        import torch_pruning
    except ImportError as exc:
        raise StepError("torch-pruning is not installed", remedy=INSTALL) from exc
    return torch_pruning
