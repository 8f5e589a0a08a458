"""What the steps of a build do, by group of kinds; each runs in a process of its own."""
