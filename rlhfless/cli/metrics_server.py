"""A run's metrics for Prometheus: each metric of the newest step as a gauge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from rlhfless.errors import UserError

if TYPE_CHECKING:
    from controller.job import Event


class MetricsServer:
    """Serves ``rlhfless_<metric>`` on 127.0.0.1; ``reward/mean`` becomes ``rlhfless_reward_mean``.

    Raises ``UserError`` if the port is in use.
    """

    def __init__(self, port: int) -> None:
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        try:
            start_http_server(port, addr="127.0.0.1", registry=self._registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(
                f"cannot serve metrics on port {port}: {reason}",
                hint="choose another --metrics-port",
            ) from error

    def observe(self, event: Event) -> None:
        if event.kind not in ("step", "restored"):
            return
        for name, value in event.data["metrics"].items():
            gauge = self._gauges.get(name)
            if gauge is None:
                identifier = "rlhfless_" + re.sub(r"\W", "_", name)
                gauge = Gauge(identifier, name, registry=self._registry)
                self._gauges[name] = gauge
            gauge.set(value)
