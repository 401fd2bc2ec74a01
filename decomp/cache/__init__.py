"""What planning found out, kept on disk for the next process."""
