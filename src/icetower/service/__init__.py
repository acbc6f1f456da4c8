"""What a tower does, whatever speaks to it: commits, the life of tables, and what is kept of each attempt."""
