"""Studies: configuration, paired trials, execution, results."""
