"""What a person composes: sources, operators, boundaries and ends of streams."""
