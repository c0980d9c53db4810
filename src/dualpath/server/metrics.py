"""Prometheus metrics: what clients of the API experience, and the cluster as the scheduler last saw it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualpath.clock import Clock
from dualpath.control.turns import ClusterStatus, EngineStatus
from dualpath.server.errors import error_kind

PREFIX = "dualpath:"
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
_REQUEST_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


class ServerMetrics:
    """Latencies and counts of one server. Names follow vLLM's where it has them."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name
        self.first_token_s = self._histogram("time_to_first_token_seconds", "from arrival to the first token", _FIRST_TOKEN_S)
        self.second_token_s = self._histogram("time_to_second_token_seconds", "from the first token to the second", _TOKEN_S)
        self.between_tokens_s = self._histogram("inter_token_latency_seconds", "from a token to the next", _TOKEN_S)
        self.output_token_s = self._histogram(
            "request_time_per_output_token_seconds", "a request's mean time per token after the first", _TOKEN_S
        )
        self.request_s = self._histogram("e2e_request_latency_seconds", "from arrival to the end of a request", _REQUEST_S)
        self.prompt_tokens = self._counter("prompt_tokens", "tokens of the prompts of finished requests")
        self.output_tokens = self._counter("generation_tokens", "generated tokens")
        self._success = Counter(
            PREFIX + "request_success", "finished requests", ["model_name", "finished_reason"], registry=self._registry
        )
        self._failures = Counter(
            PREFIX + "request_failures", "requests that ended with an error", ["model_name", "code"], registry=self._registry
        )

    def succeeded(self, finish_reason: str) -> None:
        """Count a finished turn."""
        self._success.labels(self._model_name, finish_reason).inc()

    def failed(self, error: Exception) -> None:
        """Count a request that ended with ``error``."""
        self._failures.labels(self._model_name, error_kind(error).code).inc()

    def exposition(self, status: ClusterStatus | None) -> bytes:
        """Everything in Prometheus' text format; without ``status``, the cluster's part is missing."""
        own = generate_latest(self._registry)
        if status is None:
            return own
        cluster = CollectorRegistry()
        cluster.register(_ClusterCollector(status, self._model_name))
        return own + generate_latest(cluster)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(PREFIX + name, help, ["model_name"], buckets=buckets, registry=self._registry)
        return histogram.labels(self._model_name)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(PREFIX + name, help, ["model_name"], registry=self._registry).labels(self._model_name)


class TurnTimer:
    """Stamps one turn's tokens and records their latencies."""

    def __init__(self, metrics: ServerMetrics, clock: Clock, arrived_s: float) -> None:
        self._metrics = metrics
        self._clock = clock
        self._arrived_s = arrived_s
        self._first_s = 0.0
        self._last_s = 0.0
        self._tokens = 0

    def token(self) -> None:
        """A token has come."""
        now_s = self._clock.now()
        if self._tokens == 0:
            self._first_s = now_s
            self._metrics.first_token_s.observe(now_s - self._arrived_s)
        else:
            self._metrics.between_tokens_s.observe(now_s - self._last_s)
        if self._tokens == 1:
            self._metrics.second_token_s.observe(now_s - self._first_s)
        self._last_s = now_s
        self._tokens += 1
        self._metrics.output_tokens.inc()

    def finished(self, finish_reason: str, prompt_tokens: int) -> None:
        """The turn is complete."""
        if self._tokens > 1:
            self._metrics.output_token_s.observe((self._last_s - self._first_s) / (self._tokens - 1))
        self._metrics.request_s.observe(self._clock.now() - self._arrived_s)
        self._metrics.prompt_tokens.inc(prompt_tokens)
        self._metrics.succeeded(finish_reason)


_CLUSTER_GAUGES: tuple[tuple[str, str, Callable[[ClusterStatus], float]], ...] = (
    ("num_requests_running", "requests placed on engines", lambda status: status.running),
    ("num_requests_waiting", "requests waiting for an engine", lambda status: status.waiting),
    ("stored_blocks", "KV blocks in the store", lambda status: status.stored_blocks),
    ("stored_bytes", "bytes of KV blocks in the store", lambda status: status.stored_bytes),
    ("pinned_blocks", "stored blocks held for a read", lambda status: status.pinned_blocks),
    ("pending_blocks", "blocks that are being written", lambda status: status.pending_blocks),
)
_CLUSTER_COUNTERS: tuple[tuple[str, str, Callable[[ClusterStatus], float]], ...] = (
    ("prefix_cache_queries", "prompt tokens looked up in the prefix index", lambda status: status.lookup_tokens),
    ("prefix_cache_hits", "prompt tokens found in the prefix index", lambda status: status.hit_tokens),
    ("evicted_blocks", "blocks evicted from the store", lambda status: status.evicted_blocks),
    ("engine_restarts", "engines restarted after a failure", lambda status: status.restarts),
    ("bad_blocks", "stored blocks that failed their checksum", lambda status: sum(e.bad_blocks for e in status.engines)),
)


class _ClusterCollector(Collector):
    """One status as metrics."""

    def __init__(self, status: ClusterStatus, model_name: str) -> None:
        self._status = status
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        for name, help, value in _CLUSTER_GAUGES:
            gauge = GaugeMetricFamily(PREFIX + name, help, labels=["model_name"])
            gauge.add_metric([self._model_name], value(self._status))
            yield gauge
        for name, help, value in _CLUSTER_COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, help, labels=["model_name"])
            counter.add_metric([self._model_name], value(self._status))
            yield counter
        yield self._kv_usage()
        yield from self._storage_reads()
        yield self._transfers()

    def _kv_usage(self) -> Metric:
        gauge = GaugeMetricFamily(
            PREFIX + "kv_cache_usage_perc", "used share of an engine's KV pool", labels=["engine", "role"]
        )
        for engine in self._status.engines:
            if engine.kv_blocks:
                gauge.add_metric([engine.name, engine.role], 1 - engine.kv_blocks_free / engine.kv_blocks)
        return gauge

    def _storage_reads(self) -> Iterable[Metric]:
        labels = ["node", "side"]
        read = CounterMetricFamily(PREFIX + "storage_read_bytes", "bytes of hits read from storage", labels=labels)
        for key, amount in self._by_node_and_side(lambda engine: engine.storage_read_bytes).items():
            read.add_metric(key, amount)
        yield read
        queue = GaugeMetricFamily(PREFIX + "storage_read_queue_tokens", "hit tokens placed and not yet read", labels=labels)
        for key, amount in self._by_node_and_side(lambda engine: engine.read_queue_tokens).items():
            queue.add_metric(key, amount)
        yield queue

    def _by_node_and_side(self, value: Callable[[EngineStatus], int]) -> dict[tuple[str, str], int]:
        sums: Tally[tuple[str, str]] = Tally()
        for engine in self._status.engines:
            sums[engine.node, engine.role] += value(engine)
        return dict(sums)

    def _transfers(self) -> Metric:
        sums: Tally[str] = Tally()
        for engine in self._status.engines:
            sums.update(engine.transfer_bytes)
        counter = CounterMetricFamily(PREFIX + "transfer_bytes", "bytes moved, by traffic class", labels=["class"])
        for traffic_class, amount in sums.items():
            counter.add_metric([traffic_class], amount)
        return counter
