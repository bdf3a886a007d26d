"""The commands of the command line, one file for each kind of user. Heavy imports wait inside functions."""
