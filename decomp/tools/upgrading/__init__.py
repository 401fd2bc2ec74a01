"""What changes for a target and its models between two versions of PyTorch: records made by each, and compared."""
