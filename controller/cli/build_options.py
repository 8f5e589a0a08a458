"""The options of `fleet build`, by what they are about; their help is what users read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# The model, and the samples that judge and quantize it

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="An .onnx, .tflite or StableHLO file, or module:callable."
    ),
]
Profile = Annotated[
    list[str],
    typer.Option("--profile", "-p", metavar="PROFILE", help="Kind of device to build for."),
]
Evaluation = Annotated[
    str,
    typer.Option(
        metavar="DATA",
        help="Samples that judge every variant: an .npz file, a folder of .npy or .npz files, "
        "or module:callable. Its arrays have the names of the model's inputs, or `x` for the "
        "only one, and `label` for labels; other names are refused. When it is the only set, "
        "the build splits it.",
    ),
]
Calibration = Annotated[str, typer.Option(metavar="DATA", help="Other samples, to quantize with.")]
Tuning = Annotated[
    str, typer.Option(metavar="DATA", help="Other samples, to repair integer variants with.")
]
FloatOnly = Annotated[bool, typer.Option("--float-only", help="Make no integer variants.")]
Preprocessing = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML file that says how raw samples become inputs."),
]
Postprocessing = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML file that says how outputs become answers."),
]
State = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INPUT=OUTPUT",
        help="Feed this output back as this input at the next step. The samples then are "
        "sequences, with the axes (sequences, steps, ...).",
    ),
]
ApartOver = Annotated[
    int,
    typer.Option(
        metavar="BYTES",
        min=0,
        help="Leave the weights of a larger ONNX model in a file beside it, so that no step "
        "holds all of them. Some runtimes cannot be built for then.",
    ),
]
Prune = Annotated[
    float,
    typer.Option(metavar="SHARE", help="Share of a PyTorch model's channels to take out."),
]
Training = Annotated[
    str,
    typer.Option(metavar="CALLABLE", help="Function module:callable that trains the pruned model."),
]

# What a variant must be

Metric = Annotated[
    list[str] | None,
    typer.Option(
        help="One of auto, top1, top5, agreement, mae, rmse, r2, cosine, miou, map, wer, cer "
        "and perplexity, also with options as in miou,axis=1; or module:callable. The default "
        "is auto. Once more for another output with a gate of its own: "
        "OUTPUT=METRIC[,labels=NAME][,min-retention=SHARE]; 8 of these at most.",
        metavar="METRIC",
    ),
]
MinRetention = Annotated[
    float,
    typer.Option(
        help="Least share of the reference's metric that a variant must keep.", metavar="SHARE"
    ),
]
MaxDisagreement = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Most samples whose top answer may differ from the reference's. The default for "
        "metrics of class scores is 0.05, or 5 times what --min-retention lets a variant lose.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse a variant if the samples cannot show that it passes the gates of quality.",
    ),
]
MaxSize = Annotated[int | None, typer.Option(metavar="BYTES", help="Largest size of a variant.")]
MaxLatency = Annotated[
    float | None,
    typer.Option(
        "--max-latency",
        metavar="MS",
        help="Largest median latency on this machine, or in the field.",
    ),
]
MaxMemory = Annotated[
    int | None,
    typer.Option(metavar="BYTES", help="Largest memory of the process that runs a variant."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="VARIANT", help="Keep this variant even when others are better."),
]

# Which variants are made

Search = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="Search among all that could be built: exhaustive, random or tpe. By default the "
        "plan's own rule says what is built.",
    ),
]
SearchCap = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Candidates that a search builds and measures, beside the reference variant; 24 "
        "by default.",
    ),
]
SearchSeed = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Seed of a search; 0 by default.")
]
Goal = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GOAL",
        help="What a search looks for, the most important first: accuracy, latency, memory or "
        'size, also with a limit, as in "accuracy: at most 1% worse" or "latency: at least 20% '
        'faster". accuracy is about every --metric; one of them is named as there, as in '
        '"boxes=mae: at most 2% worse". What misses a limit is dropped.',
    ),
]
DropBeaten = Annotated[
    bool,
    typer.Option(
        "--drop-beaten",
        help="Drop the fastest variant of a runtime when one of another runtime is better.",
    ),
]
MaxVariants = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Variants that a profile gets; more if more must stay."),
]
RepairTrials = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Trials to repair an int8 variant; 0 for no repairs."),
]
Tune = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, help="Trials for each task to tune TVM; 0 takes known schedules."
    ),
]
TuningDatabase = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Known schedules of TVM. The default is in the cache."),
]

# How they are measured

MinRuns = Annotated[
    int, typer.Option(metavar="N", min=1, help="Inferences of each measurement, at least.")
]
MinDuration = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0.0, max=3600.0, help="Length of each measurement, at least."
    ),
]
Emulation = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=1.0, help="Time to check a variant under emulation."),
]
ProfileLayers = Annotated[
    bool,
    typer.Option(
        "--profile-layers",
        help="Profile each layer of the kept variants: time, precision, memory and fusions, "
        "for the report.",
    ),
]
Measurements = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON report, or figures of the field (`fleet measure figures --out`): they count "
        "for files that are the same.",
    ),
]
MeasureOn = Annotated[
    str | None,
    typer.Option(
        metavar="SELECTOR",
        help="Publish the candidates, let these lent devices measure them, and build with "
        "their figures.",
    ),
]
MeasureTimeout = Annotated[
    str, typer.Option(metavar="TIME", help="How long to wait for these devices.")
]
Remeasure = Annotated[
    bool, typer.Option("--remeasure", help="Measure costs again, although they are known.")
]

# The package and its reports

Name = Annotated[
    str,
    typer.Option(metavar="NAME", help="Name of the package. The default is the model's file name."),
]
Version = Annotated[
    str,
    typer.Option(
        metavar="VERSION", help="Version of the package. The default is made from its content."
    ),
]
Licence = Annotated[
    str,
    typer.Option(
        metavar="SPDX",
        help="Licence of the model for the bill of materials, such as Apache-2.0.",
    ),
]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="Release key to sign with.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Directory of the package to make."),
]
Report = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Write a report to this .html or .json file."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a package that is there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and build nothing.")]

# Where the work is done

Cache = Annotated[
    Path, typer.Option(metavar="DIR", help="Directory of finished steps and measured figures.")
]
Executor = Annotated[
    str, typer.Option(metavar="WHERE", help="Where steps run: local, or dask://HOST:PORT.")
]
Jobs = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Steps at the same time; 0 for one per processor."),
]
StepTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.001, help="Longest time of a step.")
]
StepMemory = Annotated[
    int,
    typer.Option(
        metavar="BYTES", min=0, help="Largest memory of a step; 0 for its share of 3/4 of all."
    ),
]
