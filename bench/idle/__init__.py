"""What a run of each job costs when there is nothing new."""
