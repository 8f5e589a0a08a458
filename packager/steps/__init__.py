"""The functions of a build's steps, one module per group; each step runs in its own process."""
