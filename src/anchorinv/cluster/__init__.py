"""Many processes and many machines: a study's parts as Ray tasks."""
