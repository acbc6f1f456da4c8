"""What an operator sees of the tower at work: the lines of its log, and the commits that went around it."""
