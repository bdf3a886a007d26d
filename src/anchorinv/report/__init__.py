"""The report: run folders in, a page, tables and figures out."""
