"""What the compiler makes of small differences: local arrays, aliasing, branches."""
