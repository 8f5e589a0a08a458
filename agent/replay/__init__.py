"""What a policy would have done: traces, a simulated board, and the replay."""
