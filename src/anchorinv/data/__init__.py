"""Where recordings come from: public sets, own files, a generator; and the folders that studies read."""
