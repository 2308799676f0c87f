"""The guards between a call and the service: permits, circuits, time-outs and further attempts."""
