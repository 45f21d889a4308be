"""Between 8-bit integers and floats."""
