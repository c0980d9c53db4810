"""How long a step of prefill or decode engines takes on GPUs, from a few coefficients a layer (paper sections 2 and 6)."""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.costmodel.attention import pairs


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """Prefill of a group of engines that run in step: data-parallel attention, experts shared by all of them.

    Calling it with ``(cached, new)`` gives the attention seconds over all layers of one request's part of a batch, as
    batching wants it: ``layers · max(request_context_s · (cached + new), token_s · new + pair_s · pairs)``. It grows with
    both arguments.

    Attributes:
        layers: layers of the model.
        token_s, pair_s: attention of a layer a new token, and a (query, key) pair.
        floor_s: least attention time of a layer for a whole batch: launching its kernels.
        request_context_s: least attention time of a layer for one request, a token of its context.
        mixture_s, mixture_token_s: everything else of a layer (experts, their all-to-all), and a new token on each engine.
        step_s: fixed seconds of a forward.
    """

    layers: int
    token_s: float
    pair_s: float
    floor_s: float = 0.0
    request_context_s: float = 0.0
    mixture_s: float = 0.0
    mixture_token_s: float = 0.0
    step_s: float = 0.0

    def __call__(self, cached: float, new: float) -> float:
        least = self.request_context_s * (cached + new)
        return self.layers * max(least, self.token_s * new + self.pair_s * pairs(cached, new))

    def step(self, most_attention_s: float, mean_new_tokens: float) -> float:
        """A forward of the group: the slowest engine's attention, and experts for ``mean_new_tokens`` an engine."""
        attention_s = max(most_attention_s, self.layers * self.floor_s)
        return self.step_s + attention_s + self.layers * (self.mixture_s + self.mixture_token_s * mean_new_tokens)


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """One decode step of a group of engines that run in step: a token for every request on all of them.

    ``step_s + layers · (layer_s + max over engines of (request_s · n + context_s · tokens) + shared_request_s · mean n)``.

    Attributes:
        layers: layers of the model.
        layer_s: a layer with no request.
        request_s, context_s: attention of a layer a request of the busiest engine, and a token of its context.
        shared_request_s: experts of a layer a request, on the mean over the engines.
        step_s: fixed seconds of a step.
    """

    layers: int
    layer_s: float
    request_s: float
    context_s: float = 0.0
    shared_request_s: float = 0.0
    step_s: float = 0.0

    def step(self, most_attention_s: float, mean_requests: float) -> float:
        """A step whose busiest engine takes ``most_attention_s`` a layer (``engine_s``)."""
        return self.step_s + self.layers * (self.layer_s + most_attention_s + self.shared_request_s * mean_requests)

    def engine_s(self, requests: int, context_tokens: int) -> float:
        """Attention seconds a layer of an engine with so many requests and tokens of context in all."""
        return self.request_s * requests + self.context_s * context_tokens
