"""What runs on a fitted model: live streams, files, scores, and reports on learning. Nothing here prints."""
