"""Replays policies: traces, a simulated board, and the replay."""
