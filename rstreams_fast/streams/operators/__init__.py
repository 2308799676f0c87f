"""What a stream does with elements: a file each."""
