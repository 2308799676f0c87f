"""One subscription to upstream, shared by any number of subscribers."""
