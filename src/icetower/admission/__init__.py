"""One question, asked once: may this request go on? `admit` for commits, `permissions` for everything else."""
