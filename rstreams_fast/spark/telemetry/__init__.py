"""The metrics of stages for other systems: OpenTelemetry and Prometheus."""
