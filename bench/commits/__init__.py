"""`make bench-commit`: commits to one table by many writers, Icetower beside what people use today, in one run."""
