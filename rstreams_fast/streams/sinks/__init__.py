"""Where streams end: who consumes them, and how."""
