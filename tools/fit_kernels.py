"""Fit step times a layer to published kernel tables and write ``dualpath/costmodel/kernels.py`` (paper section 6).

The tables are those of the package aiconfigurator-core (Apache-2.0, parquet), measured on single operators: a time is the
sum of the operators of a layer, without imbalance of experts, without overlap, without the host. In an environment of its own:

    pip install aiconfigurator-core==0.12.0 pyarrow numpy
    python tools/fit_kernels.py

What a layer is made of:

- DeepSeek: data-parallel attention modules (with their projections and, for V3.2, the indexer), prefill on two nodes (EP16,
  DeepEP normal with 20 SMs), decode on four (EP32, DeepEP low latency), shared expert and router. All layers count as
  mixtures, norms are left out. V3.2: prefill by SGLang's module, the only one with cached prefixes, decode by vLLM's, the only
  one with large batches of long contexts. V3: vLLM's modules, which know no cached prefix.
- Qwen3-235B: data-parallel attention kernels and projections, EP8 with DeepEP within a node.
- Qwen2.5-32B and GPT-OSS-120B: tensor parallel over a node, its tokens shared evenly by eight engines, two all-reduces a
  layer; GPT-OSS averages a layer of full and one of sliding-window attention and runs its experts as EP8.

Only V3.2's attention was measured behind cached prefixes; elsewhere a pair with a cached token is taken to cost what one with
a new token costs. Of a prefill batch, small ones count too in the printed errors: dense kernels are slower a token there.

Left out: A100 (no such head counts, no fp8), and DeepSeek on B200 (no all-to-all between nodes, no shared expert).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from kernel_tables import (
    ABOVE_FLOOR,
    DECODE_REQUESTS,
    LONG_PROMPT,
    MODELS,
    PACKAGE,
    SMALL_TOKENS,
    VERSION,
    Layer,
    MissingError,
    Sample,
    Tables,
)

OUTPUT = Path(__file__).parents[1] / "src/dualpath/costmodel/kernels.py"
GPUS = ("h100", "h200", "b200")
NAMES = {"ds-660b": ("ds-660b", "deepseek-v3.2")}


def least_squares(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Coefficients, none below 0, of least squared relative error: the best of all choices of columns."""
    matrix, wanted = np.array(columns).T / np.array(seconds)[:, None], np.ones(len(seconds))
    best, coefficients = np.inf, [0.0] * len(columns)
    for count in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), count):
            solved, *_ = np.linalg.lstsq(matrix[:, chosen], wanted, rcond=None)
            missed = float(((matrix[:, chosen] @ solved - wanted) ** 2).sum())
            if solved.min() >= 0 and missed < best:
                best, coefficients = missed, [0.0] * len(columns)
                for at, value in zip(chosen, solved, strict=True):
                    coefficients[at] = float(value)
    return coefficients


@dataclass(frozen=True)
class Errors:
    """Relative errors of predictions, signed."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        """Mean of their sizes."""
        return statistics.fmean(map(abs, self.values))

    def __str__(self) -> str:
        bias, most = statistics.fmean(self.values), max(map(abs, self.values))
        return f"mean {self.mean:6.1%}  most {most:6.1%}  bias {bias:+6.1%}  of {len(self.values)}"


def floor_of(some: Iterable[Sample]) -> float:
    """What a batch of hardly any tokens takes."""
    return statistics.median(one.seconds for one in some if one.tokens <= SMALL_TOKENS)


def fit(model: str, gpu: str, layer: Layer) -> str:
    """Fit, print what came of it, and give the source text of a ``KernelFit``."""
    print(f"\n{model} on {gpu}: {layer.tables}")
    prefill, prefill_error = fitted_attention(layer)
    mixture, mixture_error = fitted_mixture(layer)
    decode, decode_error = fitted_decode(layer)
    errors = {"prefill_error": prefill_error, "mixture_error": mixture_error, "decode_error": decode_error}
    return written(layer, prefill | mixture, decode, errors)


def fitted_attention(layer: Layer) -> tuple[dict[str, float], float]:
    """Attention of prefill: a floor for a batch, beyond it so much a token and a pair; and the mean error."""
    floor = floor_of(layer.prefill)
    told = [one for one in layer.prefill if one.seconds > ABOVE_FLOOR * floor and (one.cached or one.new >= LONG_PROMPT)]
    columns: list[list[float]] = [[one.tokens for one in told], [one.pairs for one in told]]
    token, pair = least_squares(columns, [one.seconds for one in told])
    errors = {one: max(floor, token * one.tokens + pair * one.pairs) / one.seconds - 1 for one in layer.prefill}
    report("attention", errors)
    # Engines that share a batch evenly each have their part of its tokens, and it takes the same time.
    coefficients = {"token_s": token * layer.engines, "pair_s": pair * layer.engines, "floor_s": floor}
    return coefficients, Errors(list(errors.values())).mean


def fitted_mixture(layer: Layer) -> tuple[dict[str, float], float]:
    """The rest of a layer in prefill, fixed and a token on each engine; and the mean error."""
    seconds = [layer.mixture(tokens) for tokens in layer.mixture_tokens]
    fixed, token = least_squares([[1.0] * len(seconds), layer.mixture_tokens], seconds)
    predicted = [fixed + token * tokens for tokens in layer.mixture_tokens]
    errors = Errors([one / time - 1 for one, time in zip(predicted, seconds, strict=True)])
    print(f"  mixture        {errors}")
    return {"mixture_s": fixed, "mixture_token_s": token}, errors.mean


def fitted_decode(layer: Layer) -> tuple[dict[str, float], float]:
    """A layer of decode: fixed, a request, a token of context, a request on the mean; and the mean error."""
    columns: list[list[float]] = [[1.0] * len(layer.decode)]
    columns += [[one.requests for one in layer.decode], [one.pairs for one in layer.decode]]
    fixed, request, context = least_squares(columns, [one.seconds for one in layer.decode])
    requests = [n for n in DECODE_REQUESTS if n >= layer.fewest]
    more, shared = least_squares([[1.0] * len(requests), requests], [layer.shared(n) for n in requests])
    errors = {}
    for one in layer.decode:
        mean = one.requests / layer.engines
        if mean >= layer.fewest:
            guess = fixed + more + request * one.requests + context * one.pairs + shared * mean
            errors[one] = guess / (one.seconds + layer.shared(mean)) - 1
    report("decode", errors)
    coefficients = {"layer_s": fixed + more, "request_s": request * layer.engines}
    coefficients |= {"context_s": context * layer.engines, "shared_request_s": shared}
    return coefficients, Errors(list(errors.values())).mean


def report(what: str, errors: Mapping[Sample, float]) -> None:
    """Errors in all and by cached tokens, with the median of batches of hardly any tokens, and that by requests."""
    print(f"  {what:<14} {Errors(list(errors.values()))}")
    for cached in sorted({one.cached for one in errors}):
        some = [one for one in errors if one.cached == cached]
        print(f"    behind {cached:>7} {Errors([errors[one] for one in some])}{least(some)}")
    for requests in sorted({one.requests for one in errors}):
        some = [one for one in errors if one.requests == requests]
        print(f"    requests {requests:>5} {Errors([errors[one] for one in some])}{least(some)}")


def least(some: Sequence[Sample]) -> str:
    """The floor of prefill samples, if one can be seen."""
    small = [one for one in some if one.tokens <= SMALL_TOKENS and one.new > 1]
    return f"  floor {1e3 * floor_of(small):.3f} ms" if small else ""


def written(layer: Layer, prefill: Mapping[str, float], decode: Mapping[str, float], errors: Mapping[str, float]) -> str:
    """Source text of a ``KernelFit``."""
    lines = ["KernelFit(", *(f"    # {one}" for one in layer.tables.split("; "))]
    for name, kind, values in (("prefill", "PrefillTime", prefill), ("decode", "DecodeTime", decode)):
        lines += [f"    {name}={kind}(", f"        layers={layer.layers},"]
        lines += [f"        {key}={float(f'{value:.4g}')}," for key, value in values.items()] + ["    ),"]
    lines += ["    source=SOURCE,", "    version=VERSION,"]
    lines += [f"    {key}={float(f'{value:.3g}')}," for key, value in errors.items()]
    return "\n".join([*lines, ")"])


HEADER = f'''"""Step times a layer fitted to kernel tables; generated by ``tools/fit_kernels.py`` (paper section 6).

Source: {PACKAGE} {VERSION} (NVIDIA, Apache-2.0), parquet tables of single operators. The tool's docstring says
what a layer is made of and how to generate this again; it prints residuals.
"""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.costmodel.timing import DecodeTime, PrefillTime

SOURCE, VERSION = "{PACKAGE}", "{VERSION}"


@dataclass(frozen=True, slots=True)
class KernelFit:
    """A model on a GPU: seconds for balanced experts, no overlap, no host.

    Attributes:
        prefill, decode: the fit; prefill attention and decode attention hold the projections around them.
        source, version: package whose tables were fitted.
        prefill_error, mixture_error, decode_error: mean relative error of a layer's attention in prefill, of the rest of
            it in prefill, and of a whole layer in decode.
    """

    prefill: PrefillTime
    decode: DecodeTime
    source: str
    version: str
    prefill_error: float
    mixture_error: float
    decode_error: float

'''


def module(fits: Mapping[tuple[str, str], str]) -> str:
    """The generated module."""
    names = {at: "_" + "_".join(at).upper().replace("-", "_").replace(".", "_") for at in fits}
    body = "\n\n".join(f"{names[at]} = {text}" for at, text in fits.items())
    entries = [
        f'    ("{alias}", "{gpu}"): {name},' for (model, gpu), name in names.items() for alias in NAMES.get(model, (model,))
    ]
    table = "\n".join(["KERNELS: dict[tuple[str, str], KernelFit] = {", *entries, "}"])
    return f'{HEADER}\n{body}\n\n{table}\n"""Fits by model and GPU; what the tables do not hold is missing."""\n'


def installed() -> Path:
    """Where the package keeps its tables.

    Raises:
        SystemExit: it is not installed.
    """
    spec = importlib.util.find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        raise SystemExit(f"no tables: pip install {PACKAGE}=={VERSION} pyarrow numpy, or give --tables DIR (its systems/data)")
    return Path(spec.origin).parent / "systems/data"


def main(arguments: Sequence[str]) -> None:
    """Fit every model on every GPU and write the module."""
    parser = argparse.ArgumentParser(description="Fit step times to kernel tables.")
    parser.add_argument("--tables", type=Path, help=f"systems/data of {PACKAGE} {VERSION}; else of the installed package")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="module to write")
    options = parser.parse_args(arguments)
    tables = Tables(options.tables or installed())
    fits = {}
    for model, read in MODELS.items():
        for gpu in GPUS:
            try:
                fits[model, gpu] = fit(model, gpu, read(tables, gpu))
            except MissingError as error:
                print(f"\n{model} on {gpu}: left out: {error}")
    options.output.write_text(module(fits), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
