"""The algorithm: no files, no printing, no names of data sets."""
