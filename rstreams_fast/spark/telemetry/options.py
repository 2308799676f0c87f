"""``OpenTelemetry``: says where metrics of stages are sent, and for which calls spans are made."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import rstreams_fast
from rstreams_fast.calls.functions import check_amount, check_seconds

if TYPE_CHECKING:
    from rstreams_fast.spark.telemetry.otlp import Client

__all__ = ["OpenTelemetry"]

INTERVAL_SECONDS: Final = 60.0
"""The default number of seconds between two exports of metrics, as in OpenTelemetry."""

SAMPLE: Final = 1 / 64

MOST_SPANS: Final = 64.0

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]


class OpenTelemetry:
    """Sends metrics and spans to a collector: ``rs.Metrics(telemetry=rs.OpenTelemetry())``.

    A thread of Spark's driver sends them by OTLP over HTTP. The workers write metrics and spans to
    the directory of the ``Metrics``: so no worker needs the collector, its address or a secret.
    While the user's function runs, the span of its call is OpenTelemetry's current span. The parent
    of all these spans is the driver's current span at the time when the ``Metrics`` are made. If
    the collector does not answer, no call waits and no job fails; one warning is logged.

    This class needs OpenTelemetry: ``pip install 'rstreams_fast[otel]'``. Any thread may use the
    object. It cannot be pickled.

    ```python
    import rstreams_fast.spark as rs

    telemetry = rs.OpenTelemetry("http://127.0.0.1:4318", service_name="nightly")
    print(telemetry)  # OpenTelemetry(service_name='nightly', sample=0.015625)
    ```

    Args:
        endpoint: The base URL of the collector. ``/v1/metrics`` and ``/v1/traces`` are appended.
            Default: ``OTEL_EXPORTER_OTLP_ENDPOINT`` and the other variables of OpenTelemetry, else
            ``http://localhost:4318``.
        headers: Headers of the requests, or a function that returns them. The function is called
            for each request, so that tokens may expire. Default: ``OTEL_EXPORTER_OTLP_HEADERS``.
        service_name: The service that the metrics describe. Default: ``OTEL_SERVICE_NAME``, else
            ``rstreams_fast``.
        resource: Further attributes of the resource. ``OTEL_RESOURCE_ATTRIBUTES`` adds to them.
        sample: The share of calls that have a span, from 0 to 1. Default: 1 of 64.
        most_spans: The most spans per second of each running partition, on average over some
            seconds. At higher rates of calls a smaller share of calls has spans. Default: 64 spans,
            which take less than 1 % of a core.
        interval: Seconds between two exports of metrics. Default: ``OTEL_METRIC_EXPORT_INTERVAL``
            (milliseconds), else 60.
        timeout: The most seconds for a request, including its repetitions after failures. Default:
            ``OTEL_EXPORTER_OTLP_TIMEOUT``, else 10.

    Raises:
        TypeError: An argument has the wrong type; the message names it.
        ValueError: An argument has a wrong value; the message names it.
        ModuleNotFoundError: OpenTelemetry is not installed.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        headers: Headers | None = None,
        service_name: str | None = None,
        resource: Mapping[str, Any] | None = None,
        sample: float = SAMPLE,
        most_spans: float = MOST_SPANS,
        interval: float | None = None,
        timeout: float | None = None,
    ) -> None:
        for word, text in (("endpoint", endpoint), ("service_name", service_name)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{word} must be a str, got {type(text).__name__}")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            # The message does not contain the endpoint, which may contain a key.
            raise ValueError("endpoint must start with http:// or https://")
        if headers is not None and not (callable(headers) or isinstance(headers, Mapping)):
            raise TypeError(f"headers must be a mapping or callable, got {type(headers).__name__}")
        if resource is not None and not isinstance(resource, Mapping):
            raise TypeError(f"resource must be a mapping, got {type(resource).__name__}")
        if isinstance(sample, bool) or not isinstance(sample, int | float):
            raise TypeError(f"sample must be a number, got {type(sample).__name__}")
        if not 0 <= sample <= 1:
            raise ValueError(f"sample must be from 0 to 1, got {sample}")
        self._endpoint, self._headers = endpoint, headers
        self._service_name, self._resource = service_name, dict(resource or {})
        self._timeout = None if timeout is None else check_seconds("timeout", timeout)
        if self._timeout == math.inf:
            raise ValueError("timeout must be finite")  # sockets refuse an infinite time-out
        self.sample: Final = float(sample)
        """The share of calls that have a span."""
        self.most_spans: Final = _rate(most_spans)
        """The most spans per second of each running partition, on average."""
        self.interval: Final = (
            _interval() if interval is None else check_seconds("interval", interval)
        )
        """Seconds between two exports of metrics."""
        self.client()  # if OpenTelemetry is not installed, this raises ModuleNotFoundError

    def client(self) -> Client:
        """Return a new ``Client``, which sends data to the collector."""
        from rstreams_fast.spark.telemetry.otlp import Client

        named = {} if self._service_name is None else {"service.name": self._service_name}
        resource = {**self._resource, **named}
        version = rstreams_fast.__version__
        return Client(self._endpoint, self._headers, self._timeout, resource, version)

    def __reduce__(self) -> NoReturn:
        raise TypeError("OpenTelemetry belongs to the driver, and cannot be pickled")

    def __repr__(self) -> str:
        return f"OpenTelemetry(service_name={self._service_name!r}, sample={self.sample:g})"


def _interval() -> float:
    try:
        seconds = float(os.environ["OTEL_METRIC_EXPORT_INTERVAL"]) / 1000
    except (KeyError, ValueError):
        return INTERVAL_SECONDS
    return seconds if seconds > 0 else INTERVAL_SECONDS  # the comparison is False for NaN, too


def _rate(most: float) -> float:
    amount = check_amount("most_spans", most)
    if amount == 0:
        raise ValueError("most_spans must be > 0; sample=0 makes no spans")
    return amount
