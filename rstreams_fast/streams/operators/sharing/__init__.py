"""The parts of ``multicast`` and ``replay``: many subscribers share one subscription."""
