"""From recordings, in files or live, to windows: chunk by chunk, in bounded memory."""
