"""Use of fitted models: streaming, files, evaluation, audits and export. Nothing here prints."""
