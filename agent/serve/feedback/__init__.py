"""What applications say of answers: which were right, and how good they were."""
