"""The class ``Stream``, and the sources, operators and subscribers of streams."""
