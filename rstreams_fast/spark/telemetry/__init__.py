"""Passes the metrics and trace spans of stages to other systems: OpenTelemetry and Prometheus."""
