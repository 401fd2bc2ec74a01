"""The disk cache of the planner's results."""
