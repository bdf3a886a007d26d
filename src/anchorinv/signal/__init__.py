"""From recordings, in files or live, to windows: piece by piece, in bounded memory."""
